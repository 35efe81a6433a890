#include "plan/engine_memory.h"

#include <algorithm>
#include <numeric>

#include "plan/disk_use.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

using layout::Range;

/// Elements of trainable units that `rank` updates.
std::int64_t updated_numel(const LaidOut& laid, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.units[u].trainable) continue;
    sum += laid.sharding.optimizer_states ? laid.shard(u, rank).numel() : laid.units[u].numel;
  }
  return sum;
}

/// No rank owns more elements of one bucket.
std::int64_t largest_piece_bound(const LaidOut& laid) {
  std::int64_t bound = 0;
  for (const auto& unit : laid.units) {
    const std::int64_t blocks = unit.numel / layout::kBlockNumel;
    const std::int64_t shard_blocks = (blocks + laid.world_size - 1) / laid.world_size;
    if (unit.trainable) bound = std::max(bound, shard_blocks * layout::kBlockNumel);
  }
  return std::min(bound, laid.bucket_numel);
}

/// Most elements of one bucket that `rank` owns.
std::int64_t largest_piece(const LaidOut& laid, int rank) {
  if (laid.padded_numel() / laid.bucket_numel > kMostBuckets) return largest_piece_bound(laid);
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.units[u].trainable) continue;
    const Range mine = laid.shard(u, rank);
    for (const Range bucket : layout::bucket_ranges(laid.units[u].numel, laid.bucket_numel)) {
      largest = std::max(largest, layout::intersect(bucket, mine).numel());
    }
  }
  return largest;
}

/// Elements whose gradients `rank` sums at the same time.
std::int64_t summed_numel(const LaidOut& laid, int rank) {
  if (laid.update.keeps_gradients) return updated_numel(laid, rank) * laid.update.sets_of_sums;
  return laid.sums_are_gradients ? 0 : largest_piece(laid, rank);
}

/// Elements of parameters that `rank` holds where shards are: its own, and units that it keeps whole there.
std::int64_t parameters_numel(const LaidOut& laid, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (laid.place.copies_from_shared()) {
      sum += laid.shard(u, rank).numel();
      continue;
    }
    if (laid.resident[u]) {
      sum += laid.units[u].numel;
      continue;
    }
    if (laid.place.parameters.is_on_disk()) continue;
    // Of parameters that exist once on every host, also the shards of the ranks at its place on other hosts.
    const int stride = laid.place.reads_in_place() ? laid.ranks_per_node() : laid.world_size;
    for (int owner = rank % stride; owner < laid.world_size; owner += stride) {
      if (laid.place.reads_in_place() || owner == rank) sum += laid.shard(u, owner).numel();
    }
  }
  return sum;
}

/// Elements of whole units that are kept beside the shards.
std::int64_t copied_numel(const LaidOut& laid) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u)
    sum += laid.resident[u] && (laid.place.copies_from_shared() || laid.place.uploads()) ? laid.units[u].numel : 0;
  return sum;
}

/// `of_shard[r]` is what rank r's own shards take; on return what it holds for its host.
void share_between_hosts(std::vector<double>& of_shard, int ranks_per_node) {
  const auto stride = static_cast<std::size_t>(ranks_per_node);
  for (std::size_t place = 0; place < stride; ++place) {
    double sum = 0;
    for (std::size_t r = place; r < of_shard.size(); r += stride) sum += of_shard[r];
    for (std::size_t r = place; r < of_shard.size(); r += stride) of_shard[r] = sum;
  }
}

/// Without sharded optimizer states a rank updates everything, but of a shared copy it writes its shard only.
bool others_write_for_it(const LaidOut& laid) {
  return laid.place.reads_in_place() && !laid.sharding.optimizer_states && laid.world_size > 1;
}

bool writes_all_it_updates(const LaidOut& laid, int rank) {
  if (!others_write_for_it(laid)) return true;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    if (unit.trainable && laid.shard(u, rank) != Range{0, unit.numel}) return false;
  }
  return true;
}

