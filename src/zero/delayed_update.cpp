#include "zero/delayed_update.h"

#include <utility>

#include "base/check.h"

namespace zero::sharding {

DelayedUpdate::DelayedUpdate(ShardedOptimizer& optimizer, GradientReducer& reducer, Timeline& timeline)
    : optimizer_(optimizer),
      reducer_(reducer),
      thread_([this] { optimizer_.run_update(*sums_); }, "delayed update", timeline) {}

void DelayedUpdate::begin(const std::vector<double>& lr, double gradient_scale) {
  ZERO_CHECK(!pending(), "an update is under way");
  optimizer_.begin_update(lr, gradient_scale);
  sums_ = &reducer_.hand_over_sums();
  thread_.start();
}

void DelayedUpdate::finish() {
  if (!pending()) return;
  thread_.wait();
  thread_.rethrow();
  optimizer_.end_update();
  std::exchange(sums_, nullptr)->release();
}

}  // namespace zero::sharding
