#pragma once
// Memory of accelerators, beside the engine's own figures (zero/memory.h).
#include <c10/core/Device.h>

#include "zero/memory.h"

namespace zero {

/// Zeros on the CPU, and of backends whose allocator does not count. Local.
DeviceMemory device_memory(c10::Device device);
/// Peaks are the current values from here on. Local.
void reset_peak_device_memory(c10::Device device);

}  // namespace zero
