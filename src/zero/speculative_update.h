#pragma once
// SpeculativeUpdate: the update of a step begins in backward, unit by unit as their sums are complete, before anybody
// knows whether gradients are finite and need no clipping. If so it is taken at the end of the window, else undone: the
// bits are those of an update that has waited. States are on a disk, whose work goes on beside backward.
//
//   begin      in the backward of a window's last micro-batch, with the rates and the scale of its step
//   add        the reducer says what it has summed; a unit that is complete is updated in a thread, into second places:
//              of states on the disk (storage/disk_states.h), of this rank's parameters in memory
//   finish     the step is taken with those rates and that scale: what is missing is updated, and the second places are
//              the first from here on
//   drop       instead: the second places are forgotten
#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "zero/gradient_reducer.h"
#include "zero/sharded_optimizer.h"
#include "zero/update_thread.h"

namespace zero::sharding {

/// For one thread, beside its own and those of the reducer. Functions are local.
class SpeculativeUpdate {
 public:
  SpeculativeUpdate(const ShardedModel& model, ShardedOptimizer& optimizer, GradientReducer& reducer,
                    Timeline& timeline);
  /// Waits for what is under way, and drops it.
  ~SpeculativeUpdate();
  SpeculativeUpdate(const SpeculativeUpdate&) = delete;
  SpeculativeUpdate& operator=(const SpeculativeUpdate&) = delete;

  /// Arguments as ShardedOptimizer::update. Does nothing while one is under way, and after a step whose update was
  /// dropped: another one seldom fares better. Throws IoError.
  void begin(const std::vector<double>& lr, double gradient_scale);
  /// The reducer's sums of a part of a unit are complete. Any thread.
  void add(int unit, Range range);
  /// Before sums of a unit are changed: what was made of them does not count. Any thread.
  void spoil(int unit);
  /// True if the update is done, as ShardedOptimizer::update would have; else nothing has happened, and nothing is
  /// under way. Throws IoError.
  bool finish(const std::vector<double>& lr, double gradient_scale);
  /// Nothing has happened. Throws IoError.
  void drop();

  struct Counts {
    std::int64_t kept = 0, undone = 0;  ///< updates
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Unit {
    std::int64_t numel = 0;           ///< of the sums that this rank has
    std::int64_t added_numel = 0;     ///< of those that are complete
    std::vector<std::int64_t> added;  ///< where they begin
    bool is_queued = false;
    bool was_active = false;  ///< all of it, in the last step
  };

  void work();
  bool is_spoilt();
  /// Returns when the thread does nothing, and will do nothing more.
  void stop();

  const ShardedModel& model_;
  ShardedOptimizer& optimizer_;
  GradientReducer& reducer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Unit> units_;
  std::vector<int> queue_;  ///< units, in the order in which they are complete
  std::size_t next_ = 0;    ///< in queue_
  bool is_open_ = false;    ///< the queue grows
  bool is_spoilt_ = false;  ///< what was made does not count
  bool under_way_ = false;  ///< from begin() to finish() or drop(); of the caller's thread
  bool last_was_dropped_ = false;
  Counts counts_;
  const pid_t process_;  ///< a forked child has no thread
  UpdateThread thread_;  ///< last: ends first
};

}  // namespace zero::sharding
