#include "engine/activation_home.h"

#include "io/file_system.h"
#include "offload/activations.h"
#include "zero/recompute.h"

namespace zero::engine {
namespace {

constexpr std::int64_t kLeastNbytes = 64 << 10;  ///< smaller tensors stay on the device

}  // namespace

UsedActivationHome::UsedActivationHome(const Config& config, const layout::Placement& place, const Groups& groups,
                                       c10::Device module, storage::Ledger& ledger)
    : ledger_(std::make_shared<storage::Ledger*>(&ledger)) {
  const auto count = [weak = std::weak_ptr(ledger_)](std::int64_t nbytes) {
    if (const auto alive = weak.lock()) (*alive)->add(MemoryKind::kOffload, nbytes);
  };
  if (place.is_on_disk()) {
    home_ = offload::activations_on_nvme({.folder = config.zerotorch.offload_activations.nvme_path,
                                          .buffers = static_cast<int>(place.disk_buffers),
                                          .block_nbytes = config.aio.block_size,
                                          .queue_depth = static_cast<int>(config.aio.queue_depth)},
                                         io::system_files(), count);
  } else if (place.tier == layout::Tier::kHost && !module.is_cpu()) {
    home_ = offload::activations_in_host_memory(kLeastNbytes, count);
  } else if (config.activation_checkpointing.partition_activations && groups.model_parallel) {
    home_ = partitioned_activations(*groups.model_parallel);
  }
  if (home_) set_activation_home(home_);
}

UsedActivationHome::~UsedActivationHome() {
  if (home_ && activation_home() == home_) set_activation_home(nullptr);
}

}  // namespace zero::engine