/// `change[r]` is what rank r has more than rank r - 1: gives `amount` to ranks [first, first + count),
/// modulo their number.
void add_to_ranks(std::vector<double>& change, std::int64_t first, std::int64_t count, double amount) {
  const auto world = static_cast<std::int64_t>(change.size());
  if (count == 0) return;
  change[first] += amount;
  const std::int64_t end = first + count;
  if (end < world) change[end] -= amount;
  if (end <= world) return;
  change[0] += amount;
  change[end - world] -= amount;
}

/// Of the host's memory. Units that are read from a disk are there once for all ranks of the host: at the most all
/// units, or what each rank holds where no two hold the same, and one more (storage/host_units.h).
std::int64_t gather_nbytes_of_host(const LaidOut& laid, const Pools& pools) {
  const std::int64_t of_rank = pools.gather.pool_numel;
  if (!laid.place.parameters.is_on_disk())
    return laid.place.parameters.tier == layout::Tier::kHostShared ? 0 : of_rank * laid.low_nbytes();
  std::int64_t all = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) all += laid.resident[u] ? 0 : laid.units[u].numel;
  if (all == 0) return 0;
  const std::int64_t most = (std::min(all, of_rank * laid.world_size) + laid.largest_unit()) * laid.low_nbytes();
  return (most + laid.world_size - 1) / laid.world_size;
}

}  // namespace

std::int64_t master_nbytes(const LaidOut& laid, int rank) {
  const auto own = static_cast<std::int64_t>(element_nbytes(laid.master_dtype));
  if (!writes_all_it_updates(laid, rank)) return own;
  if (laid.param_dtype == laid.master_dtype) return 0;
  return laid.param_dtype == DType::kBFloat16 ? 2 : own;
}

bool has_states_on_device(const LaidOut& laid, std::size_t unit) {
  return layout::is_on_device(laid.place.states.tier_of(unit));
}

Pools find_pools(const ModelShape& model, const LaidOut& laid, const Config& config) {
  return {bucket_numel(model, laid), gather_use(model, laid, config)};
}

std::int64_t received_by_nccl_nbytes(const LaidOut& laid, int rank) {
  return (laid.world_size - 1) * largest_piece(laid, rank) * laid.gradient_nbytes();
}

MemoryReport ledger_of(const LaidOut& laid, const Pools& pools, int rank) {
  MemoryReport report;
  const auto add = [&](MemoryKind kind, std::int64_t current_nbytes, std::int64_t peak_nbytes, bool on_device) {
    MemoryUse& use = report[kind];
    use.current_nbytes += current_nbytes;
    use.peak_nbytes += peak_nbytes;
    if (!on_device) return;
    use.device_nbytes += current_nbytes;
    use.peak_device_nbytes += peak_nbytes;
  };
  const auto hold = [&](MemoryKind kind, std::int64_t nbytes, bool on_device) { add(kind, nbytes, nbytes, on_device); };
  const bool there = layout::is_on_device(laid.place.parameters.tier);
  const std::int64_t low = laid.low_nbytes(), updated = updated_numel(laid, rank);
  hold(MemoryKind::kParameters, (parameters_numel(laid, rank) + (laid.update.second_parameters ? updated : 0)) * low,
       there);
  hold(MemoryKind::kParameters, copied_numel(laid) * low, true);
  for (const DiskUse& disk : {disk_use(laid, rank, master_nbytes(laid, rank)), disk_use_of_gradients(laid, rank),
                              disk_use_of_parameters(laid, rank)}) {
    hold(MemoryKind::kOffload, disk.buffers_nbytes, false);
    report.nvme_nbytes += disk.file_nbytes;
  }
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (!laid.units[u].trainable || laid.place.states.is_on_disk()) continue;
    const Range its = laid.sharding.optimizer_states ? laid.shard(u, rank) : Range{0, laid.units[u].numel};
    hold(MemoryKind::kMaster, its.numel() * master_nbytes(laid, rank), has_states_on_device(laid, u));
    hold(MemoryKind::kOptimizer, laid.state_nbytes(u, its), has_states_on_device(laid, u));
  }
  if (!laid.place.gradients.is_on_disk())
    hold(MemoryKind::kGradients, summed_numel(laid, rank) * laid.sum_nbytes(), there);
  const std::int64_t buckets = pools.bucket_numel * laid.gradient_nbytes();
  add(MemoryKind::kBuckets, laid.sharding.gradients ? 0 : buckets, buckets, there);
  const std::int64_t gathered = pools.gather.pool_numel * low;
  if (there || laid.place.uploads()) add(MemoryKind::kGather, 0, gathered, true);
  if (!there) add(MemoryKind::kGather, 0, gather_nbytes_of_host(laid, pools), false);
  hold(MemoryKind::kOptimizer, laid.whole_state_nbytes_of(rank), there);
  if (laid.sharding.optimizer_states)
    hold(MemoryKind::kStaging, (laid.whole.largest_numel + laid.whole.send_numel) * 4, there);
  const auto widest_sum = static_cast<std::int64_t>(element_nbytes(laid.sum_dtype));
  hold(MemoryKind::kStaging, laid.device_update_numel * (widest_sum + low), true);
  // initialize() passes one unit at a time through fp32.
  add(MemoryKind::kStaging, 0, laid.largest_unit() * 4, there);
  return report;
}

