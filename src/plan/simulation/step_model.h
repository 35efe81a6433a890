#pragma once
// StepModel: what a rank does in a step, without times of transfers: operators with their seconds, the units that they
// read, the gradients that are complete after them. Put together from what the engine is built from.
#include <vector>

#include "layout/gather_schedule.h"
#include "plan/engine_memory.h"
#include "sharding/plan/transfers.h"

namespace zero::plan {

struct Operator {
  std::vector<int> units;  ///< of its parameters, in the order of its arguments
  bool in_backward = true;
  double forward_seconds = 0, backward_seconds = 0;
  std::vector<std::vector<int>> arrivals;  ///< parameters whose gradients its backward completes, by turns
};

struct StepModel {
  const ShardingPlan& shards;
  std::vector<Operator> operators;  ///< of the forward pass, in order
  std::int64_t micro_batches = 1;
  sharding::GradientBuckets buckets;
  layout::GatherLimits gather_limits;  ///< its window: at most
  bool gathers = false;                ///< some units are not always whole
  bool measured_prefetch = false;
  bool publishes_late = false;     ///< updated parameters come in the next forward
  bool moves_beside = false;       ///< transfers move while the rank computes
  std::vector<int> whole_units;    ///< that are always whole, and get updated values from other ranks
  std::int64_t publish_numel = 0;  ///< updated parameters go in pieces of at most so many
  double copy_seconds = 0;         ///< of a gradient's element into its bucket
  double update_seconds = 0;

  bool has_peers() const { return shards.world_size > 1; }
};

/// `micro_batch_seconds`: of forward and backward; 0: as the machine's speed says. `shards` outlives it.
StepModel step_model(const ModelShape& model, const Config& config, const Cluster& cluster, const ShardingPlan& shards,
                     const Plan& plan, double micro_batch_seconds);

}  // namespace zero::plan
