#pragma once
// How far ahead of use to gather, from measured times. Pure arithmetic.
#include <cstdint>
#include <span>

namespace zero::layout {

/// A use of a unit, as one step measured it.
struct TimedUse {
  int phase = 0;  ///< 0 forward, 1 backward: from backward nothing is gathered ahead into forward
  double compute_seconds = 0;       ///< from this use to the next one, without waiting for gathers
  std::int64_t gathered_numel = 0;  ///< elements that had to be gathered for it; 0: the unit was whole
  double gather_seconds = 0;        ///< how long they took to move
};

/// The fewest elements that must be on their way or waiting for use, so that computation never waits for a
/// gather: every gather begins at the last use at which it still ends in time, one gather moving after the
/// other, each taking `slack` times what was measured. Where gathers take longer than computation, all of the
/// pass.
std::int64_t prefetch_window(std::span<const TimedUse> uses, double slack);

}  // namespace zero::layout
