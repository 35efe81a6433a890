#pragma once
// A model and a configuration as the engine's parts declare what they hold and move (sharding/plan/footprint.h).
#include "sharding/plan/footprint.h"
#include "zero/plan.h"

namespace zero::plan {

using sharding::ShardingPlan;

/// What initialize() would make of the model. Throws ConfigError as that does: unknown unit names, 'node_shared' over
/// hosts with different numbers of ranks.
ShardingPlan shard(const ModelShape& model, const Config& config, int world_size, int ranks_per_node, bool gpus,
                   std::int64_t host_nbytes = 0);

/// As it is planned: with batch sizes for so many ranks, and without what its stage cannot have. Throws ConfigError.
Config planned(Config config, int ranks);

sharding::Workload workload_of(const ModelShape& model, const Config& config);

/// Bytes that `rank` saves in a checkpoint between two steps, padding included.
std::int64_t checkpoint_nbytes(const ShardingPlan& shards, const Config& config, int rank);

/// Bytes that gradients and activations of `rank` share, because sums of gradients come into the place of
/// activations that backward has used; an estimate. 0 where gradients keep their memory. For a transformer.
std::int64_t reused_nbytes(const ModelShape& model, const ShardingPlan& shards, const Config& config,
                           const Activations& kept, int rank);

}  // namespace zero::plan
