#pragma once
// Where shards, sums of gradients and optimizer states are, and what moves them between ranks.
#include <c10/core/Device.h>

#include <cstdint>

#include "sharding/sharded_model.h"
#include "zero/config.h"
#include "zero/group.h"

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

/// Of a module on an accelerator in its memory, unless the configuration wants them in the host's: by the shared memory
/// of devices on one host, if these can use each other's, else by NCCL. Where that cannot, they are in host memory on
/// several hosts. What is not as the configuration lets expect, a notice in `config` says. *Collective.* Throws
/// ConfigError where the configuration wants what cannot be had, IoError where devices of one host cannot use each
/// other's memory and NCCL is no way either.
ShardPlace choose_shard_place(c10::Device module_device, Config& config, Group& group);

/// *Collective.* Gives the model its transport and its home.
void make_transport(sharding::ShardedModel& model, ShardPlace::MovedBy moved_by);

}  // namespace zero::engine
