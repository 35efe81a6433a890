// What islands that train apart hold and move (zerotorch.local_steps).
#include <algorithm>

#include "layout/island_pieces.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

/// Elements of what is trained that the rank owns.
std::int64_t trained_numel(const ShardingPlan& shards, int rank) {
  std::int64_t numel = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (shards.units[u].trainable) numel += shards.shard(u, rank).numel();
  }
  return numel;
}

/// No rank owns more.
std::int64_t most_trained_numel(const ShardingPlan& shards) {
  std::int64_t numel = 0;
  for (const auto& unit : shards.units) {
    const std::int64_t blocks = (unit.numel + shards.cut_numel - 1) / shards.cut_numel;
    if (unit.trainable) numel += (blocks + shards.world_size - 1) / shards.world_size * shards.cut_numel;
  }
  return numel;
}

std::int64_t outer_nbytes_of(const ShardingPlan& shards, const Config& config, std::int64_t trained) {
  const std::int64_t element_nbytes = config.zerotorch.local_steps.momentum > 0 ? 8 : 4;
  return element_nbytes * layout::island_numel(trained, shards.islands, shards.island);
}

}  // namespace

std::int64_t outer_nbytes(const ShardingPlan& shards, const Config& config, int rank) {
  return config.zerotorch.local_steps.steps == 0 ? 0 : outer_nbytes_of(shards, config, trained_numel(shards, rank));
}

void declare_local_steps(Footprint& out, const Config& config) {
  const auto& local = config.zerotorch.local_steps;
  if (local.steps == 0) return;
  const ShardingPlan& shards = out.shards();
  constexpr auto kHost = layout::Tier::kHost;
  constexpr std::size_t kMostShards = 1'000'000;
  const bool is_exact = shards.units.size() * static_cast<std::size_t>(shards.world_size) <= kMostShards;
  const auto most =
      is_exact ? std::nullopt : std::optional(outer_nbytes_of(shards, config, most_trained_numel(shards)));
  out.hold_of_rank(
      MemoryKind::kOptimizer, kHost, [&shards, config](int rank) { return outer_nbytes(shards, config, rank); }, most);
  out.hold_of_rank(MemoryKind::kStaging, kHost, [&shards](int rank) {
    return 4 * layout::island_buffers_numel(trained_numel(shards, rank), shards.islands);
  });
  const double world = shards.world_size, steps = static_cast<double>(local.steps);
  const auto trained = static_cast<double>(shards.padded_numel(/*trainable_only=*/true));
  out.traffic.islands_numel += 2.0 * (shards.islands - 1) / shards.islands * trained / world / steps;
  out.traffic.from_islands_nbytes += 4 * out.traffic.islands_numel;
  // Where every rank of an island updates everything, the others' outer values follow.
  if (!shards.sharding.optimizer_states) out.traffic.from_ranks_nbytes += 4 * trained * (world - 1) / world / steps;
}

}  // namespace zero::sharding
