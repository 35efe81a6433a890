#include "zero/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zero {
namespace {

/// Null where nobody counts.
c10::DeviceAllocator* counting_allocator(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return nullptr;
  auto* const counting = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return counting && counting->initialized() ? counting : nullptr;
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

}  // namespace

DeviceMemory device_memory(c10::Device device) {
  c10::DeviceAllocator* const counting = counting_allocator(device);
  if (!counting) return {};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = counting->getDeviceStats(index_of(device));
  const auto &allocated = stats.allocated_bytes[kAll], &reserved = stats.reserved_bytes[kAll];
  return {allocated.current, allocated.peak, reserved.current, reserved.peak};
}

void reset_peak_device_memory(c10::Device device) {
  if (c10::DeviceAllocator* const counting = counting_allocator(device)) counting->resetPeakStats(index_of(device));
}

}  // namespace zero
