#pragma once
// The engine's ledger, predicted. Each function mirrors one allocation of the engine.
#include "plan/pools.h"

namespace zero::plan {

/// What does not depend on the rank: found once per plan.
struct Pools {
  std::int64_t bucket_numel = 0;
  GatherUse gather;
};
Pools find_pools(const ModelShape& model, const LaidOut& laid, const Config& config);

/// engine_memory() of a model that is laid out already.
MemoryReport ledger_of(const LaidOut& laid, const Pools& pools, int rank);

/// Bytes per updated element that are kept beside the parameters for their full precision (see
/// sharding/sharded_optimizer.h): parameters of the masters' dtype are their own master, bf16 ones need a 16-bit
/// remainder for masters in fp32, and fp16 ones and ranks that do not write what they update a master of its
/// own.
std::int64_t master_nbytes(const LaidOut& laid, int rank);

/// Bytes that `rank` saves in a checkpoint between two steps, padding included.
std::int64_t checkpoint_nbytes(const LaidOut& laid, int rank);

/// Of the unit, masters and states are in the memory of GPUs.
bool has_states_on_device(const LaidOut& laid, std::size_t unit);

/// Of the GPU's memory: other ranks' parts of a bucket of gradients, which NCCL brings (device/nccl_transport.h).
std::int64_t received_by_nccl_nbytes(const LaidOut& laid, int rank);

/// Bytes that gradients and activations of `rank` share, because sums of gradients come into the place of
/// activations that backward has used; an estimate. 0 where gradients keep their memory. For a transformer.
std::int64_t reused_nbytes(const ModelShape& model, const LaidOut& laid, const Config& config, const Activations& kept,
                           int rank);

/// States of every rank, [world_size] bytes: the kinds that differ between ranks and those that do not.
struct StatesByRank {
  std::vector<double> host, device;
  double of(std::size_t rank) const { return host[rank] + device[rank]; }
};
StatesByRank states_by_rank(const LaidOut& laid);

}  // namespace zero::plan
