#pragma once
// What every process that trains a GPT here has in common.
#include <functional>

#include "train_plan.h"
#include "zero/engine.h"
#include "zero/models.h"

namespace zero::app {

/// The exit code of a rank whose `run` returned a stop signal (0: none) or threw; says what was thrown. All
/// ranks find the same fault in a configuration or model; one of them says it.
int rank_exit_code(int rank, const std::function<int()>& run);

/// The model of the plan, fp32, initialised from libtorch's default generator.
GPT build_model(const TrainPlan& plan, const Config& config, const Group& group);

/// As GPT-2 was trained: no weight decay on biases and layer norms.
ParameterGroup no_decay_group();

}  // namespace zero::app
