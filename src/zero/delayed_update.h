#pragma once
// DelayedUpdate: the update of a step runs in a thread of its own while the next step computes (ZeRO-Offload's one-step
// delayed parameter update). The gradients of step t are of the parameters that the update of step t - 2 has made:
//
//   step t      its sums are handed over; what the update of step t - 1 has made goes into the store; begin(t)
//   meanwhile   forward, backward and reductions of step t + 1, on parameters without update t
#include <vector>

#include "zero/gradient_reducer.h"
#include "zero/sharded_optimizer.h"
#include "zero/update_thread.h"

namespace zero::sharding {

/// For one thread, beside its own. Functions are local. When it goes it waits for the update that is under way, and
/// drops it.
class DelayedUpdate {
 public:
  DelayedUpdate(ShardedOptimizer& optimizer, GradientReducer& reducer, Timeline& timeline);

  /// Takes the reducer's sums and begins to update by them, while nothing is pending(). Arguments as
  /// ShardedOptimizer::update.
  void begin(const std::vector<double>& lr, double gradient_scale);
  /// True from begin() to finish().
  bool pending() const { return sums_ != nullptr; }
  /// Returns when no update runs: the optimizer may be looked at.
  void wait() { thread_.wait(); }
  /// wait(), and this rank's part of the store has the new values: nobody reads it, and publish() is to follow. Throws
  /// what the update has thrown, IoError where states are on a disk.
  void finish();

 private:
  ShardedOptimizer& optimizer_;
  GradientReducer& reducer_;
  GradientSums* sums_ = nullptr;
  UpdateThread thread_;  ///< last: ends first
};

}  // namespace zero::sharding
