// What the sharded optimizer holds and moves: masters and states, in memory or on a disk.
#include <algorithm>

#include "layout/bucket_schedule.h"
#include "layout/state_slots.h"
#include "optim/masters.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

using layout::Range;

Range updated_range(const ShardingPlan& shards, std::size_t unit, int rank) {
  return shards.sharding.optimizer_states ? shards.shard(unit, rank) : Range{0, shards.units[unit].numel};
}

/// Without sharded optimizer states a rank updates everything, but of a shared copy it writes its shard only.
bool others_write_for_it(const ShardingPlan& shards) {
  return shards.place.reads_in_place() && !shards.sharding.optimizer_states && shards.world_size > 1;
}

bool writes_all_it_updates(const ShardingPlan& shards, int rank) {
  if (!others_write_for_it(shards)) return true;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const layout::Unit& unit = shards.units[u];
    if (unit.trainable && shards.shard(u, rank) != Range{0, unit.numel}) return false;
  }
  return true;
}

std::int64_t master_nbytes(const ShardingPlan& shards, int rank) {
  const optim::Masters masters = optim::choose_masters(shards.param_dtype, shards.master_dtype,
                                                       writes_all_it_updates(shards, rank), /*splits=*/true);
  return optim::master_nbytes(masters, shards.master_dtype);
}

/// An update reads and writes every column. Of two places for states it reads one and writes the other.
DiskUse disk_use(const ShardingPlan& shards, int rank) {
  const std::int64_t master = master_nbytes(shards, rank);
  const std::uint32_t masters = master > 0 ? 1 : 0;
  std::vector<const optim::Rule*> rules;
  for (const auto& of_unit : shards.rules) rules.insert(rules.end(), of_unit.begin(), of_unit.end());
  const std::vector<optim::StateColumn> states = optim::columns_of(rules);
  std::vector<layout::ColumnShape> shapes;
  if (master > 0) shapes.push_back({master, 1});
  for (const auto& state : states)
    shapes.push_back({optim::block_nbytes(state.format), optim::block_numel(state.format)});
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < shards.units.size(); ++u)
    largest = std::max(largest, updated_range(shards, u, rank).numel());
  const layout::SlotCuts cuts = layout::slot_cuts(shapes, shards.sub_group_numel, largest);
  DiskUse use;
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const layout::Unit& unit = shards.units[u];
    if (!unit.trainable) continue;
    std::vector<layout::ParameterColumns> parameters;
    for (std::size_t i = 0; i < unit.slots.size(); ++i) {
      const std::uint32_t its = optim::which_of(states, *shards.rules[u][i]) << masters | masters;
      parameters.push_back({unit.slots[i].offset_numel, its});
    }
    const std::int64_t piece = shards.update.keeps_gradients ? 0 : layout::bucket_step(unit.numel, shards.bucket_numel);
    for (const auto& part : layout::columns_parts(parameters, updated_range(shards, u, rank), masters, piece))
      use.file_nbytes += layout::slots_nbytes(shapes, part, cuts);
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = shards.place.states.disk_buffers * layout::slot_nbytes(shapes, ~0u, cuts.slot_numel);
  use.read_nbytes = use.written_nbytes = static_cast<double>(use.file_nbytes);
  use.update_nbytes = use.read_nbytes + use.written_nbytes;
  if (shards.update.second_states) use.file_nbytes *= 2;
  return use;
}

void declare_states(Footprint& out) {
  const ShardingPlan& shards = out.shards();
  if (shards.place.states.is_on_disk()) {
    out.hold_on_disk([&shards](int rank) { return disk_use(shards, rank); });
    return;
  }
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    if (!shards.units[u].trainable) continue;
    const layout::Tier tier = shards.place.states.tier_of(u);
    if (!others_write_for_it(shards))
      out.hold_of_unit(MemoryKind::kMaster, tier, u, out.updated(), master_nbytes(shards, 0));
    out.hold_of_unit(MemoryKind::kOptimizer, tier, u, out.updated(),
                     [&shards, u](Range range) { return shards.state_nbytes(u, range); });
  }
  if (!others_write_for_it(shards)) return;
  out.hold_of_rank(MemoryKind::kMaster, shards.memory_tier(), [&shards](int rank) {
    return shards.padded_numel(/*trainable_only=*/true) * master_nbytes(shards, rank);
  });
}

void declare_traffic(Footprint& out) {
  const ShardingPlan& shards = out.shards();
  const double world = shards.world_size, copies = shards.sharding.optimizer_states ? 1 : world;
  const auto low = static_cast<double>(shards.low_nbytes()), sum = static_cast<double>(shards.sum_nbytes());
  const auto master = static_cast<double>(master_nbytes(shards, 0));
  double on_device = 0;  // elements of all ranks
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const layout::Unit& unit = shards.units[u];
    if (!unit.trainable) continue;
    const bool is_there = layout::is_on_device(shards.place.states.tier_of(u));
    const double numel = copies * static_cast<double>(unit.numel);
    const double states = copies * static_cast<double>(shards.state_nbytes(u, {0, unit.numel})) + numel * master;
    // Sums and parameters once, masters and states both ways.
    (is_there ? out.traffic.device_update_nbytes : out.traffic.host_update_nbytes) +=
        (numel * (sum + low) + 2 * states) / world;
    if (is_there) on_device += numel;
  }
  if (shards.place.uploads()) {  // sums go up to what is updated there, and parameters come down
    out.traffic.to_device_nbytes += on_device / world * sum;
    out.traffic.from_device_nbytes += on_device / world * low;
  }
  if (shards.world_size == 1) return;
  out.traffic.whole_numel += static_cast<double>(shards.whole_moved_numel) / world;
  out.traffic.from_ranks_nbytes += out.traffic.whole_numel * sizeof(float);
}

}  // namespace

void declare_optimizer(Footprint& out) {
  const ShardingPlan& shards = out.shards();
  const layout::Tier here = shards.memory_tier();
  declare_states(out);
  for (std::size_t u = 0; u < shards.units.size() && shards.update.second_parameters; ++u) {
    if (shards.units[u].trainable)
      out.hold_of_unit(MemoryKind::kParameters, here, u, out.updated(), shards.low_nbytes());
  }
  if (!shards.whole_state_nbytes.empty())
    out.hold_of_rank(MemoryKind::kOptimizer, here, [&shards](int rank) { return shards.whole_state_nbytes_of(rank); });
  if (shards.sharding.optimizer_states)
    out.hold(MemoryKind::kStaging, here, (shards.whole.largest_numel + shards.whole.send_numel) * 4);
  const auto widest_sum = static_cast<std::int64_t>(element_nbytes(shards.sum_dtype));
  out.hold(MemoryKind::kStaging, layout::Tier::kDevice,
           shards.device_update_numel * (widest_sum + shards.low_nbytes()));
  declare_traffic(out);
}

}  // namespace zero::sharding
