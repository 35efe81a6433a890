#include "zero/speculative_update.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace zero::sharding {

SpeculativeUpdate::SpeculativeUpdate(const ShardedModel& model, ShardedOptimizer& optimizer, GradientReducer& reducer,
                                     Timeline& timeline)
    : model_(model),
      optimizer_(optimizer),
      reducer_(reducer),
      process_(::getpid()),
      thread_([this] { work(); }, "speculative update", timeline) {}

SpeculativeUpdate::~SpeculativeUpdate() {
  if (process_ != ::getpid()) return;
  const std::lock_guard lock(mutex_);
  is_open_ = false;
  is_spoilt_ = true;
  changed_.notify_all();
}

void SpeculativeUpdate::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_spoilt_ || !is_open_ || next_ < queue_.size(); });
    if (is_spoilt_ || next_ == queue_.size()) return;
    const int unit = queue_[next_++];
    lock.unlock();
    optimizer_.try_unit(unit, reducer_.sums());
    lock.lock();
  }
}

void SpeculativeUpdate::begin(const std::vector<double>& lr, double gradient_scale) {
  if (under_way_ && !is_spoilt()) return;
  drop();
  if (std::exchange(last_was_dropped_, false)) return;
  optimizer_.begin_try(lr, gradient_scale);
  {
    const std::lock_guard lock(mutex_);
    units_.resize(model_.units.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      unit.numel = model_.units[u].trainable ? reducer_.gradient_range(static_cast<int>(u)).numel() : 0;
      unit.added_numel = 0;
      unit.added.clear();
      unit.is_queued = false;
    }
    queue_.clear();
    next_ = 0;
    is_open_ = true;
    is_spoilt_ = false;
  }
  under_way_ = true;
  thread_.start();
}

void SpeculativeUpdate::add(int unit, Range range) {
  const std::lock_guard lock(mutex_);
  if (!is_open_ || is_spoilt_) return;
  Unit& its = units_[static_cast<std::size_t>(unit)];
  if (std::ranges::find(its.added, range.begin) != its.added.end()) return;
  its.added.push_back(range.begin);
  its.added_numel += range.numel();
  if (its.added_numel < its.numel || !its.was_active || its.is_queued) return;
  its.is_queued = true;
  queue_.push_back(unit);
  changed_.notify_all();
}

void SpeculativeUpdate::spoil(int unit) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_ || !units_[static_cast<std::size_t>(unit)].is_queued) return;
    is_spoilt_ = true;
    changed_.notify_all();
  }
  thread_.wait();  // also where it is spoilt already: it may still read these sums
}

bool SpeculativeUpdate::is_spoilt() {
  const std::lock_guard lock(mutex_);
  return is_spoilt_;
}

void SpeculativeUpdate::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    changed_.notify_all();
  }
  thread_.wait();
}

bool SpeculativeUpdate::finish(const std::vector<double>& lr, double gradient_scale) {
  const auto note_active = [this] {
    units_.resize(model_.units.size());
    for (std::size_t u = 0; u < units_.size(); ++u)
      units_[u].was_active =
          std::ranges::all_of(model_.units[u].parameters, [&](int p) { return optimizer_.is_active(p); });
  };
  if (!under_way_) {
    note_active();
    return false;
  }
  const auto is_active = [this](int unit) {
    const auto& parameters = model_.units[static_cast<std::size_t>(unit)].parameters;
    return std::ranges::all_of(parameters, [this](int p) { return optimizer_.is_active(p); });
  };
  // All reductions are over, and the queue is as it will be.
  const bool is_as_tried = !is_spoilt() && !queue_.empty() && optimizer_.would_repeat(lr, gradient_scale) &&
                           std::ranges::all_of(queue_, is_active);
  if (!is_as_tried) {
    drop();
    note_active();
    return false;
  }
  stop();
  thread_.rethrow();
  optimizer_.keep_try(reducer_.sums(), [this](int unit) { return units_[static_cast<std::size_t>(unit)].is_queued; });
  under_way_ = false;
  ++counts_.kept;
  note_active();
  return true;
}

void SpeculativeUpdate::drop() {
  if (!under_way_ || process_ != ::getpid()) return;
  {
    const std::lock_guard lock(mutex_);
    is_spoilt_ = true;
    changed_.notify_all();
  }
  thread_.wait();
  stop();
  under_way_ = false;
  last_was_dropped_ = !queue_.empty();
  counts_.undone += last_was_dropped_ ? 1 : 0;
  optimizer_.forget_try();
  thread_.rethrow();
}

}  // namespace zero::sharding
