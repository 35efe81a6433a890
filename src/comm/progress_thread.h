#pragma once
// Moving data while the caller computes: a thread that progresses a backend, and the lock that it shares with callers.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace zero::comm {

class Backend;

/// A recursive lock over a backend, which itself knows nothing of threads. Callers come before progress threads. A
/// backend, its works and its progress thread share one; so do all groups of a process over MPI, which lets in one
/// thread at a time. Locking costs nothing while no progress thread runs.
class BackendLock {
 public:
  /// True while some progress thread runs: else nobody needs the lock.
  bool shared() const { return threads_.load(std::memory_order_relaxed) > 0; }
  /// Waits until no progress thread holds the lock; none gets it again.
  void close();
  /// True when a caller waits for the lock: progress threads then leave it to him.
  bool wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class BackendGuard;
  friend class BackendUnlock;
  friend class ProgressThread;
  std::recursive_mutex mutex_;  ///< a finish step may call into the group
  int depth_ = 0;               ///< BackendGuards inside each other that hold it; under mutex_
  std::atomic<int> threads_{0};
  std::atomic<int> waiting_{0};
  bool closed_ = false;  ///< under mutex_
};

/// Holds a BackendLock for a scope.
class BackendGuard {
 public:
  /// Waits for the lock.
  explicit BackendGuard(BackendLock& lock);
  /// Takes the lock if that needs no waiting; else !*this.
  BackendGuard(BackendLock& lock, std::try_to_lock_t);
  ~BackendGuard();
  BackendGuard(const BackendGuard&) = delete;
  BackendGuard& operator=(const BackendGuard&) = delete;
  explicit operator bool() const { return has_; }

 private:
  BackendLock* held_ = nullptr;  ///< null where the lock is not shared
  bool has_ = true;
};

/// Releases all that the caller holds of a BackendLock for a scope, so that others, of other groups too, can do what he
/// waits for. Not inside finish steps.
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
/// destruction; sleeps while no call is under way. An error fails the group, so that its next caller gets it.
class ProgressThread {
 public:
  /// `backend` outlives it. Throws IoError.
  ProgressThread(Backend& backend, std::shared_ptr<BackendLock> lock);
  /// Joins the thread. In a forked child there is none.
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
