#include "layout/gather_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace zero::layout {

GatherSchedule::GatherSchedule(std::vector<std::int64_t> unit_numel, std::vector<bool> resident, GatherLimits limits)
    : limits_(limits), order_(unit_numel) {
  ZERO_CHECK(resident.size() == unit_numel.size(), "{} units, {} residents", unit_numel.size(), resident.size());
  for (std::size_t u = 0; u < unit_numel.size(); ++u) {
    units_.push_back({.numel = unit_numel[u], .state = resident[u] ? State::kResident : State::kReleased});
    released_ += resident[u] ? 0 : 1;
  }
  commands_.reserve(3 * units_.size() + 2);
}

GatherSchedule::Commands GatherSchedule::use(int unit, int phase) {
  begin();
  const int before = order_.current();
  order_.use(unit, phase);
  ++units_[unit].pins;  // first, so that making room does not release it
  pinned_by_commands_ = unit;
  if (before >= 0 && before != unit) leave(before);
  const bool resident = state(unit) == State::kResident;
  if (!resident) make_whole(unit);
  if (!resident || before != unit) prefetch();
  return commands_;
}

GatherSchedule::Commands GatherSchedule::unuse(int unit) {
  begin();
  // An operator that used two units leaves the first one only now.
  if (--units_[unit].pins == 0 && unit != order_.current()) leave(unit);
  return commands_;
}

GatherSchedule::Commands GatherSchedule::pin(int unit) {
  begin();
  ++units_[unit].pins;
  pinned_by_commands_ = unit;
  make_whole(unit);
  return commands_;
}

GatherSchedule::Commands GatherSchedule::unpin(int unit) {
  begin();
  if (--units_[unit].pins == 0) drop(unit);
  return commands_;
}

GatherSchedule::Commands GatherSchedule::publish() {
  begin();
  for (std::size_t u = 0; u < units_.size(); ++u) drop(static_cast<int>(u));
  return commands_;
}

GatherSchedule::Commands GatherSchedule::quiesce() {
  begin();
  for (std::size_t u = 0; u < units_.size(); ++u) wait(static_cast<int>(u));
  return commands_;
}

void GatherSchedule::abandon(std::size_t first) {
  while (commands_.size() > first) {
    const Command command = commands_.back();
    commands_.pop_back();
    Unit& unit = units_[command.unit];
    switch (command.kind) {
      case Command::kGather:
        unit.state = State::kReleased;
        ++released_;
        live_numel_ -= unit.numel;
        if (unit.prefetched) prefetching_numel_ -= unit.numel;
        break;
      case Command::kWait:
        unit.state = State::kGathering;
        if (unit.prefetched) prefetching_numel_ += unit.numel;
        break;
      case Command::kRelease:
        unit.state = State::kGathered;
        --released_;
        live_numel_ += unit.numel;
        break;
    }
  }
  if (pinned_by_commands_ >= 0) --units_[pinned_by_commands_].pins;
  pinned_by_commands_ = -1;
}

void GatherSchedule::begin() {
  commands_.clear();
  pinned_by_commands_ = -1;
}

void GatherSchedule::make_whole(int unit) {
  if (state(unit) == State::kReleased) {
    make_room(units_[unit].numel, /*for_prefetch=*/false);
    gather(unit, /*prefetched=*/false);
  }
  wait(unit);
}

void GatherSchedule::gather(int index, bool prefetched) {
  Unit& unit = units_[index];
  unit.state = State::kGathering;
  unit.prefetched = prefetched;
  --released_;
  live_numel_ += unit.numel;
  peak_live_numel_ = std::max(peak_live_numel_, live_numel_);
  if (prefetched) prefetching_numel_ += unit.numel;
  commands_.push_back({Command::kGather, index, prefetched});
}

void GatherSchedule::wait(int index) {
  Unit& unit = units_[index];
  if (unit.state != State::kGathering) return;
  if (unit.prefetched) prefetching_numel_ -= unit.numel;
  unit.state = State::kGathered;
  commands_.push_back({Command::kWait, index});
}

void GatherSchedule::release(int index) {
  Unit& unit = units_[index];
  unit.state = State::kReleased;
  ++released_;
  live_numel_ -= unit.numel;
  commands_.push_back({Command::kRelease, index});
}

void GatherSchedule::leave(int index) {
  if (state(index) != State::kGathered || units_[index].pins > 0) return;
  const std::int64_t distance = order_.reuse_distance(index);
  const bool soon = distance >= 0 && distance <= limits_.max_reuse_numel;
  if (!soon || live_numel_ > limits_.max_live_numel) release(index);
}

void GatherSchedule::drop(int index) {
  wait(index);
  if (state(index) == State::kGathered && units_[index].pins == 0) release(index);
}

/// Releases units that are not in use, those needed latest first, until `numel` more fit.
bool GatherSchedule::make_room(std::int64_t numel, bool for_prefetch) {
  while (live_numel_ + numel > limits_.max_live_numel) {
    const int victim = for_prefetch ? -1 : farthest_victim();  // looking ahead never costs what is live
    if (victim < 0) return false;
    release(victim);
  }
  return true;
}

int GatherSchedule::farthest_victim() const {
  int victim = -1;
  std::int64_t farthest = -1;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].state != State::kGathered || units_[u].pins > 0) continue;
    const std::int64_t known = order_.reuse_distance(static_cast<int>(u));
    const std::int64_t distance = known < 0 ? INT64_MAX : known;
    if (victim >= 0 && distance <= farthest) continue;
    victim = static_cast<int>(u);
    farthest = distance;
  }
  return victim;
}

/// Begins to gather the units that come next, as far as the limits allow.
void GatherSchedule::prefetch() {
  if (released_ == 0) return;  // whole already, or under way: nothing to look for
  UseOrder::Walk walk(order_);
  for (int ahead = 1; prefetching_numel_ < limits_.window_numel; ++ahead) {
    const auto [next, next_phase] = walk.next();
    if (next < 0 || next == order_.current() || ahead > static_cast<int>(units_.size())) return;
    // After backward comes a step, which makes everything gathered before it stale.
    if (next_phase < order_.current_phase()) return;
    if (state(next) != State::kReleased) continue;
    const std::int64_t numel = units_[next].numel;
    if (prefetching_numel_ + numel > limits_.window_numel || !make_room(numel, /*for_prefetch=*/true)) return;
    gather(next, /*prefetched=*/true);
  }
}

}  // namespace zero::layout
