#pragma once
// Whether the ranks of a host can use the memory of each other's devices: drivers keep some GPUs apart, and with some
// settings of a board what is read there is not what was written.
#include <c10/core/Device.h>

#include <string>

#include "zero/group.h"

namespace zero::device {

struct DeviceReach {
  std::string problem;        ///< of the lowest rank that has one, other bytes before all else; empty: they can
  bool reads_rightly = true;  ///< else what a rank has mapped has other bytes than its owner wrote
};

/// Tries it with a small block of every rank's. The same on every rank. Needs device_sharing(). *Collective.* Throws
/// CommError.
DeviceReach find_device_reach(Group group, c10::Device device);

}  // namespace zero::device
