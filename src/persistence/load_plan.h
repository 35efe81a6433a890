#pragma once
// What a load will do, found out from the manifest alone: no value of the engine has changed yet.
#include <functional>
#include <vector>

#include "checkpoint/folder.h"
#include "persistence/load_items.h"
#include "persistence/saved_state.h"
#include "persistence/saved_tensors.h"
#include "zero/checkpoint.h"

namespace zero::persistence {

struct LoadPlan {
  /// Where the run goes on, with the learning rates of this run's groups. Read where `options.load_lr_scheduler_states`
  /// asks for it, and not with `module_only`.
  engine::TrainingState training;
  bool keeps_window = false;          ///< the accumulated gradients come, and the window goes on
  std::vector<int> unused_in_window;  ///< parameters

  bool in_round = false;  ///< of islands: what they started from comes, and their round goes on

  /// Updates by parameter; empty: they stay as they are.
  std::vector<std::int64_t> optimizer_steps;

  std::vector<LoadItem> items;
  std::vector<std::function<void()>> to_put;         ///< states that were read, into the program's own optimizer
  std::vector<std::function<void()>> to_start_anew;  ///< states that the checkpoint does not have
  LoadReport report;
};

/// Parameters that are frozen here and were frozen when they were saved, with states: both programs mean to go on
/// with them later. Same result on every rank.
std::vector<int> frozen_with_states(const Engine::Impl& impl, const SavedTensors& saved, const SavedState& state);

/// Matches names, shapes and counters. Same result on every rank. Throws CheckpointError.
LoadPlan plan_load(const Engine::Impl& impl, const checkpoint::Found& found, const SavedTensors& saved,
                   const SavedState& state, const LoadOptions& options);

}  // namespace zero::persistence
