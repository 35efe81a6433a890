#include "plan/engine_memory.h"

#include <algorithm>

#include "zero/errors.h"

namespace zero::plan {
namespace {

using layout::Range;

constexpr std::int64_t kAccumulatorNbytes = 4;  ///< fp32 gradient sums
constexpr std::int64_t kMomentsNbytes = 4 + 4;  ///< exp_avg, exp_avg_sq

/// Bytes per element of what is kept beside the parameters for their full precision, and the ledger's kind.
struct MasterFormat {
  std::int64_t nbytes;
  MemoryKind kind;
};
constexpr MasterFormat master_format(DType /*low_dtype*/) { return {4, MemoryKind::kMaster}; }

Range shard(const LaidOut& laid, std::size_t unit, int rank) {
  return layout::shard_range(laid.units[unit].numel, laid.world_size, static_cast<int>(unit), rank);
}

/// Elements of trainable units that `rank` updates, and sums gradients of.
std::int64_t updated_numel(const LaidOut& laid, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.units[u].trainable) continue;
    sum += laid.sharding.optimizer_states ? shard(laid, u, rank).numel() : laid.units[u].numel;
  }
  return sum;
}

std::int64_t parameters_numel(const LaidOut& laid, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    sum += laid.resident[u] ? laid.units[u].numel : shard(laid, u, rank).numel();
  }
  return sum;
}

/// fp32 parameters are their own master, unless a rank updates elements that another one writes for all.
bool master_is_low(const LaidOut& laid, int rank) {
  if (laid.low_dtype != DType::kFloat32) return false;
  if (!laid.node_shared || laid.sharding.optimizer_states) return true;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    if (unit.trainable && shard(laid, u, rank) != Range{0, unit.numel}) return false;
  }
  return true;
}

}  // namespace

Pools find_pools(const ModelShape& model, const LaidOut& laid, const Config& config) {
  return {bucket_numel(model, laid, config), gather_use(model, laid, config)};
}

MemoryReport ledger_of(const LaidOut& laid, const Pools& pools, int rank) {
  MemoryReport report;
  const auto add = [&](MemoryKind kind, std::int64_t current_nbytes, std::int64_t peak_nbytes) {
    report[kind].current_nbytes += current_nbytes;
    report[kind].peak_nbytes += peak_nbytes;
  };
  const auto hold = [&](MemoryKind kind, std::int64_t nbytes) { add(kind, nbytes, nbytes); };
  const std::int64_t low = laid.low_nbytes(), updated = updated_numel(laid, rank);
  const MasterFormat master = master_format(laid.low_dtype);
  hold(MemoryKind::kParameters, parameters_numel(laid, rank) * low);
  if (!master_is_low(laid, rank)) hold(master.kind, updated * master.nbytes);
  hold(MemoryKind::kOptimizer, updated * kMomentsNbytes);
  hold(MemoryKind::kGradients, updated * kAccumulatorNbytes);
  const std::int64_t buckets = pools.bucket_numel * low;
  add(MemoryKind::kBuckets, laid.sharding.gradients ? 0 : buckets, buckets);
  add(MemoryKind::kGather, 0, pools.gather.pool_numel * low);
  // initialize() passes one unit at a time through fp32.
  add(MemoryKind::kStaging, 0, laid.largest_unit() * 4);
  return report;
}

std::vector<double> states_by_rank(const LaidOut& laid) {
  const std::size_t world = static_cast<std::size_t>(laid.world_size);
  const bool has_master =
      laid.low_dtype != DType::kFloat32 || (laid.node_shared && !laid.sharding.optimizer_states && world > 1);
  const double update = static_cast<double>(kMomentsNbytes + kAccumulatorNbytes +
                                            (has_master ? master_format(laid.low_dtype).nbytes : 0));
  double everywhere = 0;
  std::vector<double> change(world + 1, 0);  // at rank r: what r has more than r - 1
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    const double low = static_cast<double>(laid.low_nbytes());
    const double updated = unit.trainable ? update : 0;
    const double sharded = (laid.resident[u] ? 0 : low) + (laid.sharding.optimizer_states ? updated : 0);
    const double whole = (laid.resident[u] ? low : 0) + (laid.sharding.optimizer_states ? 0 : updated);
    const auto blocks = static_cast<std::size_t>(unit.numel / layout::kBlockNumel);
    everywhere += whole * static_cast<double>(unit.numel) +
                  sharded * static_cast<double>(blocks / world * layout::kBlockNumel);
    const std::size_t first = u % world, end = first + blocks % world;
    const double extra = sharded * static_cast<double>(layout::kBlockNumel);
    change[first] += extra;
    change[std::min(end, world)] -= extra;
    if (end > world) {
      change[0] += extra;
      change[end - world] -= extra;
    }
  }
  std::vector<double> states(world);
  for (std::size_t r = 0; r < world; ++r) {
    states[r] = (r == 0 ? everywhere : states[r - 1]) + change[r];
  }
  return states;
}

MemoryReport engine_memory(const ModelShape& model, const Config& config, int world_size, int rank,
                           bool single_node) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ConfigError("plan: want at least one rank, and a rank below their number");
  }
  const LaidOut laid = lay_out(model, config, world_size, single_node);
  return ledger_of(laid, find_pools(model, laid, config), rank);
}

bool buckets_at_most(const Config& config, int world_size) {
  const auto sharding = layout::sharding_of_stage(config.zero_optimization.stage);
  return sharding.gradients && config.zero_optimization.overlap_comm && world_size > 1;
}

}  // namespace zero::plan
