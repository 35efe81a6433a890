#pragma once
// What every process that trains a GPT here does before its first step.
#include <functional>

#include "train_plan.h"
#include "zero/engine.h"
#include "zero/models.h"

namespace zero::app {

/// The exit code of a rank whose `run` returned a stop signal (0: none) or threw; says what was thrown. All
/// ranks find the same fault in a configuration or model; one of them says it.
int rank_exit_code(int rank, const std::function<int()>& run);

/// *Collective.* Threads, cores, allocator, signals, log, seed: what belongs to the process and not to the run.
/// `announce_stop`: rank 0 says at the first stop signal that a checkpoint follows.
void set_up_process(std::int64_t seed, const Config& config, const Group& group, bool announce_stop);

/// The model of the plan, fp32, initialised from libtorch's default generator.
GPT build_model(const TrainPlan& plan);

/// As GPT-2 was trained: no weight decay on biases and layer norms.
ParameterGroup no_decay_group();

}  // namespace zero::app
