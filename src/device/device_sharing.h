#pragma once
// DeviceSharing: memory of a device that other processes of this host map, to read and write it in place: over the
// links between GPUs, or on the one GPU that several ranks share.
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace zero::device {

/// What another process needs to map a block of memory; plain bytes.
struct SharedHandle {
  std::array<std::byte, 64> bytes{};
};
static_assert(std::is_trivially_copyable_v<SharedHandle>);

/// Thread-safe. Functions are local.
class DeviceSharing {
 public:
  virtual ~DeviceSharing() = default;

  /// Zero-filled memory of `device`, freed with the last pointer: not before other processes have let go of it. Throws
  /// IoError.
  virtual std::shared_ptr<void> allocate(c10::Device device, std::size_t nbytes, SharedHandle& handle) = 0;
  /// Memory that another process of this host has allocated, here at `device`. Throws IoError.
  virtual std::shared_ptr<void> open(c10::Device device, const SharedHandle& handle, std::size_t nbytes) = 0;
};

/// Null where devices of this type share nothing. CUDA's is there where libtorch has loaded CUDA's runtime.
std::shared_ptr<DeviceSharing> device_sharing(c10::DeviceType type);
/// For the other ones.
void register_device_sharing(c10::DeviceType type, std::shared_ptr<DeviceSharing> sharing);

}  // namespace zero::device
