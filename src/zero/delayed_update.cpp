#include "zero/delayed_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Parallel.h>

#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/trace.h"

namespace zero::sharding {

DelayedUpdate::DelayedUpdate(ShardedOptimizer& optimizer, GradientReducer& reducer, Timeline& timeline)
    : optimizer_(optimizer), reducer_(reducer), timeline_(timeline), process_(::getpid()), thread_([this] { run(); }) {}

DelayedUpdate::~DelayedUpdate() {
  if (process_ != ::getpid()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DelayedUpdate::run() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_wanted_ || ends_; });
    if (!is_wanted_) return;
    lock.unlock();
    if (at::get_num_threads() != compute_threads_) at::set_num_threads(compute_threads_);
    const std::int64_t begin_ns = base::monotonic_ns();
    std::exception_ptr error;
    try {
      optimizer_.run_update(*sums_);
    } catch (...) {
      error = std::current_exception();
    }
    // Its seconds are not the step's.
    if (timeline_.trace) timeline_.trace->add_span("delayed update", {}, begin_ns, base::monotonic_ns());
    lock.lock();
    error_ = error;
    is_wanted_ = false;
    changed_.notify_all();
  }
}

void DelayedUpdate::begin(const std::vector<double>& lr, double gradient_scale) {
  ZERO_CHECK(!pending(), "an update is under way");
  optimizer_.begin_update(lr, gradient_scale);
  sums_ = &reducer_.hand_over_sums();
  {
    const std::lock_guard lock(mutex_);
    compute_threads_ = at::get_num_threads();
    is_wanted_ = true;
  }
  changed_.notify_all();
}

void DelayedUpdate::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_wanted_; });
}

void DelayedUpdate::finish() {
  if (!pending()) return;
  wait();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  optimizer_.end_update();
  std::exchange(sums_, nullptr)->release();
}

}  // namespace zero::sharding
