#include "sharding/device_units.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace zero::sharding {

using storage::FlatBuffer;

DeviceUnits::DeviceUnits(ShardedModel& model, storage::Ledger& ledger)
    : model_(model),
      ledger_(ledger),
      stream_(model.module_device),
      pool_(ledger, MemoryKind::kGather, [this](std::int64_t numel) { return make(MemoryKind::kGather, numel); }),
      places_(model.units.size()) {}

DeviceUnits::~DeviceUnits() {
  // The memory goes back to its allocator in the order of the stream that it was made in; others may still read it.
  const auto is_in_order = [this](const c10::Stream& user) { return makers_.size() == 1 && makers_.front() == user; };
  try {
    for (const Place& place : places_) {
      for (const c10::Stream& user : place.users) {
        if (is_in_order(user)) continue;
        c10::Event end(user.device_type());
        end.record(user);
        end.synchronize();
      }
    }
    for (const auto& [buffer, left] : left_) {
      for (std::size_t i = 0; i < left.count; ++i) {
        if (!is_in_order(left.users[i].stream)) left.users[i].end.synchronize();
      }
    }
    finish();
  } catch (const std::exception& error) {  // a device that has failed
    base::log_error("{}", error.what());
  }
}

FlatBuffer DeviceUnits::make(MemoryKind kind, std::int64_t numel) {
  FlatBuffer memory = FlatBuffer::make_private(ledger_, kind, model_.param_dtype, numel, model_.module_device);
  const c10::Stream maker = stream_.caller();
  if (std::ranges::find(makers_, maker) == makers_.end()) makers_.push_back(maker);
  stream_.wait_for_caller();  // which fills it with zeros, and had the memory before
  return memory;
}

void DeviceUnits::take(int unit) {
  Place& place = places_[unit];
  place.memory = pool_.take(model_.units[unit].numel);
  place.users.clear();
  place.timed.reset();
  Left& left = left_[place.memory];
  for (std::size_t i = 0; i < left.count; ++i) stream_.wait_for(left.users[i].end);
  left.count = 0;
}

void DeviceUnits::take_for_good(int unit) {
  Place& place = places_[unit];
  place.own = std::make_unique<FlatBuffer>(make(MemoryKind::kParameters, model_.units[unit].numel));
  place.memory = place.own.get();
}

at::Tensor DeviceUnits::part(int unit, Range range) const {
  return places_[unit].memory->view(range.begin, range.numel());
}

void DeviceUnits::upload(int unit, Range range, const void* low) {
  if (range.empty()) return;
  const at::NoGradGuard no_grad;
  Place& place = places_[unit];
  for (const c10::Stream& user : place.users) stream_.wait_for(user);
  place.users.clear();
  const bool is_timed = times_ && !place.own;
  if (is_timed && !place.timed) {
    place.timed.emplace(TimedCopy{times_->make_event(), times_->make_event()});
    stream_.mark(place.timed->begin);
  }
  stream_.copy(part(unit, range), model_.view(low, model_.param_dtype, range.numel()));
  if (!place.arrived) place.arrived.emplace(stream_.make_event());
  stream_.mark(*place.arrived);
  if (!is_timed) return;
  place.timed->numel += range.numel();
  stream_.mark(place.timed->end);
}

void DeviceUnits::time_uploads(const DeviceTimes* times) {
  if (times_ == times) return;
  times_ = times;
  for (Place& place : places_) place.timed.reset();
}

void DeviceUnits::use(int unit) {
  Place& place = places_[unit];
  if (!place.arrived) return;  // a unit of no elements
  const c10::Stream user = stream_.caller();
  if (std::ranges::find(place.users, user) != place.users.end()) return;
  place.arrived->block(user);
  place.users.push_back(user);
}

void DeviceUnits::give_back(int unit, bool host_is_reused) {
  Place& place = places_[unit];
  if (host_is_reused && place.arrived) place.arrived->synchronize();
  Left& left = left_[place.memory];
  for (const c10::Stream& user : place.users) {
    if (left.count == left.users.size()) left.users.push_back({user, stream_.make_event()});
    User& one = left.users[left.count++];
    one.stream = user;
    one.end.record(user);
  }
  place.users.clear();
  pool_.give_back(std::exchange(place.memory, nullptr));
}

void DeviceUnits::download(int unit, Range range, void* low) {
  if (range.empty()) return;
  const at::NoGradGuard no_grad;
  use(unit);
  for (const c10::Stream& user : places_[unit].users) stream_.wait_for(user);
  stream_.copy(model_.view(low, model_.param_dtype, range.numel()), part(unit, range));
  stream_.finish();
}

}  // namespace zero::sharding
