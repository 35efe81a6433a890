#pragma once
// Where shards, sums of gradients and optimizer states are, and what moves them between ranks.
#include <c10/core/Device.h>

#include <cstdint>

#include "zero/config.h"
#include "zero/group.h"
#include "zero/sharded_model.h"

namespace zero::engine {

struct ShardPlace {
  enum class MovedBy : std::uint8_t {
    kGroup,         ///< the ranks' group, in host memory
    kSharedMemory,  ///< nobody: ranks read the memory of the others' devices in place
    kNccl,
  };
  c10::Device device{c10::kCPU};
  MovedBy moved_by = MovedBy::kGroup;
};

/// With a module on an accelerator in its memory, unless the configuration wants them in the host's, or ranks have no
/// way to each other's. Local. Throws ConfigError where the configuration wants what cannot be had.
ShardPlace choose_shard_place(c10::Device module_device, const Config& config, const Group& group);

/// *Collective.* Gives the model its transport and its home.
void make_transport(sharding::ShardedModel& model, ShardPlace::MovedBy moved_by);

}  // namespace zero::engine
