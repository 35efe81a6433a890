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

/// What a rank receives from other hosts when islands exchange, of `nbytes` from all islands.
double exchanged_between_hosts(double nbytes, const Islands& islands, int ranks_per_node);

/// Of forward and backward of a step on a rank, what is computed again included; products of matrices and attention. 0
/// where the model is no transformer.
double flops_of(const ModelShape& model, const Config& config);

/// Parts of the time of forward and backward, of an operator.
struct OperatorParts {
  double forward = 0, backward = 0;
};
/// By `uses`; all of them together are 1. By the products of matrices: operators without a matrix take no time.
std::vector<OperatorParts> operator_parts(const ModelShape& model, const std::vector<Use>& uses);

/// By `cluster.speeds`.
StepTimes times_of(const Plan& plan, const Config& config, const Cluster& cluster);

}  // namespace zero::plan
