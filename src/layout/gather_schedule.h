#pragma once
// GatherSchedule: decides which unit to gather, wait for and release, and when. It holds no memory: the copying store
// executes its commands, and `plan` counts their memory.
//
// A unit goes released -> gathering -> gathered -> released, or is resident and always whole. It is gathered just
// before use, or ahead of it when the order of use is known, and released when the next unit is used unless it is
// needed again soon. Decisions depend only on the history of calls, so that ranks with the same history begin the same
// gathers in the same order.
#include <cstdint>
#include <span>
#include <vector>

#include "layout/use_order.h"

namespace zero::layout {

struct GatherLimits {
  std::int64_t max_live_numel = INT64_MAX;   ///< most elements gathering or gathered at once; use may exceed it
  std::int64_t max_reuse_numel = INT64_MAX;  ///< keeps a unit that is needed again within this many elements
  std::int64_t window_numel = 0;             ///< most elements being prefetched at once
};

class GatherSchedule {
 public:
  enum class State : std::uint8_t { kReleased, kGathering, kGathered, kResident };
  struct Command {
    enum Kind : std::uint8_t {
      kGather,   ///< take memory for the unit and begin to fill it
      kWait,     ///< wait until it is filled; then it may be read
      kRelease,  ///< free its memory: nobody reads it
    };
    Kind kind;
    int unit;
    bool prefetched = false;  ///< kGather: ahead of use
    bool operator==(const Command&) const = default;
  };
  /// Execute in this order; valid until the next call.
  using Commands = std::span<const Command>;

  /// `resident[u]`: unit u is always whole.
  GatherSchedule(std::vector<std::int64_t> unit_numel, std::vector<bool> resident, GatherLimits limits);

  /// Call before an operator uses `unit`, which is then whole until unuse(). `phase`: 0 forward, 1 backward.
  Commands use(int unit, int phase);
  /// Call after the operator, as often as use() if it has several units. Issues no gathers, only releases.
  Commands unuse(int unit);
  /// Keeps the unit whole until as many calls of unpin().
  Commands pin(int unit);
  Commands unpin(int unit);
  /// Releases everything that is not in use, because gathered values are stale.
  Commands publish();
  /// Waits for all gathers under way.
  Commands quiesce();
  /// Undoes the last call's commands from `first` on, which were not and will not be executed. Ends the use or pin that
  /// they were for.
  void abandon(std::size_t first);

  void set_window(std::int64_t numel) { limits_.window_numel = numel; }
  std::int64_t window_numel() const { return limits_.window_numel; }

  State state(int unit) const { return units_[unit].state; }
  bool is_whole(int unit) const { return state(unit) == State::kGathered || state(unit) == State::kResident; }
  std::int64_t live_numel() const { return live_numel_; }  ///< gathering and gathered, without residents
  std::int64_t peak_live_numel() const { return peak_live_numel_; }
  void reset_peak() { peak_live_numel_ = live_numel_; }
  std::int64_t prefetching_numel() const { return prefetching_numel_; }
  /// The last use; unit -1 before the first.
  UseOrder::Prediction current() const { return {order_.current(), order_.current_phase()}; }

 private:
  struct Unit {
    std::int64_t numel = 0;
    State state = State::kReleased;
    bool prefetched = false;  ///< while gathering
    int pins = 0;             ///< number of operators and scopes that need it whole
  };

  void begin();
  void make_whole(int unit);
  void gather(int unit, bool prefetched);
  void wait(int unit);
  void release(int unit);
  /// Called when another unit is used after this one: releases it unless it is needed again soon.
  void leave(int unit);
  void drop(int unit);
  bool make_room(std::int64_t numel, bool for_prefetch);
  int farthest_victim() const;
  void prefetch();

  GatherLimits limits_;
  UseOrder order_;
  std::vector<Unit> units_;
  std::vector<Command> commands_;
  int pinned_by_commands_ = -1;  ///< unit pinned by the last call
  int released_ = 0;             ///< units in that state
  std::int64_t live_numel_ = 0;
  std::int64_t peak_live_numel_ = 0;
  std::int64_t prefetching_numel_ = 0;
};

}  // namespace zero::layout
