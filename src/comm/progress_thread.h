#pragma once
// ProgressThread: moves a backend's data while the caller computes, and BackendLock, which it shares with callers.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace zero::comm {

class Backend;

/// A recursive lock for a backend, which is not thread-safe itself. Callers have priority over progress threads. A
/// backend, its works and its progress thread share one lock; all groups of a process over MPI share one too, since MPI
/// admits one thread at a time. Locking costs nothing while no progress thread runs.
class BackendLock {
 public:
  /// True while a progress thread runs; otherwise nobody needs the lock.
  bool shared() const { return threads_.load(std::memory_order_relaxed) > 0; }
  /// Waits until no progress thread holds the lock, and stops progress threads from taking it again.
  void close();
  /// True while a caller waits for the lock; progress threads then do not take it.
  bool wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class BackendGuard;
  friend class BackendUnlock;
  friend class ProgressThread;
  std::recursive_mutex mutex_;  ///< a finish step may call into the group
  int depth_ = 0;               ///< nested BackendGuards that hold it; guarded by mutex_
  std::atomic<int> threads_{0};
  std::atomic<int> waiting_{0};
  bool closed_ = false;  ///< guarded by mutex_
};

/// Holds a BackendLock for a scope.
class BackendGuard {
 public:
  /// Waits for the lock.
  explicit BackendGuard(BackendLock& lock);
  /// Takes the lock if it is free; otherwise !*this.
  BackendGuard(BackendLock& lock, std::try_to_lock_t);
  ~BackendGuard();
  BackendGuard(const BackendGuard&) = delete;
  BackendGuard& operator=(const BackendGuard&) = delete;
  explicit operator bool() const { return has_; }

 private:
  BackendLock* held_ = nullptr;  ///< null if the lock is not shared
  bool has_ = true;
};

/// Fully releases a BackendLock that the caller holds, for a scope, so that other threads and groups can do what the
/// caller waits for. Not inside finish steps.
class BackendUnlock {
 public:
  explicit BackendUnlock(BackendLock& lock);
  ~BackendUnlock();
  BackendUnlock(const BackendUnlock&) = delete;
  BackendUnlock& operator=(const BackendUnlock&) = delete;

 private:
  BackendLock& lock_;
  int depth_ = 0;
};

/// Runs `backend`'s data phases as soon as its peers allow, one finish step at a time, from construction to
/// destruction; sleeps while no call is under way. An error fails the group, and the group's next call throws it.
class ProgressThread {
 public:
  /// `backend` outlives it. Throws IoError.
  ProgressThread(Backend& backend, std::shared_ptr<BackendLock> lock);
  /// Joins the thread. A forked child has no thread to join.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Wakes it: a call has been posted.
  void posted();
  bool is_this_thread() const { return thread_->get_id() == std::this_thread::get_id(); }

 private:
  void run();

  Backend& backend_;
  const std::shared_ptr<BackendLock> lock_;
  std::atomic<std::uint32_t> posts_{0};
  std::atomic<bool> ending_{false};
  const int pid_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace zero::comm
