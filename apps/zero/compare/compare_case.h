#pragma once
// One row of `zero compare`: the same model and tokens under one ZeRO stage, measured by ranks of its own.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "train/train_plan.h"
#include "zero/group.h"

namespace zero::app {

/// What the ranks of one case are told.
struct CompareCase {
  TrainPlan plan;           ///< model, corpus, seed, resolved configuration; `steps` counts warm-up too
  std::string mode;         ///< "compute", "stage0" ... "stage3", "stage3-copying"
  std::string result_file;  ///< written by rank 0 when the case is over
  std::int64_t warmup = 0;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CompareCase, plan, mode, result_file, warmup)

/// Trains the case's steps and writes its result: losses, seconds, memory by kind and rank, bytes received,
/// learning rates. "compute" is forward and backward of the plain module, with no engine. Ends early on a
/// stop signal, on all ranks alike, and returns it; else 0. *Collective.* Throws zero::Error.
int run_case(const CompareCase& one, Group group);

}  // namespace zero::app
