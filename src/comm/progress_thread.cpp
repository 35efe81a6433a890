#include "comm/progress_thread.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <system_error>

#include "comm/backend.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// Between two looks at a peer that has not come or a message that has not arrived: a tenth of a percent of
/// what a bucket takes, and a few percent of the core at most.
constexpr std::chrono::microseconds kNap{100};

/// The process's signals are for its other threads.
std::thread start_without_signals(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw IoError(
        fmt::format("no progress thread could be started: {}. Look at `ulimit -u`, or set "
                    "zerotorch.progress_thread to \"never\"",
                    error.what()));
  }
}

}  // namespace

void BackendLock::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

BackendGuard::BackendGuard(BackendLock& lock) {
  if (!lock.shared()) return;
  if (!lock.mutex_.try_lock()) {
    lock.waiting_.fetch_add(1, std::memory_order_relaxed);
    lock.mutex_.lock();
    lock.waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  held_ = &lock;
  ++lock.depth_;
}

BackendGuard::BackendGuard(BackendLock& lock, std::try_to_lock_t) {
  if (!lock.shared()) return;
  has_ = lock.mutex_.try_lock();
  if (!has_) return;
  held_ = &lock;
  ++lock.depth_;
}

BackendGuard::~BackendGuard() {
  if (!held_) return;
  --held_->depth_;
  held_->mutex_.unlock();
}

BackendUnlock::BackendUnlock(BackendLock& lock) : lock_(lock) {
  if (!lock.shared()) return;
  depth_ = lock.depth_;
  lock.depth_ = 0;
  for (int i = 0; i < depth_; ++i) lock.mutex_.unlock();
}

BackendUnlock::~BackendUnlock() {
  if (depth_ == 0) return;
  for (int i = 0; i < depth_; ++i) lock_.mutex_.lock();
  lock_.depth_ = depth_;
}

ProgressThread::ProgressThread(Backend& backend, std::shared_ptr<BackendLock> lock)
    : backend_(backend), lock_(std::move(lock)), pid_(::getpid()) {
  lock_->threads_.fetch_add(1);
  try {
    thread_ = std::make_unique<std::thread>(start_without_signals([this] { run(); }));
  } catch (...) {
    lock_->threads_.fetch_sub(1);
    throw;
  }
}

ProgressThread::~ProgressThread() {
  if (::getpid() != pid_) {
    thread_.release();  // only its owner's process has it
    return;
  }
  ending_.store(true);
  posted();
  thread_->join();
  lock_->threads_.fetch_sub(1);
}

void ProgressThread::posted() {
  posts_.fetch_add(1);
  posts_.notify_one();
}

void ProgressThread::run() {
  while (!ending_.load()) {
    const std::uint32_t seen = posts_.load();
    bool moved = false, under_way = false;
    while (lock_->wanted()) ::sched_yield();
    {
      const std::lock_guard lock(lock_->mutex_);
      if (lock_->closed_) return;
      try {
        moved = backend_.progress(1);
        under_way = backend_.under_way();
      } catch (const std::exception& error) {
        backend_.abort(error.what());
      }
    }
    if (!under_way) {
      posts_.wait(seen);
    } else if (!moved) {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace zero::comm
