#pragma once
// Whether a run fits this host, before its ranks are started.
#include <string>

#include "train_plan.h"
#include "zero/config.h"
#include "zero/models.h"
#include "zero/plan.h"

namespace zero::app {

/// plan::check_fits() against the memory that is free here, in the words of the command line: a line of warning (with
/// its line end) or nothing. `ranks_per_node`: ranks on this host, 0: all. Local. Throws ConfigError when it cannot
/// fit, unless `force`.
std::string check_fits(const plan::ModelShape& model, const Config& config, int ranks, int ranks_per_node, bool force);

/// What `zero train` builds, for check_fits().
plan::ModelShape shape_to_train(const TrainPlan& plan);

}  // namespace zero::app
