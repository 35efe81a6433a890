#include "sharding/late_units.h"

#include <fmt/format.h>
#include <unistd.h>

#include "sharding/plan/transfers.h"
#include "zero/errors.h"

namespace zero::sharding {
namespace {

std::vector<std::int64_t> missing_numels(const ShardedModel& model) {
  std::vector<std::int64_t> numels;
  for (std::size_t u = 0; u < model.units.size(); ++u)
    numels.push_back(model.units[u].numel - model.shard_of(static_cast<int>(u)).numel());
  return numels;
}

}  // namespace

LateUnits::LateUnits(const ShardedModel& model, Timeline& timeline, Source& source)
    : model_(model),
      timeline_(timeline),
      source_(source),
      process_(::getpid()),
      schedule_(missing_numels(model), most_late_numel(model.param_dtype)) {}

std::string LateUnits::why_released(const std::string& name) {
  return fmt::format(
      "parameter '{}' has been updated, and its values may still be on their way from other ranks, so its memory "
      "cannot be read or written directly; use it in an operator, call Engine::wait_for_parameters() first, or set "
      "zerotorch.overlap_all_gather to \"never\"",
      name);
}

void LateUnits::begin(std::span<const int> units) {
  const std::lock_guard lock(mutex_);
  schedule_.begin(units);
  count_.store(static_cast<int>(units.size()), std::memory_order_release);
  go_on();
}

void LateUnits::use(int unit) {
  if (::getpid() != process_) {
    throw ModelError(
        "a forked process uses parameters whose values are still on their way to its parent; call "
        "Engine::wait_for_parameters() before it is started, or set zerotorch.overlap_all_gather to \"never\"");
  }
  const std::lock_guard lock(mutex_);
  schedule_.use(unit);
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
  for (const int unit : schedule_.order()) {
    complete_locked(unit);
    go_on();
  }
}

void LateUnits::complete_locked(int unit) {
  if (!is_late(unit)) return;
  if (schedule_.state(unit) == LateSchedule::State::kWanted) fetch(unit);
  {
    const Stopwatch watch(timeline_, &StepBreakdown::gather, model_.units[static_cast<std::size_t>(unit)].name);
    source_.wait(unit);
  }
  schedule_.complete(unit);
  source_.attach(unit);
  count_.fetch_sub(1, std::memory_order_release);
}

void LateUnits::fetch(int unit) {
  source_.fetch(unit);
  schedule_.fetched(unit);
}

void LateUnits::go_on() {
  for (int unit = schedule_.oldest_coming(); unit >= 0 && source_.moved(unit); unit = schedule_.oldest_coming())
    schedule_.moved(unit);
  for (int unit = schedule_.next_to_fetch(); unit >= 0; unit = schedule_.next_to_fetch()) fetch(unit);
}

}  // namespace zero::sharding
