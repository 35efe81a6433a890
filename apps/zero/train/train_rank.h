#pragma once
// One rank of `zero train`: model, engine, the training loop, and rank 0's words about it.
#include "train/train_plan.h"
#include "zero/group.h"

namespace zero::app {

/// Trains as `plan` says. Rank 0 prints and writes the run's folder, the others are silent. Ends early, all
/// ranks at the same step, when any of them got SIGINT, SIGTERM or SIGHUP; returns that signal, else 0.
/// *Collective.* Throws zero::Error.
int train_rank(const TrainPlan& plan, Group group);

}  // namespace zero::app
