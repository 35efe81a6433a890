// What the parameter stores hold and move: shards, resident units, buffers of gathers.
#include <algorithm>

#include "layout/bucket_schedule.h"
#include "layout/state_slots.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

using layout::Tier;
using Share = Footprint::Share;

/// Of the host's memory. Units that are read from a disk are there once for all ranks of the host: at the most all
/// units, or what each rank holds where no two hold the same, and one more (storage/host_units.h).
std::int64_t gather_nbytes_of_host(const ShardingPlan& shards, std::int64_t pool_numel) {
  if (!shards.place.parameters.is_on_disk())
    return shards.place.parameters.tier == Tier::kHostShared ? 0 : pool_numel * shards.low_nbytes();
  std::int64_t all = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u) all += shards.resident[u] ? 0 : shards.units[u].numel;
  if (all == 0) return 0;
  const std::int64_t most =
      (std::min(all, pool_numel * shards.world_size) + shards.largest_unit()) * shards.low_nbytes();
  return (most + shards.world_size - 1) / shards.world_size;
}

/// Shards in a file: an update reads and writes those of trainable units, and every gather reads.
DiskUse disk_use(const ShardingPlan& shards, int rank, double gathered_numel) {
  const layout::ColumnShape low{shards.low_nbytes(), 1};
  const layout::SlotCuts slots = shards.parameter_slots();
  DiskUse use;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (shards.resident[u]) continue;
    const std::int64_t nbytes = layout::slots_nbytes({&low, 1}, {shards.shard(u, rank), 1, 0}, slots);
    use.file_nbytes += nbytes;
    use.written_nbytes += shards.units[u].trainable ? static_cast<double>(nbytes) : 0;
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = shards.place.parameters.disk_buffers * layout::slot_nbytes({&low, 1}, 1, slots.slot_numel);
  use.read_nbytes = use.written_nbytes + gathered_numel * static_cast<double>(shards.low_nbytes()) / shards.world_size;
  return use;
}

void declare_units(Footprint& out) {
  const ShardingPlan& shards = out.shards();
  const layout::Placements& place = shards.place;
  const Share of_shard = place.reads_in_place() ? Share::kHostShard : Share::kShard;
  const bool is_copied = place.copies_from_shared() || place.uploads();
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const auto hold = [&](Tier tier, Share share) {
      out.hold_of_unit(MemoryKind::kParameters, tier, u, share, shards.low_nbytes());
    };
    const bool is_whole = shards.resident[u] && !place.copies_from_shared();
    if (is_whole || !place.parameters.is_on_disk()) hold(shards.memory_tier(), is_whole ? Share::kWhole : of_shard);
    if (shards.resident[u] && is_copied) hold(Tier::kDevice, Share::kWhole);
    if (const auto format = shards.gathered_format(u)) {
      out.hold_of_unit(MemoryKind::kParameters, shards.memory_tier(), u, Share::kShard,
                       [format](layout::Range range) { return optim::nbytes_of(*format, range.numel()); });
    }
  }
}

/// Elements that a step gathers, on average over ranks, and publishes.
void declare_traffic(Footprint& out, const GatherUse& gather, const Config& config) {
  const auto gathered_numel = static_cast<double>(gather.gathered_numel);
  const ShardingPlan& shards = out.shards();
  const layout::Placements& place = shards.place;
  StepTraffic& traffic = out.traffic;
  const auto low = static_cast<double>(shards.low_nbytes());
  double resident = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u)
    resident += shards.resident[u] && shards.units[u].trainable ? static_cast<double>(shards.units[u].numel) : 0;
  if (place.uploads()) traffic.to_device_nbytes += (resident + gathered_numel) * low;
  if (shards.world_size == 1) return;
  traffic.gathered_numel += traffic.add(gather_of(shards, gathered_numel, static_cast<double>(gather.gathered_nbytes)));
  const bool is_late = may_publish_late(config, shards);
  if (place.reads_in_place() || is_late) {
    const double whole = place.reads_in_place() ? static_cast<double>(shards.padded_numel(true)) : resident;
    traffic.published_numel += traffic.add(publication_of(shards, whole, is_late));
    return;
  }
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (!shards.resident[u] || !shards.units[u].trainable) continue;
    for (const layout::Range piece :
         layout::bucket_ranges(shards.units[u].numel, config.zero_optimization.allgather_bucket_size))
      traffic.published_numel += traffic.add(publication_of(shards, static_cast<double>(piece.numel()), is_late));
  }
}

}  // namespace

void declare_store(Footprint& out, const Workload& work, const Config& config) {
  const ShardingPlan& shards = out.shards();
  declare_units(out);
  const GatherUse gather = gather_use(shards, work, config);
  const bool is_there = layout::is_on_device(shards.memory_tier());
  if (is_there || shards.place.uploads())
    out.reach(MemoryKind::kGather, Tier::kDevice, gather.pool_numel * shards.low_nbytes());
  if (!is_there)
    out.reach(MemoryKind::kGather, Tier::kHost, gather_nbytes_of_host(shards, gather.pool_numel) + gather.codes_nbytes);
  const auto gathered = static_cast<double>(gather.gathered_numel);
  if (shards.place.parameters.is_on_disk())
    out.hold_on_disk([&shards, gathered](int rank) { return disk_use(shards, rank, gathered); });
  declare_traffic(out, gather, config);
}

}  // namespace zero::sharding
