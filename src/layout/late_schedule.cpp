#include "layout/late_schedule.h"

#include <algorithm>
#include <utility>

namespace zero::layout {

LateSchedule::LateSchedule(std::vector<std::int64_t> missing_numel, std::int64_t most_numel)
    : missing_numel_(std::move(missing_numel)), most_numel_(most_numel), states_(missing_numel_.size()) {}

void LateSchedule::begin(std::span<const int> units) {
  std::vector<int> order = std::exchange(used_, {});
  for (const int unit : order_) {  // what was not used keeps its place behind
    if (std::ranges::find(order, unit) == order.end()) order.push_back(unit);
  }
  order_ = std::move(order);
  for (const int unit : units) states_[static_cast<std::size_t>(unit)] = State::kWanted;
  next_ = 0;
}

void LateSchedule::use(int unit) {
  if (is_late(unit)) used_.push_back(unit);
}

int LateSchedule::next_to_fetch() {
  for (; next_ < order_.size() && (coming_.size() < kLeastUnits || coming_numel_ < most_numel_); ++next_) {
    if (state(order_[next_]) == State::kWanted) return order_[next_];
  }
  return -1;
}

void LateSchedule::fetched(int unit) {
  states_[static_cast<std::size_t>(unit)] = State::kComing;
  coming_.push_back(unit);
  coming_numel_ += missing_numel_[static_cast<std::size_t>(unit)];
}

void LateSchedule::moved(int unit) {
  states_[static_cast<std::size_t>(unit)] = State::kMoved;
  std::erase(coming_, unit);
  coming_numel_ -= missing_numel_[static_cast<std::size_t>(unit)];
}

void LateSchedule::complete(int unit) {
  if (state(unit) == State::kComing) moved(unit);
  states_[static_cast<std::size_t>(unit)] = State::kThere;
}

}  // namespace zero::layout
