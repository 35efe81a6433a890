#include "engine/shard_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "comm/gather_values.h"
#include "config/features.h"
#include "device/cuda_runtime.h"
#include "device/device_reach.h"
#include "device/device_transport.h"
#include "device/nccl.h"
#include "device/nccl_transport.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

constexpr std::string_view kLabel = "device transport";

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

/// Why shards are not moved as the configuration wants; null: they can be.
const char* problem_of(Config::Zerotorch::DeviceTransport wanted, c10::Device module_device, const Group& group) {
  using Transport = Config::Zerotorch::DeviceTransport;
  if (wanted == Transport::kShared && !device::can_share_device_memory(group, module_device)) {
    return "is for ranks of one host on devices that share memory with other processes; use 'nccl', or 'auto'";
  }
  if (wanted == Transport::kNccl && (is_set("CUDA_DEVICE_MAX_CONNECTIONS") || is_set("CUDA_LAUNCH_BLOCKING"))) {
    return "and CUDA_DEVICE_MAX_CONNECTIONS or CUDA_LAUNCH_BLOCKING is 1 in the environment: gradients and parameters "
           "move at the same time, and ranks would wait for each other's for ever; unset it";
  }
  if (wanted == Transport::kNccl && device::nccl_of(module_device.type()) == nullptr) {
    return module_device.is_cuda() ? "needs NCCL, and there is no libnccl.so.2: PyTorch's wheels for CUDA bring one "
                                     "along (nvidia-nccl), whose folder LD_LIBRARY_PATH may name"
                                   : "needs NCCL, which is for CUDA's devices";
  }
  return nullptr;
}

/// As far as a rank can tell alone.
ShardPlace choose_alone(c10::Device module_device, const Config& config, const Group& group) {
  using Transport = Config::Zerotorch::DeviceTransport;
  using MovedBy = ShardPlace::MovedBy;
  const Transport wanted = config.zerotorch.device_transport;
  if (wanted != Transport::kAuto) {
    if (const char* const problem = problem_of(wanted, module_device, group)) {
      throw ConfigError(
          fmt::format("zerotorch.device_transport: '{}' {}", wanted == Transport::kNccl ? "nccl" : "shared", problem));
    }
  }
  if (module_device.is_cpu() || config::wants_host_memory(config)) return {};
  if (group.size() == 1) return {.device = module_device};
  if (device::can_share_device_memory(group, module_device) && wanted != Transport::kNccl)
    return {.device = module_device, .moved_by = MovedBy::kSharedMemory};
  return {.device = module_device, .moved_by = MovedBy::kNccl};
}

/// Why NCCL cannot move the shards of all ranks; empty: it can. *Collective.*
std::string problem_of_nccl(c10::Device module_device, Group& group) {
  struct Facts {
    std::array<char, 400> problem{};
    std::array<char, 100> gpu{};
  } mine;
  if (const char* const problem = problem_of(Config::Zerotorch::DeviceTransport::kNccl, module_device, group)) {
    std::string_view(problem).copy(mine.problem.data(), mine.problem.size() - 1);
  }
  device::identity_of(module_device).copy(mine.gpu.data(), mine.gpu.size() - 1);
  std::set<std::string_view> taken;
  const auto all = comm::gather_values(group, mine, kLabel);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string_view problem = all[rank].problem.data(), gpu = all[rank].gpu.data();
    if (!problem.empty()) return fmt::format("rank {}: 'nccl' {}", rank, problem);
    if (!gpu.empty() && !taken.insert(gpu).second && !is_set("NCCL_MULTI_RANK_GPU_ENABLE"))
      return fmt::format("rank {} has the GPU of another rank", rank);
  }
  return {};
}

/// The place where the devices of one host cannot use each other's memory. *Collective.*
ShardPlace not_in_place(const device::DeviceReach& reach, c10::Device module_device, Config& config, Group& group) {
  if (!reach.reads_rightly) {
    throw IoError(fmt::format(
        "the ranks' GPUs do not read each other's memory rightly: {}. Known causes are an IOMMU or access control "
        "(ACS) between PCIe slots, and drivers that offer what a card has not; switch these off, or keep what ranks "
        "share in host memory (zero_optimization.offload_optimizer.device 'cpu'), or set zerotorch.device_transport "
        "to 'nccl' and NCCL_P2P_DISABLE=1 in the environment",
        reach.problem));
  }
  const std::string apart = fmt::format("the ranks' GPUs cannot map each other's memory ({})", reach.problem);
  constexpr std::string_view kRemedy =
      "zero_optimization.offload_optimizer.device to 'cpu', which keeps what ranks share in host memory";
  if (config.zerotorch.device_transport == Config::Zerotorch::DeviceTransport::kShared)
    throw IoError(fmt::format("{}; set zerotorch.device_transport to 'nccl', or {}", apart, kRemedy));
  const std::string problem = problem_of_nccl(module_device, group);
  if (!problem.empty()) {
    throw IoError(
        fmt::format("{}, and NCCL cannot move what is sharded between them ({}); set {}", apart, problem, kRemedy));
  }
  config.notices.push_back(fmt::format("{}: NCCL moves gradients and parameters between them", apart));
  return {.device = module_device, .moved_by = ShardPlace::MovedBy::kNccl};
}

}  // namespace

ShardPlace choose_shard_place(c10::Device module_device, Config& config, Group& group) {
  using MovedBy = ShardPlace::MovedBy;
  const ShardPlace place = choose_alone(module_device, config, group);
  if (group.size() == 1) return place;
  const bool is_asked_for = config.zerotorch.device_transport != Config::Zerotorch::DeviceTransport::kAuto;
  const auto is_as_here = [&](MovedBy one) { return one == place.moved_by; };
  if (!std::ranges::all_of(comm::gather_values(group, place.moved_by, kLabel), is_as_here))
    return is_asked_for ? place : ShardPlace{};  // what ranks compare further on says where they differ
  if (place.moved_by == MovedBy::kSharedMemory) {
    const device::DeviceReach reach = device::find_device_reach(group, module_device);
    return reach.problem.empty() ? place : not_in_place(reach, module_device, config, group);
  }
  if (place.moved_by != MovedBy::kNccl || is_asked_for) return place;
  const std::string problem = problem_of_nccl(module_device, group);
  if (problem.empty()) return place;
  config.notices.push_back(
      fmt::format("what is sharded is in host memory, as NCCL cannot move it between GPUs ({})", problem));
  return {};
}

void make_transport(sharding::ShardedModel& model, ShardPlace::MovedBy moved_by) {
  using MovedBy = ShardPlace::MovedBy;
  Group& ranks = model.data_ranks;
  auto transport = moved_by == MovedBy::kNccl           ? device::make_nccl_transport(ranks, model.device)
                   : moved_by == MovedBy::kSharedMemory ? device::make_device_transport(ranks, model.device)
                                                        : comm::make_host_transport(ranks);
  // One rank alone on a device needs nothing that others can read.
  const bool is_alone = moved_by == MovedBy::kGroup && !model.passes->in_host_memory();
  model.home = storage::Home(model.device, is_alone ? nullptr : transport, model.module_device);
  model.shard_groups = {{ranks, std::move(transport)}};
}

}  // namespace zero::engine
