#pragma once
// What the ranks of a run agree on after a step.
#include <span>

#include "zero/group.h"

namespace zero::train {

struct Agreement {
  double loss = 0;      ///< mean over the global batch, in the order of the global micro-batches
  int stop_signal = 0;  ///< of the lowest rank that got one
  bool due = false;     ///< rank 0's
};

/// In one exchange. `losses` as in mean_loss(), `due` as rank 0 has it. *Collective.*
Agreement agree(Group group, std::span<const double> losses, int stop_signal, bool due);

}  // namespace zero::train
