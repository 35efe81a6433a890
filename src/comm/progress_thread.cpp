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

void Turns::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

Turn::Turn(Turns& turns) {
  if (!turns.shared()) return;
  if (!turns.mutex_.try_lock()) {
    turns.waiting_.fetch_add(1, std::memory_order_relaxed);
    turns.mutex_.lock();
    turns.waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  held_ = &turns;
  ++turns.depth_;
}

Turn::Turn(Turns& turns, std::try_to_lock_t) {
  if (!turns.shared()) return;
  has_ = turns.mutex_.try_lock();
  if (!has_) return;
  held_ = &turns;
  ++turns.depth_;
}

Turn::~Turn() {
  if (!held_) return;
  --held_->depth_;
  held_->mutex_.unlock();
}

TurnPause::TurnPause(Turns& turns) : turns_(turns) {
  if (!turns.shared()) return;
  depth_ = turns.depth_;
  turns.depth_ = 0;
  for (int i = 0; i < depth_; ++i) turns.mutex_.unlock();
}

TurnPause::~TurnPause() {
  if (depth_ == 0) return;
  for (int i = 0; i < depth_; ++i) turns_.mutex_.lock();
  turns_.depth_ = depth_;
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
      if (turns_->closed_) return;
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
