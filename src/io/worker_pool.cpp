#include "io/worker_pool.h"

#include <system_error>
#include <utility>

namespace zero::io {

void WorkerPool::start_threads() {
  try {
    for (int i = 0; i < wanted_threads_; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Fewer are as right.
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::submit(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) start_threads();
    if (!threads_.empty()) jobs_.push_back(std::move(job));
  }
  if (job) {
    job();
  } else {
    changed_.notify_one();
  }
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace zero::io