std::int64_t checkpoint_nbytes(const LaidOut& laid, int rank) {
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const Range mine = laid.shard(u, rank);
    // Weights and states in fp32.
    sum +=
        laid.units[u].trainable ? mine.numel() * 4 + laid.wide_state_nbytes(u, mine) : mine.numel() * laid.low_nbytes();
  }
  return sum + laid.whole_state_nbytes_of(rank);
}

namespace {

/// Bytes of every rank: what all have, and how much more each has than the one before it.
class Spread {
 public:
  explicit Spread(int world_size) : change_(static_cast<std::size_t>(world_size), 0) {}

  void add_everywhere(double nbytes) { everywhere_ += nbytes; }
  /// Blocks of `unit`, divided among the ranks.
  void split(std::size_t unit, std::int64_t blocks, double block_nbytes) {
    const auto world = static_cast<std::int64_t>(change_.size());
    everywhere_ += block_nbytes * static_cast<double>(blocks / world);
    add_to_ranks(change_, static_cast<std::int64_t>(unit) % world, blocks % world, block_nbytes);
  }
  std::vector<double> by_rank() const {
    std::vector<double> nbytes(change_.size());
    std::partial_sum(change_.begin(), change_.end(), nbytes.begin());
    for (double& of_rank : nbytes) of_rank += everywhere_;
    return nbytes;
  }

 private:
  double everywhere_ = 0;
  std::vector<double> change_;
};

void add(std::vector<double>& to, const std::vector<double>& more) {
  for (std::size_t r = 0; r < to.size(); ++r) to[r] += more[r];
}

}  // namespace

