#include "sharding/update/thread.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Parallel.h>

#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "base/trace.h"

namespace zero::sharding {

UpdateThread::UpdateThread(std::function<void()> work, std::string name, Timeline& timeline)
    : work_(std::move(work)), name_(std::move(name)), timeline_(timeline), process_(::getpid()), thread_([this] {
        run();
      }) {}

UpdateThread::~UpdateThread() {
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

void UpdateThread::run() {
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
      work_();
    } catch (...) {
      error = std::current_exception();
    }
    // Its seconds are not the step's.
    if (timeline_.trace) timeline_.trace->add_span(name_, {}, begin_ns, base::monotonic_ns());
    lock.lock();
    error_ = error;
    is_wanted_ = false;
    changed_.notify_all();
  }
}

void UpdateThread::start() {
  {
    const std::lock_guard lock(mutex_);
    compute_threads_ = at::get_num_threads();
    is_wanted_ = true;
  }
  changed_.notify_all();
}

void UpdateThread::wait() {
  if (process_ != ::getpid()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_wanted_; });
}

void UpdateThread::rethrow() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace zero::sharding
