#include "plan/disk_use.h"

#include <algorithm>
#include <string_view>

#include "layout/shard.h"
#include "layout/state_slots.h"

namespace zero::plan {
namespace {

using layout::Range;
using setup::LaidOut;

/// The columns that zero::sharding::ShardedOptimizer keeps, its masters first.
struct Columns {
  std::vector<layout::ColumnShape> shapes;
  std::vector<std::string_view> names;  ///< of those after the masters

  std::uint32_t of(const optim::Rule& rule) const {
    const std::size_t masters = shapes.size() - names.size();
    std::uint32_t which = masters;  // bit 0, where there are any
    for (const optim::StateColumn& state : rule.states)
      which |= 1u << (masters + static_cast<std::size_t>(std::ranges::find(names, state.name) - names.begin()));
    return which;
  }
};

Columns columns_of(const LaidOut& laid, std::int64_t master_nbytes) {
  Columns columns;
  if (master_nbytes > 0) columns.shapes.push_back({master_nbytes, 1});
  for (const auto& of_unit : laid.rules) {
    for (const optim::Rule* const rule : of_unit) {
      for (const optim::StateColumn& state : rule->states) {
        if (std::ranges::find(columns.names, state.name) != columns.names.end()) continue;
        columns.names.push_back(state.name);
        columns.shapes.push_back({optim::block_nbytes(state.format), optim::block_numel(state.format)});
      }
    }
  }
  return columns;
}

}  // namespace

DiskUse disk_use(const LaidOut& laid, int rank, std::int64_t master_nbytes) {
  DiskUse use;
  if (!laid.place.states.is_on_disk()) return use;
  const Columns columns = columns_of(laid, master_nbytes);
  const auto updated = [&](std::size_t u) {
    return laid.sharding.optimizer_states ? laid.shard(u, rank) : Range{0, laid.units[u].numel};
  };
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) largest = std::max(largest, updated(u).numel());
  const layout::SlotCuts cuts = layout::slot_cuts(columns.shapes, laid.sub_group_numel, largest);
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    if (!unit.trainable) continue;
    std::vector<layout::ParameterColumns> parameters;
    for (std::size_t i = 0; i < unit.slots.size(); ++i)
      parameters.push_back({unit.slots[i].offset_numel, columns.of(*laid.rules[u][i])});
    const std::int64_t piece = laid.update.keeps_gradients ? 0 : layout::bucket_step(unit.numel, laid.bucket_numel);
    for (const auto& part : layout::columns_parts(parameters, updated(u), master_nbytes > 0 ? 1 : 0, piece))
      use.file_nbytes += layout::slots_nbytes(columns.shapes, part, cuts);
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = laid.place.states.disk_buffers * layout::slot_nbytes(columns.shapes, ~0u, cuts.slot_numel);
  if (laid.update.second_states) use.file_nbytes *= 2;
  return use;
}

DiskUse disk_use_of_gradients(const LaidOut& laid, int rank) {
  DiskUse use;
  if (!laid.place.gradients.is_on_disk()) return use;
  const layout::ColumnShape sums{laid.sum_nbytes(), 1};
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) largest = std::max(largest, laid.shard(u, rank).numel());
  const layout::SlotCuts cuts = layout::slot_cuts({&sums, 1}, laid.sub_group_numel, largest);
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.units[u].trainable) continue;
    const std::int64_t piece = layout::bucket_step(laid.units[u].numel, laid.bucket_numel);
    use.file_nbytes += layout::slots_nbytes({&sums, 1}, {laid.shard(u, rank), 1, piece}, cuts);
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = laid.place.gradients.disk_buffers * layout::slot_nbytes({&sums, 1}, 1, cuts.slot_numel);
  use.file_nbytes *= laid.update.sets_of_sums;
  use.buffers_nbytes *= laid.update.sets_of_sums;
  return use;
}

DiskUse disk_use_of_parameters(const LaidOut& laid, int rank) {
  DiskUse use;
  if (!laid.place.parameters.is_on_disk()) return use;
  const layout::ColumnShape low{laid.low_nbytes(), 1};
  const layout::SlotCuts slots = laid.parameter_slots();
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.resident[u]) use.file_nbytes += layout::slots_nbytes({&low, 1}, {laid.shard(u, rank), 1, 0}, slots);
  }
  if (use.file_nbytes > 0)
    use.buffers_nbytes = laid.place.parameters.disk_buffers * layout::slot_nbytes({&low, 1}, 1, slots.slot_numel);
  return use;
}

}  // namespace zero::plan