StatesByRank states_by_rank(const LaidOut& laid) {
  // Where ranks differ in their masters too, these are added at the end.
  const bool in_memory = !laid.place.states.is_on_disk();
  const std::int64_t master = others_write_for_it(laid) || !in_memory ? 0 : master_nbytes(laid, 0);
  const std::int64_t sums = !laid.update.keeps_gradients || laid.place.gradients.is_on_disk()
                                ? 0
                                : laid.sum_nbytes() * laid.update.sets_of_sums;
  const std::int64_t next = laid.update.second_parameters ? laid.low_nbytes() : 0;
  const auto low = static_cast<double>(laid.low_nbytes() * layout::kBlockNumel);
  Spread here(laid.world_size), there(laid.world_size), parameters(laid.world_size);  // `here`: where shards are
  if (!laid.update.keeps_gradients && !laid.sums_are_gradients)
    here.add_everywhere(static_cast<double>(largest_piece_bound(laid) * laid.sum_nbytes()));
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    const std::int64_t blocks = unit.numel / layout::kBlockNumel;
    const auto update = [&](Spread& where, double block_nbytes) {
      if (!unit.trainable) return;
      if (laid.sharding.optimizer_states) return where.split(u, blocks, block_nbytes);
      where.add_everywhere(block_nbytes * static_cast<double>(blocks));
    };
    // Of a block; an average where a unit's parameters have different states.
    const double states_of_block = in_memory ? static_cast<double>(laid.state_nbytes(u, {0, unit.numel})) /
                                                   static_cast<double>(std::max<std::int64_t>(1, blocks))
                                             : 0;
    const bool is_apart = laid.place.states.is_split() && laid.place.states.on_device[u];
    update(is_apart ? there : here, states_of_block + static_cast<double>(master * layout::kBlockNumel));
    update(here, static_cast<double>((sums + next) * layout::kBlockNumel));
    const bool is_whole = laid.resident[u] && !laid.place.copies_from_shared();
    if (is_whole) here.add_everywhere(low * static_cast<double>(blocks));
    if (!is_whole && !laid.place.parameters.is_on_disk()) parameters.split(u, blocks, low);
  }
  std::vector<double> held = parameters.by_rank();
  if (laid.place.reads_in_place()) share_between_hosts(held, laid.ranks_per_node());
  add(held, here.by_rank());
  const auto trainable = static_cast<double>(laid.padded_numel(/*trainable_only=*/true));
  for (std::size_t r = 0; r < held.size(); ++r) {
    held[r] += static_cast<double>(laid.whole_state_nbytes_of(static_cast<int>(r)));
    if (others_write_for_it(laid) && in_memory)
      held[r] += trainable * static_cast<double>(master_nbytes(laid, static_cast<int>(r)));
  }
  there.add_everywhere(static_cast<double>(copied_numel(laid) * laid.low_nbytes()));
  std::vector<double> apart = there.by_rank();
  if (!layout::is_on_device(laid.place.parameters.tier)) return {std::move(held), std::move(apart)};
  add(apart, held);
  return {std::vector<double>(held.size(), 0), std::move(apart)};
}

MemoryReport engine_memory(const ModelShape& model, const Config& config, int world_size, int rank, int ranks_per_node,
                           bool gpus) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw ConfigError("plan: want at least one rank, and a rank below their number");
  }
  const int per_node = ranks_per_node > 0 ? std::min(ranks_per_node, world_size) : world_size;
  const LaidOut laid = lay_out(model, config, world_size, per_node, gpus);
  return ledger_of(laid, find_pools(model, laid, config), rank);
}

bool buckets_are_bound(const Config& config, int world_size, bool gpus) {
  const auto sharding = layout::sharding_of_stage(config.zero_optimization.stage, world_size);
  const bool needs_them = world_size > 1 || config.gradient_accumulation_steps > 1;
  return sharding.gradients && needs_them && (gpus || (config.zero_optimization.overlaps_comm() && world_size > 1));
}

bool gather_is_bound(const Config& config, int world_size, bool gpus, int hosts) {
  const auto sharding = layout::sharding_of_stage(config.zero_optimization.stage);
  using Device = Config::ZeroOptimization::OffloadOptimizer::Device;
  if (!sharding.parameters) return false;
  // How much of it ranks hold at the same time depends on how far they are apart.
  if (config.zero_optimization.offload_param.device == Device::kNvme) return true;
  if (gpus ? setup::wants_nccl(config, hosts) : world_size == 1) return false;
  return config.zero_optimization.overlaps_comm() && config.zerotorch.measured_prefetch &&
         config.zero_optimization.stage3_prefetch_bucket_size > 0;
}

}  // namespace zero::plan
