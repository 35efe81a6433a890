#pragma once
// What moves in an optimizer step, and how long that takes at least.
#include "plan/engine_memory.h"

namespace zero::plan {

/// The ranks of a cluster as islands that train apart (zerotorch.local_steps); else as one.
struct Islands {
  int count = 1;
  int ranks = 1;           ///< of an island
  int ranks_per_node = 1;  ///< of these on a host, at most
};
/// Throws ConfigError where the ranks do not make islands of one size.
Islands islands_of(const Config& config, int ranks, int ranks_per_node);

/// What the parts of the engine move, on this cluster; `disk`: of the heaviest rank. `cluster`: checked.
Traffic traffic_of(const sharding::StepTraffic& step, const sharding::DiskUse& disk, const Cluster& cluster,
                   const Islands& islands);

/// Of forward and backward of a step on a rank, what is computed again included; products of matrices and attention. 0
/// where the model is no transformer.
double flops_of(const ModelShape& model, const Config& config);

/// By `cluster.speeds`.
StepTimes times_of(const Plan& plan, const Config& config, const Cluster& cluster);

}  // namespace zero::plan
