#pragma once
// Moving data while the caller computes: a thread that progresses a backend, and whose turn it is to use it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace zero::comm {

class Backend;

/// Backends know nothing of threads. Whoever calls one has its turn, once somebody else may call it too.
/// Shared by a backend, its works and its progress thread; by all groups of a process over MPI, which lets in
/// one thread at a time.
class Turns {
 public:
  /// True while some progress thread runs: only then do turns cost anything.
  bool shared() const { return threads_.load(std::memory_order_relaxed) > 0; }
  /// Waits for a progress thread's turn to end; it gets no other one.
  void close();
  /// True when a caller waits for its turn: a progress thread then leaves it to him.
  bool wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class Turn;
  friend class TurnPause;
  friend class ProgressThread;
  std::recursive_mutex mutex_;  ///< a finish step may call into the group
  int depth_ = 0;               ///< Turns inside each other that hold it; under mutex_
  std::atomic<int> threads_{0};
  std::atomic<int> waiting_{0};
  bool closed_ = false;  ///< under mutex_
};

/// A caller's turn, for a scope.
class Turn {
 public:
  /// Waits for it.
  explicit Turn(Turns& turns);
  /// Takes it if that needs no waiting; else !*this.
  Turn(Turns& turns, std::try_to_lock_t);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return has_; }

 private:
  Turns* held_ = nullptr;  ///< null where turns are not shared
  bool has_ = true;
};

/// Gives up all turns of the caller for a scope: others, of other groups too, may have what he waits for. Not
/// inside finish steps.
class TurnPause {
 public:
  explicit TurnPause(Turns& turns);
  ~TurnPause();
  TurnPause(const TurnPause&) = delete;
  TurnPause& operator=(const TurnPause&) = delete;

 private:
  Turns& turns_;
  int depth_ = 0;
};

/// Runs `backend`'s data phases as soon as its peers allow, one finish step at a time, from construction to
/// destruction; sleeps while no call is under way. An error fails the group, so that its next caller gets it.
class ProgressThread {
 public:
  /// `backend` outlives it. Throws IoError.
  ProgressThread(Backend& backend, std::shared_ptr<Turns> turns);
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
  const std::shared_ptr<Turns> turns_;
  std::atomic<std::uint32_t> posts_{0};
  std::atomic<bool> ending_{false};
  const int pid_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace zero::comm
