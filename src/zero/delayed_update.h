#pragma once
// DelayedUpdate: the update of a step runs in a thread of its own while the next step computes (ZeRO-Offload's one-step
// delayed parameter update). The gradients of step t are of the parameters that the update of step t - 2 has made:
//
//   step t      its sums are handed over; what the update of step t - 1 has made goes into the store; begin(t)
//   meanwhile   forward, backward and reductions of step t + 1, on parameters without update t
#include <sys/types.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "zero/gradient_reducer.h"
#include "zero/sharded_optimizer.h"

namespace zero::sharding {

/// For one thread, beside its own. Functions are local.
class DelayedUpdate {
 public:
  DelayedUpdate(ShardedOptimizer& optimizer, GradientReducer& reducer, Timeline& timeline);
  /// Waits for the update that is under way, and drops it.
  ~DelayedUpdate();
  DelayedUpdate(const DelayedUpdate&) = delete;
  DelayedUpdate& operator=(const DelayedUpdate&) = delete;

  /// Takes the reducer's sums and begins to update by them, while nothing is pending(). Arguments as
  /// ShardedOptimizer::update.
  void begin(const std::vector<double>& lr, double gradient_scale);
  /// True from begin() to finish().
  bool pending() const { return sums_ != nullptr; }
  /// Returns when no update runs: the optimizer may be looked at.
  void wait();
  /// wait(), and this rank's part of the store has the new values: nobody reads it, and publish() is to follow. Throws
  /// what the update has thrown, IoError where states are on a disk.
  void finish();

 private:
  void run();

  ShardedOptimizer& optimizer_;
  GradientReducer& reducer_;
  Timeline& timeline_;
  GradientSums* sums_ = nullptr;
  const pid_t process_;  ///< a forked child has no thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_wanted_ = false, ends_ = false;
  int compute_threads_ = 1;  ///< of who began it
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace zero::sharding
