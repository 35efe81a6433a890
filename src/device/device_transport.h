#pragma once
// DeviceTransport: moves the shards of ranks of one host that are in the memory of their devices, by reading them in
// place (device/device_sharing.h). Ranks tell each other in host memory, over their group, what may be read: once the
// device has written it, and until it has read it. So nothing waits on a device for another process.
#include <c10/core/Device.h>

#include <memory>

#include "comm/transport.h"

namespace zero::device {

/// True where ranks of `group` can share memory of `device`. Local.
bool can_share_device_memory(const Group& group, c10::Device device);

/// *Collective.* Throws IoError on a rank that cannot share its memory. Destroying the transport is collective, too,
/// unless the group has failed; what it has allocated may live on.
std::shared_ptr<comm::ShardTransport> make_device_transport(Group group, c10::Device device);

}  // namespace zero::device
