// What the gradient reducer holds and moves: buckets, and the sums of an accumulation window.
#include <algorithm>

#include "layout/bucket_schedule.h"
#include "layout/state_slots.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

using layout::Range;

/// No rank owns more elements of one bucket.
std::int64_t largest_piece_bound(const ShardingPlan& shards) {
  std::int64_t bound = 0;
  for (const auto& unit : shards.units) {
    const std::int64_t blocks = (unit.numel + shards.cut_numel - 1) / shards.cut_numel;
    const std::int64_t shard_blocks = (blocks + shards.world_size - 1) / shards.world_size;
    if (unit.trainable) bound = std::max(bound, shard_blocks * shards.cut_numel);
  }
  return std::min(bound, shards.bucket_numel);
}

/// Each micro-batch reads and writes the sums; of several sets of them a window uses one.
DiskUse disk_use(const ShardingPlan& shards, int rank, std::int64_t micro_batches) {
  const layout::ColumnShape sums{shards.sum_nbytes(), 1};
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u) largest = std::max(largest, shards.shard(u, rank).numel());
  const layout::SlotCuts cuts = layout::slot_cuts({&sums, 1}, shards.sub_group_numel, largest);
  DiskUse use;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (!shards.units[u].trainable) continue;
    const std::int64_t piece = layout::bucket_step(shards.units[u].numel, shards.bucket_numel);
    use.file_nbytes += layout::slots_nbytes({&sums, 1}, {shards.shard(u, rank), 1, piece}, cuts);
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = shards.place.gradients.disk_buffers * layout::slot_nbytes({&sums, 1}, 1, cuts.slot_numel);
  use.read_nbytes = use.written_nbytes = static_cast<double>(micro_batches * use.file_nbytes);
  use.file_nbytes *= shards.update.sets_of_sums;
  use.buffers_nbytes *= shards.update.sets_of_sums;
  return use;
}

void declare_sums(Footprint& out, std::int64_t micro_batches) {
  const ShardingPlan& shards = out.shards();
  if (shards.place.gradients.is_on_disk()) {
    out.hold_on_disk([&shards, micro_batches](int rank) { return disk_use(shards, rank, micro_batches); });
  } else if (shards.update.keeps_gradients) {
    for (std::size_t u = 0; u < shards.units.size(); ++u) {
      if (!shards.units[u].trainable) continue;
      out.hold_of_unit(MemoryKind::kGradients, shards.memory_tier(), u, out.updated(),
                       shards.sum_nbytes() * shards.update.sets_of_sums);
    }
  } else if (!shards.sums_are_gradients) {
    out.hold_of_rank(
        MemoryKind::kGradients, shards.memory_tier(),
        [&shards](int rank) { return largest_piece(shards, rank) * shards.sum_nbytes(); },
        largest_piece_bound(shards) * shards.sum_nbytes());
  }
}

/// What gradients are packed into, and what is kept of what packing has lost.
void declare_wire(Footprint& out, std::int64_t micro_batches) {
  const ShardingPlan& shards = out.shards();
  if (!shards.gradient_wire) return;
  const bool in_flight = shards.overlap && shards.world_size > 1;
  out.reach(MemoryKind::kBuckets, shards.memory_tier(),
            layout::bucket_pool_limit(shards.sent_gradient_nbytes(largest_bucket(shards)), in_flight));
  if (shards.gradient_wire->feedback) {
    out.reach(MemoryKind::kGradients, shards.memory_tier(),
              micro_batches * optim::nbytes_of(kErrorFormat, shards.padded_numel(/*trainable_only=*/true)));
  }
}

}  // namespace

std::int64_t largest_bucket(const ShardingPlan& shards) {
  std::int64_t largest = 0;
  for (const auto& unit : shards.units) {
    if (unit.trainable) largest = std::max(largest, layout::bucket_step(unit.numel, shards.bucket_numel));
  }
  return largest;
}

std::int64_t largest_piece(const ShardingPlan& shards, int rank) {
  if (shards.padded_numel() / shards.bucket_numel > kMostBuckets) return largest_piece_bound(shards);
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (!shards.units[u].trainable) continue;
    const Range mine = shards.shard(u, rank);
    for (const Range bucket : layout::bucket_ranges(shards.units[u].numel, shards.bucket_numel))
      largest = std::max(largest, layout::intersect(bucket, mine).numel());
  }
  return largest;
}

void declare_reducer(Footprint& out, const Workload& work) {
  const ShardingPlan& shards = out.shards();
  declare_sums(out, work.micro_batches);
  declare_wire(out, work.micro_batches);
  const std::int64_t buckets = bucket_pool_numel(shards, work) * shards.gradient_nbytes();
  if (shards.sharding.gradients) {
    out.reach(MemoryKind::kBuckets, shards.memory_tier(), buckets);
  } else {
    out.hold(MemoryKind::kBuckets, shards.memory_tier(), buckets);
  }
  const auto trainable = static_cast<double>(shards.padded_numel(/*trainable_only=*/true));
  const double added = static_cast<double>(work.micro_batches) * trainable;
  if (shards.place.uploads()) out.traffic.from_device_nbytes += added * static_cast<double>(shards.gradient_nbytes());
  if (shards.world_size == 1) return;
  out.traffic.reduced_numel += out.traffic.add(exchange_of(shards, added));
  // Without sharded optimizer states every rank receives all sums.
  for (const auto& unit : shards.units) {
    if (!unit.trainable) continue;
    out.traffic.published_numel += out.traffic.add(sums_of(shards, static_cast<double>(unit.numel)));
  }
  out.traffic.add(norm_of(shards));
}

}  // namespace zero::sharding
