#include "plan/engine_memory.h"

#include <algorithm>

#include "plan/traffic.h"
#include "zero/errors.h"

namespace zero::plan {

std::int64_t checkpoint_nbytes(const ShardingPlan& shards, const Config& config, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const layout::Range mine = shards.shard(u, rank);
    // Weights and states in fp32.
    sum += shards.units[u].trainable ? mine.numel() * 4 + shards.wide_state_nbytes(u, mine)
                                     : mine.numel() * shards.low_nbytes();
  }
  return sum + shards.whole_state_nbytes_of(rank) + sharding::outer_nbytes(shards, config, rank);
}

MemoryReport engine_memory(const ModelShape& model, const Config& config, int world_size, int rank, int ranks_per_node,
                           bool gpus) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ConfigError("plan: want at least one rank, and a rank below their number");
  }
  const int per_node = ranks_per_node > 0 ? std::min(ranks_per_node, world_size) : world_size;
  const Islands islands = islands_of(config, world_size, per_node);
  ShardingPlan shards = shard(model, config, islands.ranks, islands.ranks_per_node, gpus);
  shards.islands = islands.count;
  shards.island = rank / islands.ranks;
  return sharding::footprint_of(shards, workload_of(model, config), config).of_rank(rank % islands.ranks);
}

bool buckets_are_bound(const Config& config, int world_size, bool gpus, int hosts) {
  const auto sharding = layout::sharding_of_stage(config.zero_optimization.stage, world_size);
  const bool needs_them = world_size > 1 || config.gradient_accumulation_steps > 1;
  // Without sharded gradients buckets have memory of their own, and what is sent of them has not.
  const bool come_and_go = sharding.gradients || config.zero_optimization.zero_quantized_gradients;
  return come_and_go && needs_them && (gpus || (config.zero_optimization.overlaps_comm(hosts) && world_size > 1));
}

bool gather_is_bound(const Config& config, int world_size, bool gpus, int hosts) {
  const auto sharding = layout::sharding_of_stage(config.zero_optimization.stage);
  using Device = Config::OffloadDevice;
  if (!sharding.parameters) return false;
  // How much of it ranks hold at the same time depends on how far they are apart.
  if (config.zero_optimization.offload_param.device == Device::kNvme) return true;
  if (gpus ? sharding::wants_nccl(config, hosts) : world_size == 1) return false;
  return config.zero_optimization.overlaps_comm() && config.zerotorch.measured_prefetch &&
         config.zero_optimization.stage3_prefetch_bucket_size > 0;
}

}  // namespace zero::plan
