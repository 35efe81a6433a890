#pragma once
// What every process that trains a GPT here has in common.
#include <functional>
#include <string>

#include "train_plan.h"
#include "zero/engine.h"
#include "zero/launch.h"
#include "zero/models.h"

namespace zero::app {

/// launch() for ranks of this command ("zero train"), which say themselves, once for all of them, what went wrong.
int launch_own_ranks(const std::string& command, LaunchOptions options);

/// The exit code of a rank whose `run` returned a stop signal (0: none) or threw; says what was thrown. All
/// ranks find the same fault in a configuration or model; one of them says it. Of ranks from launch_own_ranks() only
/// one says anything, if it can be the one where it went wrong.
int rank_exit_code(int rank, const std::function<int()>& run);

/// The model of the plan, fp32, initialised from libtorch's default generator.
GPT build_model(const TrainPlan& plan);

/// As GPT-2 was trained: no weight decay on biases and layer norms.
ParameterGroup no_decay_group();

}  // namespace zero::app
