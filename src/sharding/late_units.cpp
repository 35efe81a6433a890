#include "sharding/late_units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "zero/errors.h"

namespace zero::sharding {
namespace {

// What is asked for together comes together: as much as keeps a network busy, and not more.
constexpr std::size_t kMostNbytes = 4 << 20;
constexpr std::size_t kLeastUnits = 2;

}  // namespace

LateUnits::LateUnits(const ShardedModel& model, Timeline& timeline, Source& source)
    : model_(model),
      timeline_(timeline),
      source_(source),
      process_(::getpid()),
      states_(model.units.size(), State::kThere) {}

std::string LateUnits::why_released(const std::string& name) {
  return fmt::format(
      "parameter '{}' has been updated, and its values may still be on their way from other ranks, so its memory "
      "cannot be read or written directly; use it in an operator, call Engine::wait_for_parameters() first, or set "
      "zerotorch.overlap_all_gather to \"never\"",
      name);
}

void LateUnits::begin(std::span<const int> units) {
  const std::lock_guard lock(mutex_);
  sort_by_use();
  for (const int unit : units) states_[static_cast<std::size_t>(unit)] = State::kWanted;
  count_.store(static_cast<int>(units.size()), std::memory_order_release);
  next_ = 0;
  go_on();
}

/// What was used first comes first the next time; what was not used keeps its place behind.
void LateUnits::sort_by_use() {
  std::vector<int> order = std::exchange(used_, {});
  for (const int unit : order_) {
    if (std::ranges::find(order, unit) == order.end()) order.push_back(unit);
  }
  order_ = std::move(order);
}

void LateUnits::use(int unit) {
  if (::getpid() != process_) {
    throw ModelError(
        "a forked process uses parameters whose values are still on their way to its parent; call "
        "Engine::wait_for_parameters() before it is started, or set zerotorch.overlap_all_gather to \"never\"");
  }
  const std::lock_guard lock(mutex_);
  if (is_late(unit)) used_.push_back(unit);
  complete_locked(unit);
  go_on();
}

void LateUnits::complete(int unit) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(mutex_);
  complete_locked(unit);
}

void LateUnits::complete_all() {
  if (count_.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(mutex_);
  for (const int unit : order_) {
    complete_locked(unit);
    go_on();
  }
}

void LateUnits::complete_locked(int unit) {
  State& state = states_[static_cast<std::size_t>(unit)];
  if (state == State::kThere) return;
  if (state == State::kWanted) fetch(unit);
  {
    const Stopwatch watch(timeline_, &StepBreakdown::gather, model_.units[static_cast<std::size_t>(unit)].name);
    source_.wait(unit);
  }
  if (state == State::kComing) note_moved(unit);
  state = State::kThere;
  source_.attach(unit);
  count_.fetch_sub(1, std::memory_order_release);
}

std::int64_t LateUnits::missing_numel(int unit) const {
  return model_.units[static_cast<std::size_t>(unit)].numel - model_.shard_of(unit).numel();
}

void LateUnits::fetch(int unit) {
  source_.fetch(unit);
  states_[static_cast<std::size_t>(unit)] = State::kComing;
  coming_.push_back(unit);
  coming_numel_ += missing_numel(unit);
}

void LateUnits::note_moved(int unit) {
  states_[static_cast<std::size_t>(unit)] = State::kMoved;
  std::erase(coming_, unit);
  coming_numel_ -= missing_numel(unit);
}

void LateUnits::go_on() {
  while (!coming_.empty() && source_.moved(coming_.front())) note_moved(coming_.front());
  const auto most_numel = static_cast<std::int64_t>(kMostNbytes / element_nbytes(model_.param_dtype));
  for (; next_ < order_.size() && (coming_.size() < kLeastUnits || coming_numel_ < most_numel); ++next_) {
    if (states_[static_cast<std::size_t>(order_[next_])] == State::kWanted) fetch(order_[next_]);
  }
}

}  // namespace zero::sharding
