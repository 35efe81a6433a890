#include "layout/prefetch_window.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace zero::layout {
namespace {

/// The same within one pass. Walks back from its end: `start` is when the gather of a use must begin, `at`
/// when the use is; both relative to the end of the pass.
std::int64_t window_of_pass(std::span<const TimedUse> uses, double slack) {
  // Gathers for use i or a later one that must begin before use i. `begun` has all of them that were met so
  // far; the first `left` may begin at use i or later.
  std::int64_t window = 0, under_way = 0;
  double at = 0, start = std::numeric_limits<double>::infinity();
  struct Begun {
    double start;
    std::int64_t numel;
  };
  std::vector<Begun> begun;  // by descending start
  std::size_t left = 0;
  for (std::size_t i = uses.size(); i-- > 1;) {
    at -= uses[i].compute_seconds;
    if (uses[i].gathered_numel > 0) {
      start = std::min(start, at) - slack * uses[i].gather_seconds;
      begun.push_back({start, uses[i].gathered_numel});
      under_way += uses[i].gathered_numel;
    }
    // Between use i-1 and use i: what begins no earlier than use i is not under way yet.
    while (left < begun.size() && begun[left].start >= at) under_way -= begun[left++].numel;
    window = std::max(window, under_way);
  }
  return window;
}

}  // namespace

std::int64_t prefetch_window(std::span<const TimedUse> uses, double slack) {
  std::int64_t window = 0;
  for (std::size_t begin = 0; begin < uses.size();) {
    std::size_t end = begin + 1;
    while (end < uses.size() && uses[end].phase >= uses[end - 1].phase) ++end;
    window = std::max(window, window_of_pass(uses.subspan(begin, end - begin), slack));
    begin = end;
  }
  return window;
}

void MeasuredWindow::note_use(int phase, double now, double waited) {
  constexpr std::size_t kMostUses = 100'000;  // evaluation without end between two steps
  if (uses_.size() >= kMostUses) return;
  if (!uses_.empty()) uses_.back().compute_seconds = now - used_at_ - (waited - waited_before_);
  used_at_ = now;
  waited_before_ = waited;
  uses_.push_back({.phase = phase});
}

void MeasuredWindow::note_gather(std::int64_t numel, double seconds) {
  if (uses_.empty()) return;
  uses_.back().gathered_numel += numel;
  uses_.back().gather_seconds += seconds;
}

std::optional<std::int64_t> MeasuredWindow::end_step() {
  constexpr double kSlack = 2;  // other messages share the way, and times vary
  std::optional<std::int64_t> wanted;
  ++steps_;
  if (!uses_.empty() && uses_.back().phase == 1) {
    wanted = prefetch_window(uses_, kSlack);
    next_choice_ = 2 * steps_;
  }
  uses_.clear();
  measuring_ = steps_ + 1 >= next_choice_;
  return wanted;
}

}  // namespace zero::layout
