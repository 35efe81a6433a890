#include "comm/progress_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>

#include "comm/backend.h"

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
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

Turn::Turn(Turns& turns) {
  if (!turns.shared()) return;
  lock_ = std::unique_lock(turns.mutex_, std::try_to_lock);
  if (lock_) return;
  turns.waiting_.fetch_add(1, std::memory_order_relaxed);
  lock_.lock();
  turns.waiting_.fetch_sub(1, std::memory_order_relaxed);
}

Turn::Turn(Turns& turns, std::try_to_lock_t) {
  if (!turns.shared()) return;
  lock_ = std::unique_lock(turns.mutex_, std::try_to_lock);
  has_ = lock_.owns_lock();
}

ProgressThread::ProgressThread(Backend& backend, std::shared_ptr<Turns> turns)
    : backend_(backend), turns_(std::move(turns)), pid_(::getpid()) {
  turns_->threads_.fetch_add(1);
  try {
    thread_ = std::make_unique<std::thread>(start_without_signals([this] { run(); }));
  } catch (...) {
    turns_->threads_.fetch_sub(1);
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
  turns_->threads_.fetch_sub(1);
}

void ProgressThread::posted() {
  posts_.fetch_add(1);
  posts_.notify_one();
}

void ProgressThread::run() {
  while (!ending_.load()) {
    const std::uint32_t seen = posts_.load();
    bool moved = false, under_way = false;
    while (turns_->wanted()) ::sched_yield();
    {
      const std::lock_guard lock(turns_->mutex_);
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
