// simulate_step(): from a plan to the time of its step.
#include <algorithm>
#include <memory>
#include <utility>

#include "plan/simulation/rank_player.h"
#include "plan/traffic.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

/// The order of use is known after the first, and how far ahead to gather is chosen after the third.
constexpr int kSteps = 5;
/// Micro-batches beyond those are as the last but one.
constexpr std::int64_t kMostMicroBatches = 4;
constexpr int kMostSeparateRanks = 64;

bool is_known(const Cluster& cluster, const Plan& plan, const SimulationOptions& options) {
  const bool has_compute = options.micro_batch_seconds > 0 || plan.times.compute > 0;
  return has_compute && (plan.nodes == 1 || cluster.speeds.between_hosts > 0);
}

/// What is on disks and between GPUs and their hosts goes on beside all else, at best.
double at_least(const Plan& plan) {
  return std::max({plan.times.disk, plan.times.to_device, plan.times.from_device,
                   plan.times.update_is_beside ? plan.times.update : 0});
}

}  // namespace

StepSimulation simulate_step(const ModelShape& model, Config config, const Cluster& cluster, const Plan& plan,
                             const SimulationOptions& options) {
  StepSimulation result;
  if (!is_known(cluster, plan, options)) return result;
  if (options.each_rank && plan.ranks > kMostSeparateRanks)
    throw ConfigError(
        "simulate_step: too many ranks to simulate each by itself; leave SimulationOptions::each_rank away");
  config = planned(std::move(config), plan.ranks);
  const Islands islands = islands_of(config, plan.ranks, plan.ranks_per_node);
  const ShardingPlan shards =
      shard(model, config, islands.ranks, islands.ranks_per_node, cluster.gpus, cluster.node_memory_nbytes);
  if (shards.padded_numel() / shards.bucket_numel > sharding::kMostBuckets) return result;
  const StepModel step = step_model(model, config, cluster, shards, plan, options.micro_batch_seconds);
  const Topology topology = options.each_rank ? Topology::of_ranks(islands.ranks, islands.ranks_per_node)
                                              : Topology::of_classes(islands.ranks, islands.ranks_per_node);
  World world(topology, cluster.speeds, {.moves_beside = step.moves_beside, .in_turn = cluster.gpus});
  std::vector<std::unique_ptr<RankPlayer>> players;
  for (std::size_t c = 0; c < topology.ranks().size(); ++c)
    players.push_back(std::make_unique<RankPlayer>(step, world, static_cast<int>(c), kSteps, kMostMicroBatches));
  world.run([&](int ranks) { return players[static_cast<std::size_t>(ranks)]->play(); });

  Elapsed mean;
  double busiest = 0;  // bytes into a host
  for (std::size_t c = 0; c < players.size(); ++c) {
    const Elapsed elapsed = players[c]->last_step();
    mean += elapsed * (topology.ranks_of(static_cast<int>(c)) / topology.rank_count());
    busiest = std::max(busiest,
                       elapsed.between_hosts_nbytes *
                           topology.hosts()[static_cast<std::size_t>(topology.ranks()[c].host_class)].ranks_per_host);
  }
  // Nothing goes on beside the exchange of islands, of which a step has its share.
  const double exchanged = exchanged_between_hosts(plan.traffic.islands_numel * static_cast<double>(sizeof(float)),
                                                   islands, plan.ranks_per_node);
  const double exchange = exchanged > 0 ? exchanged * plan.ranks_per_node / cluster.speeds.between_hosts : 0;
  mean.parameters += exchange;
  mean.received_nbytes += exchanged;
  mean.between_hosts_nbytes += exchanged;
  busiest += exchanged * plan.ranks_per_node;
  result.seconds = std::max(mean.seconds + exchange, at_least(plan));
  result.compute = mean.compute;
  result.copies = mean.copies;
  result.update = mean.update;
  result.waits_for_parameters = mean.parameters;
  result.waits_for_gradients = mean.gradients;
  result.waits_for_ranks = mean.ranks;
  result.nbytes = mean.received_nbytes;
  result.between_hosts_nbytes = mean.between_hosts_nbytes;
  result.messages = mean.messages;
  if (cluster.speeds.between_hosts > 0) {
    const double both_ways = cluster.speeds.half_duplex ? 2 : 1;
    result.link_use = both_ways * busiest / cluster.speeds.between_hosts / result.seconds;
  }
  result.events = world.events();
  return result;
}

}  // namespace zero::plan
