#pragma once
// What moves between ranks in a step, one transfer at a time: which way, how much, in how many messages. The parts'
// traffic (StepTraffic) is a sum of these, and the simulation of a step plays them one after the other.
#include <cstdint>
#include <vector>

#include "sharding/plan/sharding_plan.h"
#include "zero/config.h"

namespace zero::sharding {

enum class Way : std::uint8_t {
  kFromEach,     ///< from every other rank, a message each
  kByRing,       ///< NCCL's rings through all ranks, in which each host receives everything once
  kAcrossHosts,  ///< from the ranks at its place on other hosts, for all ranks of its host
  kByHost,       ///< from these and from the ranks of its host, which hand on what they have got or added
};

struct Transfer {
  Way way = Way::kFromEach;
  double numel = 0;   ///< that a rank receives, mean over ranks
  double nbytes = 0;  ///< the same
  int messages = 1;   ///< from each peer
  int trips = 1;      ///< of messages that wait for each other: a question and its answer are two
  double across = 0;  ///< kByHost: the part of `nbytes` that comes from other hosts
};

/// Of `numel` elements of units, which are gathered as `nbytes`: nothing where no rank needs other ranks for them.
Transfer gather_of(const ShardingPlan& shards, double numel, double nbytes);
/// Of a bucket's gradients to their owners, added there.
Transfer exchange_of(const ShardingPlan& shards, double numel);
/// Of updated parameters that are always whole: of the node-shared store, or of resident units. `is_late`: each rank
/// fetches them (late_units.h); else they come in a call.
Transfer publication_of(const ShardingPlan& shards, double numel, bool is_late);
/// Of sums of gradients, where every rank updates everything.
Transfer sums_of(const ShardingPlan& shards, double numel);
/// Every rank learns the others' block sums and a hash of their order of use, as fp64 (GradientNorm).
Transfer norm_of(const ShardingPlan& shards);
/// What ranks tell each other at the end of a micro-batch (MicroBatchAgreement).
Transfer agreement_of(const ShardingPlan& shards);

/// Whether updated parameters may come while the next forward begins (late_units.h), by all that is known before there
/// is a group: what OverlapAllGather::kAuto wants besides is the engine's to find out.
bool may_publish_late(const Config& config, const ShardingPlan& shards);
/// Other ranks' elements that are on their way at once (layout/late_schedule.h).
std::int64_t most_late_numel(DType param_dtype);

/// The buckets of a model's gradients, and where its parameters lie in them.
struct GradientBuckets {
  struct Place {
    int bucket, position;
  };
  std::vector<std::int64_t> numel;
  std::vector<std::vector<int>> parameters;  ///< by bucket
  std::vector<std::vector<Place>> places;    ///< by parameter
};
GradientBuckets gradient_buckets(const ShardingPlan& shards);

}  // namespace zero::sharding
