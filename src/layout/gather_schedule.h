#pragma once
// GatherSchedule: which unit to gather, wait for and release, and when. Decisions without memory: the copying store
// carries them out, `plan` counts what they take.
//
// A unit goes released -> gathering -> gathered -> released, or is resident and always whole. It is gathered just
// before use, ahead of it where the order of use is known, and released when the next unit is used unless it is
// needed again soon. Decisions depend on the history of calls alone, so that ranks with the same history begin the
// same gathers in the same order.
#include <cstdint>
#include <span>
#include <vector>

#include "layout/use_order.h"

namespace zero::layout {

struct GatherLimits {
  std::int64_t max_live_numel = INT64_MAX;   ///< gathering and gathered at a time, where use allows it
  std::int64_t max_reuse_numel = INT64_MAX;  ///< needed again within so many elements: kept
  std::int64_t window_numel = 0;             ///< gathered ahead at a time
};

class GatherSchedule {
 public:
  enum class State : std::uint8_t { kReleased, kGathering, kGathered, kResident };
  struct Command {
    enum Kind : std::uint8_t {
      kGather,   ///< take memory for the unit and begin to fill it
      kWait,     ///< until it is filled; then it may be read
      kRelease,  ///< nobody reads it: its memory is free
    };
    Kind kind;
    int unit;
    bool prefetched = false;  ///< kGather: ahead of use
    bool operator==(const Command&) const = default;
  };
  /// To be carried out in this order; valid until the next call.
  using Commands = std::span<const Command>;

  /// `resident[u]`: unit u is always whole.
  GatherSchedule(std::vector<std::int64_t> unit_numel, std::vector<bool> resident, GatherLimits limits);

  /// An operator is about to use `unit`: whole from here to unuse(). Phase: 0 forward, 1 backward.
  Commands use(int unit, int phase);
  /// The operator is done. Releases at most; also called as often as use() for operators with several units.
  Commands unuse(int unit);
  /// Whole from here to as many calls of unpin().
  Commands pin(int unit);
  Commands unpin(int unit);
  /// What was gathered is stale: releases all that is not in use.
  Commands publish();
  /// Waits for all that is under way.
  Commands quiesce();
  /// Of the last commands those from `first` on were not carried out, and will not be: as if they had not been
  /// given. A use or pin that they were for is over.
  void abandon(std::size_t first);

  void set_window(std::int64_t numel) { limits_.window_numel = numel; }
  std::int64_t window_numel() const { return limits_.window_numel; }

  State state(int unit) const { return units_[unit].state; }
  bool is_whole(int unit) const { return state(unit) == State::kGathered || state(unit) == State::kResident; }
  std::int64_t live_numel() const { return live_numel_; }  ///< gathering and gathered, residents apart
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
    int pins = 0;             ///< operators and scopes that need it whole
  };

  void begin();
  void make_whole(int unit);
  void gather(int unit, bool prefetched);
  void wait(int unit);
  void release(int unit);
  /// The unit was used before and another one is now: released unless it is needed again soon.
  void leave(int unit);
  void drop(int unit);
  bool make_room(std::int64_t numel, bool for_prefetch);
  int farthest_victim() const;
  void prefetch();

  GatherLimits limits_;
  UseOrder order_;
  std::vector<Unit> units_;
  std::vector<Command> commands_;
  int pinned_by_commands_ = -1;  ///< unit that the last call pinned
  int released_ = 0;             ///< units in that state
  std::int64_t live_numel_ = 0;
  std::int64_t peak_live_numel_ = 0;
  std::int64_t prefetching_numel_ = 0;
};

}  // namespace zero::layout
