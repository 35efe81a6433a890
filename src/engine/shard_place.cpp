#include "engine/shard_place.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "setup/laid_out.h"
#include "storage/device_transport.h"
#include "storage/nccl.h"
#include "storage/nccl_transport.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

/// Why shards are not moved as the configuration wants; null: they can be.
const char* problem_of(Config::Zerotorch::DeviceTransport wanted, c10::Device module_device, const Config& config,
                       const Group& group) {
  using Transport = Config::Zerotorch::DeviceTransport;
  if (module_device.is_cpu()) return "is for a module on a GPU; move it there before initialize(), or remove the key";
  if (setup::wants_host_memory(config)) {
    return "is for shards in the memory of GPUs, and the configuration has them in the host's "
           "(zero_optimization.offload_optimizer and the like); remove one";
  }
  if (wanted == Transport::kShared && !storage::can_share_device_memory(group, module_device)) {
    return "is for ranks of one host on devices that share memory with other processes; use 'nccl', or 'auto'";
  }
  const auto is_set = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && std::string_view(value) == "1";
  };
  if (wanted == Transport::kNccl && (is_set("CUDA_DEVICE_MAX_CONNECTIONS") || is_set("CUDA_LAUNCH_BLOCKING"))) {
    return "and CUDA_DEVICE_MAX_CONNECTIONS or CUDA_LAUNCH_BLOCKING is 1 in the environment: gradients and parameters "
           "move at the same time, and ranks would wait for each other's for ever; unset it";
  }
  if (wanted == Transport::kNccl && storage::nccl_of(module_device.type()) == nullptr) {
    return "needs NCCL, and there is no libnccl.so.2: PyTorch's wheels for CUDA bring one along (nvidia-nccl), whose "
           "folder LD_LIBRARY_PATH may name; without it use 'auto'";
  }
  return nullptr;
}

}  // namespace

ShardPlace choose_shard_place(c10::Device module_device, const Config& config, const Group& group) {
  using Transport = Config::Zerotorch::DeviceTransport;
  using MovedBy = ShardPlace::MovedBy;
  const Transport wanted = config.zerotorch.device_transport;
  if (wanted != Transport::kAuto) {
    if (const char* const problem = problem_of(wanted, module_device, config, group)) {
      throw ConfigError(
          fmt::format("zerotorch.device_transport: '{}' {}", wanted == Transport::kNccl ? "nccl" : "shared", problem));
    }
  }
  if (module_device.is_cpu() || setup::wants_host_memory(config)) return {};
  if (group.size() == 1) return {.device = module_device};
  if (wanted == Transport::kNccl) return {.device = module_device, .moved_by = MovedBy::kNccl};
  if (storage::can_share_device_memory(group, module_device))
    return {.device = module_device, .moved_by = MovedBy::kSharedMemory};
  return {};
}

void make_transport(sharding::ShardedModel& model, ShardPlace::MovedBy moved_by) {
  using MovedBy = ShardPlace::MovedBy;
  model.transport = moved_by == MovedBy::kNccl           ? storage::make_nccl_transport(model.group, model.device)
                    : moved_by == MovedBy::kSharedMemory ? storage::make_device_transport(model.group, model.device)
                                                         : comm::make_host_transport(model.group);
  // One rank alone on a device needs nothing that others can read.
  const bool is_alone = moved_by == MovedBy::kGroup && !model.passes->in_host_memory();
  model.home = storage::Home(model.device, is_alone ? nullptr : model.transport, model.module_device);
}

}  // namespace zero::engine
