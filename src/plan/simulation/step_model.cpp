#include "plan/simulation/step_model.h"

#include <algorithm>

#include "plan/traffic.h"

namespace zero::plan {
namespace {

/// By parameter: the operator that uses it first, the last one that backward reaches.
std::vector<std::size_t> first_uses(const std::vector<Use>& uses, std::size_t parameters) {
  std::vector<std::size_t> first(parameters, 0);
  for (std::size_t u = uses.size(); u-- > 0;) {
    for (const int p : uses[u].parameters) first[static_cast<std::size_t>(p)] = u;
  }
  return first;
}

/// Between hosts there is a thread, or on GPUs a stream, for what moves; on one host moving is copying, which the ranks
/// do themselves, unless they have a core for it.
bool moves_beside(const Config& config, const Cluster& cluster, int hosts) {
  using ProgressThread = Config::Zerotorch::ProgressThread;
  if (cluster.gpus) return true;
  const auto wanted = config.zerotorch.progress_thread;
  return wanted == ProgressThread::kAuto ? hosts > 1 : wanted == ProgressThread::kAlways;
}

bool publishes_late(const Config& config, const ShardingPlan& shards, bool has_thread) {
  using Overlap = Config::Zerotorch::OverlapAllGather;
  if (!sharding::may_publish_late(config, shards)) return false;
  return config.zerotorch.overlap_all_gather == Overlap::kAlways || (shards.hosts > 1 && has_thread);
}

}  // namespace

StepModel step_model(const ModelShape& model, const Config& config, const Cluster& cluster, const ShardingPlan& shards,
                     const Plan& plan, double micro_batch_seconds) {
  StepModel step{.shards = shards, .buckets = sharding::gradient_buckets(shards)};
  const sharding::Workload work = workload_of(model, config);
  step.micro_batches = std::max<std::int64_t>(1, work.micro_batches);
  const std::vector<int> unit_of = shards.unit_of_parameter();
  const std::vector<OperatorParts> parts = operator_parts(model, work.uses);
  const double seconds =
      micro_batch_seconds > 0 ? micro_batch_seconds : plan.times.compute / static_cast<double>(step.micro_batches);
  for (std::size_t u = 0; u < work.uses.size(); ++u) {
    Operator& made = step.operators.emplace_back();
    for (const int p : work.uses[u].parameters) made.units.push_back(unit_of[static_cast<std::size_t>(p)]);
    made.in_backward = work.uses[u].in_backward;
    made.forward_seconds = parts[u].forward * seconds;
    made.backward_seconds = parts[u].backward * seconds;
  }
  const std::vector<std::size_t> first = first_uses(work.uses, model.parameters.size());
  for (const auto& group : work.arrivals) {
    std::size_t last = step.operators.size() - 1;
    for (const int p : group) last = std::min(last, first[static_cast<std::size_t>(p)]);
    step.operators[last].arrivals.push_back(group);
  }
  step.gather_limits = {.max_live_numel = config.zero_optimization.stage3_max_live_parameters,
                        .max_reuse_numel = config.zero_optimization.stage3_max_reuse_distance,
                        .window_numel = shards.prefetch_numel};
  const bool in_place = shards.place.reads_in_place();
  step.gathers = !in_place && std::ranges::find(shards.resident, false) != shards.resident.end();
  // By NCCL gathers are not timed.
  const bool by_nccl = sharding::gather_of(shards, 1, 1).way == sharding::Way::kByRing;
  step.measured_prefetch = step.gathers && config.zerotorch.measured_prefetch && !by_nccl && shards.prefetch_numel > 0;
  step.moves_beside = moves_beside(config, cluster, shards.hosts);
  step.publishes_late = publishes_late(config, shards, step.moves_beside) && (!in_place || shards.hosts > 1);
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    const bool is_whole = in_place || shards.resident[u];
    const bool comes = shards.units[u].trainable && sharding::publication_of(shards, 1, /*is_late=*/true).nbytes > 0;
    if (is_whole && comes) step.whole_units.push_back(static_cast<int>(u));
  }
  step.publish_numel = config.zero_optimization.allgather_bucket_size;
  // Each element is read once and written once.
  const double memory = cluster.gpus ? cluster.speeds.device_memory : cluster.speeds.host_memory / plan.ranks_per_node;
  if (memory > 0 && shards.world_size > 1)
    step.copy_seconds = 2.0 * static_cast<double>(shards.gradient_nbytes()) / memory;
  if (!plan.times.update_is_beside) step.update_seconds = std::max(plan.times.update, plan.times.disk_of_update);
  return step;
}

}  // namespace zero::plan
