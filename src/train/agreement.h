#pragma once
// What the ranks of a run agree on after a step.
#include <span>

#include "zero/group.h"

namespace zero::train {

/// What a rank knows by itself.
struct Flags {
  int stop_signal = 0;      ///< 0: none
  bool is_due = false;      ///< a checkpoint
  bool time_is_up = false;  ///< of the run
};

struct Agreement {
  double loss = 0;          ///< mean over the global batch, in the order of the global micro-batches
  int stop_signal = 0;      ///< of the lowest rank that got one
  bool is_due = false;      ///< rank 0's
  bool time_is_up = false;  ///< rank 0's
};

/// Which micro-batches a rank has, and which part of the model.
struct Place {
  int data_rank = 0, model_rank = 0;
};

/// In one exchange. `losses` as in mean_loss(). Of the ranks that have one copy of the model together, the first one's
/// losses count. *Collective.* Throws ModelError on every rank when the ranks of a copy have losses that are not the
/// same loss.
Agreement agree(Group group, std::span<const double> losses, Flags flags, Place place);

}  // namespace zero::train
