#include "sharding/plan/transfers.h"

#include <utility>

#include "layout/bucket_schedule.h"

namespace zero::sharding {
namespace {

/// Shards in the memory of GPUs that ranks do not read in place.
bool is_moved_by_nccl(const ShardingPlan& shards) {
  return layout::is_on_device(shards.memory_tier()) && !layout::is_shared(shards.place.parameters.tier);
}

/// Every host has all parameters, and GPUs copy them from there.
bool is_on_host(const ShardingPlan& shards) {
  return shards.place.uploads() && shards.place.parameters.tier == layout::Tier::kHostShared;
}

constexpr int kTwoTrips = 2;     // a record of the call, then its data (comm/messages/backend.h)
constexpr int kTwoMessages = 2;  // likewise; or the number of a post, and its slice (comm/messages/board.cpp)

/// Several hosts with as many ranks each, more than one.
bool has_even_hosts(const ShardingPlan& shards) {
  return shards.hosts > 1 && shards.alike_hosts && shards.ranks_per_node() > 1;
}

/// A call in which each rank gets what the others have: a host gets it once where it is large
/// (comm/messages/backend.cpp).
Transfer gathered(const ShardingPlan& shards, Transfer transfer) {
  constexpr double kLeastNbytes = 64 << 10;
  const double world = shards.world_size;
  if (transfer.way != Way::kFromEach || layout::is_on_device(shards.memory_tier()) || !has_even_hosts(shards) ||
      transfer.nbytes * world / (world - 1) < kLeastNbytes)
    return transfer;
  transfer.way = Way::kByHost;
  transfer.across = (shards.hosts - 1) / (world - 1);
  ++transfer.trips;
  return transfer;
}

/// Of a collective, in which each rank gets what the others have of `numel` elements.
Transfer to_all(const ShardingPlan& shards, double numel, double element_nbytes) {
  Transfer transfer;
  transfer.way = is_moved_by_nccl(shards) ? Way::kByRing : Way::kFromEach;
  transfer.numel = numel * (shards.world_size - 1.0) / shards.world_size;
  transfer.nbytes = transfer.numel * element_nbytes;
  transfer.messages = kTwoMessages;
  transfer.trips = kTwoTrips;
  return transfer;
}

/// Of `nbytes` that a rank receives, by messages of the host.
Transfer of_host(double nbytes) {
  Transfer transfer;
  transfer.nbytes = nbytes;
  transfer.messages = kTwoMessages;
  transfer.trips = kTwoTrips;
  return transfer;
}

}  // namespace

Transfer gather_of(const ShardingPlan& shards, double numel, double nbytes) {
  // From a disk nothing comes from other ranks, nor where a host has everything.
  const bool comes = !shards.place.parameters.is_on_disk() && !is_on_host(shards);
  return to_all(shards, comes ? numel : 0, numel > 0 ? nbytes / numel : 0);
}

Transfer exchange_of(const ShardingPlan& shards, double numel) {
  const auto block_nbytes = static_cast<double>(shards.sent_gradient_nbytes(layout::kBlockNumel));
  Transfer transfer = to_all(shards, numel, block_nbytes / static_cast<double>(layout::kBlockNumel));
  if (transfer.way == Way::kByRing) {
    transfer.way = Way::kFromEach;  // sums are in the order of ranks, which rings do not keep
    transfer.messages = 1;
    return transfer;
  }
  transfer.trips = 1;  // number and slice go together
  if (!has_even_hosts(shards) || shards.sum_block != shards.ranks_per_node()) return transfer;
  // Of one element: gradients of the ranks beside, and sums of the other hosts.
  const double gradients = (shards.sum_block - 1.0) / shards.sum_block;
  const double sums = (shards.hosts - 1.0) / shards.world_size;
  const double nbytes = gradients * static_cast<double>(shards.gradient_nbytes()) + sums * sizeof(float);
  transfer.way = Way::kByHost;
  transfer.numel = numel * (gradients + sums);
  transfer.nbytes = numel * nbytes;
  transfer.across = sums * sizeof(float) / nbytes;
  transfer.trips = 2;
  return transfer;
}

Transfer publication_of(const ShardingPlan& shards, double numel, bool is_late) {
  const auto low = static_cast<double>(shards.low_nbytes());
  if (shards.place.reads_in_place()) {
    const double received = numel * (shards.hosts - 1) / shards.world_size;
    Transfer transfer = of_host(received * low);
    transfer.way = Way::kAcrossHosts;
    transfer.numel = received;
    return transfer;
  }
  const bool comes = !is_on_host(shards) && shards.sharding.optimizer_states;
  const Transfer from_each = to_all(shards, comes ? numel : 0, low);
  return is_late ? from_each : gathered(shards, from_each);
}

Transfer sums_of(const ShardingPlan& shards, double numel) {
  const double sent = shards.sharding.optimizer_states ? 0 : numel;
  return gathered(shards, to_all(shards, sent, static_cast<double>(shards.sum_nbytes())));
}

Transfer norm_of(const ShardingPlan& shards) {
  const double world = shards.world_size;
  const double blocks = static_cast<double>(shards.padded_numel(true)) / static_cast<double>(layout::kBlockNumel);
  return gathered(shards, of_host(sizeof(double) * (blocks + world) * (world - 1) / world));
}

Transfer agreement_of(const ShardingPlan& shards) {
  const double words = 3 + static_cast<double>((shards.parameter_count() + 63) / 64);
  return of_host(sizeof(std::uint64_t) * words * (shards.world_size - 1));
}

bool may_publish_late(const Config& config, const ShardingPlan& shards) {
  using layout::Tier;
  // The node-shared store's table of parcels grows with the square of the number of ranks.
  constexpr int kMostSharingRanks = 256;
  const layout::Placements& place = shards.place;
  // Updates in backward write shards that others may still fetch, and the debug observer looks at memory.
  return config.zerotorch.overlap_all_gather != Config::Zerotorch::OverlapAllGather::kNever && shards.world_size > 1 &&
         shards.sharding.optimizer_states && place.units != Tier::kDevice &&
         !layout::is_on_device(shards.memory_tier()) && shards.update.keeps_gradients &&
         !config.zerotorch.debug_observer && (!place.reads_in_place() || shards.world_size <= kMostSharingRanks);
}

std::int64_t most_late_numel(DType param_dtype) {
  constexpr std::size_t kMostNbytes = 4 << 20;
  return static_cast<std::int64_t>(kMostNbytes / element_nbytes(param_dtype));
}

GradientBuckets gradient_buckets(const ShardingPlan& shards) {
  GradientBuckets buckets;
  buckets.places.resize(shards.parameter_count());
  for (const auto& unit : shards.units) {
    if (!unit.trainable) continue;
    for (auto& bucket : layout::cut_into_buckets(unit.slots, unit.numel, shards.bucket_numel)) {
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i)
        buckets.places[bucket.parameters[i]].push_back({static_cast<int>(buckets.numel.size()), static_cast<int>(i)});
      buckets.numel.push_back(bucket.range.numel());
      buckets.parameters.push_back(std::move(bucket.parameters));
    }
  }
  return buckets;
}

}  // namespace zero::sharding
