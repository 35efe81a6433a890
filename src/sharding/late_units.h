#pragma once
// LateUnits: units of a store that are always whole and get their updated values from other ranks while the program
// goes on. A publication announces this rank's shards and returns; the others' are fetched unit by unit, in the order
// in which the units were first used after the last one, so that the next forward has to wait for few of them.
//
//   there    as in a store that waits
//   late     its values are wanted, on their way, or there but not attached: the parameters are released, so that a raw
//            access throws; an operator waits for them
//
// A store asks before each use, and completes what is late before anything else reads or writes parameters: a scope in
// pin(), the end of a step, checkpoints and loads in quiesce(), the end of the engine in keep_alive(), and the program
// in finish_publication().
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layout/late_schedule.h"
#include "sharding/sharded_model.h"
#include "sharding/timeline.h"

namespace zero::sharding {

/// Safe for several threads. Functions are local, and throw CommError.
class LateUnits {
 public:
  /// How values come, for one thread at a time. Functions are local.
  class Source {
   public:
    virtual ~Source() = default;
    /// Begins to fetch what this rank has to.
    virtual void fetch(int unit) = 0;
    /// True when that has come. Never blocks.
    virtual bool moved(int unit) = 0;
    /// Returns when the whole unit is in memory.
    virtual void wait(int unit) = 0;
    /// Its parameters may be read.
    virtual void attach(int unit) = 0;
  };

  LateUnits(const ShardedModel& model, Timeline& timeline, Source& source);

  /// Which may be late, in the order in which they are fetched first. Before anything else.
  void set_units(std::vector<int> units) { schedule_.set_units(std::move(units)); }
  /// These units, whose parameters the caller has released, have new values elsewhere. After complete_all().
  void begin(std::span<const int> units);
  /// Before an operator uses a unit. Costs next to nothing while nothing is late.
  void before_use(int unit) {
    if (count_.load(std::memory_order_acquire) > 0) use(unit);
  }
  /// Its parameters are attached when it returns.
  void complete(int unit);
  void complete_all();
  bool is_late(int unit) const { return schedule_.is_late(unit); }
  /// Units that may be late, in which order they are fetched.
  const std::vector<int>& order() const { return schedule_.order(); }
  /// What a raw access to a late parameter throws.
  static std::string why_released(const std::string& name);

 private:
  using LateSchedule = layout::LateSchedule;

  void use(int unit);
  void fetch(int unit);
  void go_on();
  void complete_locked(int unit);

  const ShardedModel& model_;
  Timeline& timeline_;
  Source& source_;
  const int process_;
  std::mutex mutex_;
  LateSchedule schedule_;
  std::atomic<int> count_{0};  ///< of late units
};

}  // namespace zero::sharding
