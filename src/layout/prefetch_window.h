#pragma once
// How far ahead of use to gather, from measured times. Pure arithmetic.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zero::layout {

/// A use of a unit, as one step measured it.
struct TimedUse {
  int phase = 0;                    ///< 0 forward, 1 backward: from backward nothing is gathered ahead into forward
  double compute_seconds = 0;       ///< from this use to the next one, without waiting for gathers
  std::int64_t gathered_numel = 0;  ///< elements that had to be gathered for it; 0: the unit was whole
  double gather_seconds = 0;        ///< how long they took to move
};

/// The fewest elements that must be on their way or waiting for use, so that computation never waits for a
/// gather: every gather begins at the last use at which it still ends in time, one gather moving after the
/// other, each taking `slack` times what was measured. Where gathers take longer than computation, all of the
/// pass.
std::int64_t prefetch_window(std::span<const TimedUse> uses, double slack);

/// Times of the uses in steps 3, 6, 12, 24, ..., and the windows that they ask for.
class MeasuredWindow {
 public:
  bool measuring() const { return measuring_; }
  /// While measuring: a unit is used at `now`; `waited` seconds were spent on waiting for gathers so far.
  void note_use(int phase, double now, double waited);
  /// While measuring: `numel` elements had to be gathered for the last use, which took `seconds` to move.
  void note_gather(std::int64_t numel, double seconds);
  /// A step is over. What it asks for, where it was measured and had a backward.
  std::optional<std::int64_t> end_step();

 private:
  bool measuring_ = false;
  std::int64_t steps_ = 0;
  std::int64_t next_choice_ = 3;  ///< at the end of this step; the order of use is known from the second on
  std::vector<TimedUse> uses_;
  double used_at_ = 0, waited_before_ = 0;
};

}  // namespace zero::layout
