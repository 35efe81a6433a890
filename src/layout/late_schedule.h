#pragma once
// LateSchedule: decides which late units to fetch, and when. It holds no memory and moves nothing: LateUnits executes
// its decisions, and the simulation of a step plays them.
//
// A unit is late from a publication until its values have been waited for. Units are fetched in the order in which they
// were first used after the publication before; a few at a time, so that what is needed first comes first.
#include <cstdint>
#include <span>
#include <vector>

namespace zero::layout {

class LateSchedule {
 public:
  enum class State : std::uint8_t { kThere, kWanted, kComing, kMoved };

  /// `missing_numel[u]`: elements of unit u that other ranks have. `most_numel`: further units are not fetched while so
  /// many are coming, except that kLeastUnits always are.
  LateSchedule(std::vector<std::int64_t> missing_numel, std::int64_t most_numel);

  /// Which may be late, in the order in which they are fetched first.
  void set_units(std::vector<int> units) { order_ = std::move(units); }
  const std::vector<int>& order() const { return order_; }
  /// These units have new values elsewhere. No unit is late when it is called.
  void begin(std::span<const int> units);
  /// Notes that the program uses a unit: what was used first comes first the next time.
  void use(int unit);

  State state(int unit) const { return states_[static_cast<std::size_t>(unit)]; }
  bool is_late(int unit) const { return state(unit) != State::kThere; }
  /// The unit that was asked for first of those that are coming; -1: none are.
  int oldest_coming() const { return coming_.empty() ? -1 : coming_.front(); }
  /// The next one to fetch; -1: none now.
  int next_to_fetch();

  void fetched(int unit);   ///< its fetch has begun
  void moved(int unit);     ///< all of it has come
  void complete(int unit);  ///< it is waited for, and in use from here on

 private:
  // What is asked for together comes together: as much as keeps a network busy, and not more.
  static constexpr std::size_t kLeastUnits = 2;

  std::vector<std::int64_t> missing_numel_;  ///< by unit
  std::int64_t most_numel_;
  std::vector<State> states_;  ///< by unit
  std::vector<int> order_;
  std::vector<int> used_;          ///< late units, by their first uses since the last publication
  std::size_t next_ = 0;           ///< in order_: not looked at yet
  std::vector<int> coming_;        ///< in the order in which they were asked for
  std::int64_t coming_numel_ = 0;  ///< other ranks' elements
};

}  // namespace zero::layout
