#pragma once
// Whether a run fits this host, before its ranks are started.
#include <string>

#include "train/train_options.h"
#include "train/train_plan.h"
#include "zero/config.h"
#include "zero/lm/models.h"
#include "zero/plan.h"

namespace zero::app {

/// plan::check_fits() in the words of the command line: a line of warning (with its line end) or nothing. `here`: this
/// host, and its ranks. Local. Throws ConfigError when it cannot fit, unless `force`.
std::string check_fits_here(const plan::ModelShape& model, const Config& config, const plan::Cluster& here, bool force);

/// With --fit: changes `plan` and `config` so that they fit, and says how. As check_fits_here() otherwise. `goes_on`:
/// the run has begun, and its micro-batches stay. Local. Throws ConfigError when nothing makes it fit.
std::string fit_or_check(TrainPlan& plan, Config& config, const TrainOptions& options, Ranks ranks, bool goes_on);

/// What `zero train` builds, for check_fits_here().
plan::ModelShape shape_to_train(const TrainPlan& plan);

}  // namespace zero::app
