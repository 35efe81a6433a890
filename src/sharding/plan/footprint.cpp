#include "sharding/plan/footprint.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace zero::sharding {

using layout::Range;
using layout::Tier;

namespace {

void add(MemoryReport& report, MemoryKind kind, Tier tier, std::int64_t current_nbytes, std::int64_t peak_nbytes) {
  MemoryUse& use = report[kind];
  use.current_nbytes += current_nbytes;
  use.peak_nbytes += peak_nbytes;
  if (!layout::is_on_device(tier)) return;
  use.device_nbytes += current_nbytes;
  use.peak_device_nbytes += peak_nbytes;
}

bool is_a_state(MemoryKind kind) { return std::ranges::find(kStates, kind) != std::end(kStates); }

/// Bytes of every rank: what all have, and how much more each has than the one before it.
class Spread {
 public:
  explicit Spread(int world_size) : change_(static_cast<std::size_t>(world_size), 0) {}

  void add_everywhere(double nbytes) { everywhere_ += nbytes; }
  void add(int rank, double nbytes) {
    change_[static_cast<std::size_t>(rank)] += nbytes;
    if (static_cast<std::size_t>(rank) + 1 < change_.size()) change_[static_cast<std::size_t>(rank) + 1] -= nbytes;
  }
  /// Blocks of `unit`, dealt to the ranks.
  void deal(std::size_t unit, std::int64_t blocks, double block_nbytes) {
    const auto world = static_cast<std::int64_t>(change_.size());
    everywhere_ += block_nbytes * static_cast<double>(blocks / world);
    const std::int64_t more = blocks % world, first = static_cast<std::int64_t>(unit) % world, end = first + more;
    if (more == 0) return;
    change_[first] += block_nbytes;
    if (end < world) change_[end] -= block_nbytes;
    if (end <= world) return;
    change_[0] += block_nbytes;
    change_[end - world] -= block_nbytes;
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

/// `of_shard[r]` is what rank r's own shards take; on return what it holds for its host.
void share_between_hosts(std::vector<double>& of_shard, int ranks_per_node) {
  const auto stride = static_cast<std::size_t>(ranks_per_node);
  for (std::size_t place = 0; place < stride; ++place) {
    double sum = 0;
    for (std::size_t r = place; r < of_shard.size(); r += stride) sum += of_shard[r];
    for (std::size_t r = place; r < of_shard.size(); r += stride) of_shard[r] = sum;
  }
}

}  // namespace

DiskUse& DiskUse::operator+=(const DiskUse& more) {
  file_nbytes += more.file_nbytes;
  buffers_nbytes += more.buffers_nbytes;
  read_nbytes += more.read_nbytes;
  written_nbytes += more.written_nbytes;
  update_nbytes += more.update_nbytes;
  return *this;
}

double StepTraffic::add(const Transfer& transfer) {
  switch (transfer.way) {
    case Way::kFromEach:
      from_ranks_nbytes += transfer.nbytes;
      break;
    case Way::kByRing:
      by_rings_nbytes += transfer.nbytes;
      break;
    case Way::kAcrossHosts:
      to_hosts_nbytes += transfer.nbytes;
      break;
    case Way::kByHost:
      to_hosts_nbytes += transfer.nbytes * transfer.across;
      beside_nbytes += transfer.nbytes * (1 - transfer.across);
      break;
  }
  return transfer.numel;
}

void Footprint::hold(MemoryKind kind, Tier tier, std::int64_t nbytes) { add(everywhere_, kind, tier, nbytes, nbytes); }
void Footprint::reach(MemoryKind kind, Tier tier, std::int64_t nbytes) { add(everywhere_, kind, tier, 0, nbytes); }

void Footprint::hold_of_unit(MemoryKind kind, Tier tier, std::size_t unit, Share share, NbytesOfRange nbytes_of) {
  of_units_.push_back({kind, tier, unit, share, std::move(nbytes_of)});
}

void Footprint::hold_of_unit(MemoryKind kind, Tier tier, std::size_t unit, Share share, std::int64_t element_nbytes) {
  if (element_nbytes == 0) return;
  hold_of_unit(kind, tier, unit, share, [element_nbytes](Range range) { return range.numel() * element_nbytes; });
}

void Footprint::hold_of_rank(MemoryKind kind, Tier tier, NbytesOfRank nbytes_of, std::optional<std::int64_t> at_most) {
  of_ranks_.push_back({kind, tier, std::move(nbytes_of), at_most});
}

void Footprint::hold_on_disk(DiskOfRank disk) { disks_.push_back(std::move(disk)); }

MemoryReport Footprint::of_rank(int rank) const {
  MemoryReport report = everywhere_;
  const auto hold = [&report](MemoryKind kind, Tier tier, std::int64_t nbytes) {
    add(report, kind, tier, nbytes, nbytes);
  };
  for (const OfUnit& part : of_units_) {
    switch (part.share) {
      case Share::kWhole:
        hold(part.kind, part.tier, part.nbytes_of({0, shards_.units[part.unit].numel}));
        break;
      case Share::kShard:
        hold(part.kind, part.tier, part.nbytes_of(shards_.shard(part.unit, rank)));
        break;
      case Share::kHostShard:
        for (int r = rank % shards_.ranks_per_node(); r < shards_.world_size; r += shards_.ranks_per_node())
          hold(part.kind, part.tier, part.nbytes_of(shards_.shard(part.unit, r)));
        break;
    }
  }
  for (const OfRank& part : of_ranks_) hold(part.kind, part.tier, part.nbytes_of(rank));
  const DiskUse disk = disk_of_rank(rank);
  hold(MemoryKind::kOffload, Tier::kHost, disk.buffers_nbytes);
  report.nvme_nbytes += disk.file_nbytes;
  return report;
}

DiskUse Footprint::disk_of_rank(int rank) const {
  DiskUse all;
  for (const DiskOfRank& disk : disks_) all += disk(rank);
  return all;
}

void Footprint::ByRank::repeat(int times) {
  for (std::vector<double>* nbytes : {&host, &device}) {
    const std::size_t ranks = nbytes->size();
    nbytes->resize(ranks * static_cast<std::size_t>(times));
    for (std::size_t r = ranks; r < nbytes->size(); ++r) (*nbytes)[r] = (*nbytes)[r - ranks];
  }
}

Footprint::ByRank Footprint::by_rank() const {
  constexpr std::size_t kMostShards = 100'000;
  const bool is_exact = of_units_.size() * static_cast<std::size_t>(shards_.world_size) <= kMostShards;
  Spread host(shards_.world_size), device(shards_.world_size), host_shards(shards_.world_size);
  for (const OfUnit& part : of_units_) {
    if (!is_a_state(part.kind)) continue;
    Spread& where = layout::is_on_device(part.tier) ? device : part.share == Share::kHostShard ? host_shards : host;
    const std::int64_t numel = shards_.units[part.unit].numel;
    const std::int64_t blocks = (numel + shards_.cut_numel - 1) / shards_.cut_numel;
    const auto nbytes = static_cast<double>(part.nbytes_of({0, numel}));
    if (part.share == Share::kWhole) {
      where.add_everywhere(nbytes);
    } else if (is_exact) {
      for (int r = 0; r < shards_.world_size; ++r)
        where.add(r, static_cast<double>(part.nbytes_of(shards_.shard(part.unit, r))));
    } else {  // the average of its blocks, where a unit's parameters have different states
      where.deal(part.unit, blocks, nbytes / static_cast<double>(std::max<std::int64_t>(1, blocks)));
    }
  }
  ByRank all{host.by_rank(), device.by_rank()};
  std::vector<double> shared = host_shards.by_rank();
  if (shards_.place.reads_in_place()) share_between_hosts(shared, shards_.ranks_per_node());
  for (std::size_t r = 0; r < shared.size(); ++r) all.host[r] += shared[r];
  for (const OfRank& part : of_ranks_) {
    if (!is_a_state(part.kind)) continue;
    std::vector<double>& where = layout::is_on_device(part.tier) ? all.device : all.host;
    for (std::size_t r = 0; r < where.size(); ++r)
      where[r] += static_cast<double>(part.at_most ? *part.at_most : part.nbytes_of(static_cast<int>(r)));
  }
  return all;
}

Footprint footprint_of(const ShardingPlan& shards, const Workload& work, const Config& config) {
  Footprint all(shards);
  declare_store(all, work, config);
  declare_reducer(all, work);
  declare_optimizer(all);
  declare_local_steps(all, config);
  // initialize() passes one unit at a time through fp32.
  all.reach(MemoryKind::kStaging, shards.memory_tier(), shards.largest_unit() * 4);
  return all;
}

}  // namespace zero::sharding
