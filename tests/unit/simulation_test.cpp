// The simulation of a step: links against formulas, the engine's schedules against what the parts declare, classes of
// ranks against each rank by itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "plan/engine_memory.h"
#include "plan/simulation/world.h"
#include "sharding/plan/transfers.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan::simulation_test {
namespace {

using sharding::Transfer;
using sharding::Way;

constexpr double kRate = 1e9;

/// Ranks of which each does what it is told in one call, and then waits for its transfers.
class Ranks {
 public:
  Ranks(const Topology& topology, const Speeds& speeds, World::Ways ways = {})
      : topology_(topology), world_(topology_, speeds, ways), mine_(topology.ranks().size()) {}

  /// Each receives so much, from each other. Returns the seconds until the last one has.
  double exchange(const Transfer& transfer, int times = 1, double computing = 0) {
    bool begun = false;
    double end = 0;
    world_.run([&](int ranks) {
      auto& mine = mine_[static_cast<std::size_t>(ranks)];
      if (mine.empty()) {
        for (int i = 0; i < times; ++i) {
          const World::Topic topic{.number = static_cast<std::uint64_t>(i)};
          world_.announce(ranks, topic);
          mine.push_back(world_.start(ranks, transfer, topic));
        }
        begun = true;
        if (computing > 0) {
          world_.compute(ranks, computing);
          return true;
        }
      }
      for (const int started : mine) {
        if (!world_.is_over(started)) return true;
        if (started == 0) first_ = world_.seconds_of(started);
      }
      end = std::max(end, world_.now());
      return false;
    });
    EXPECT_TRUE(begun);
    return end;
  }
  /// Of the first transfer of the first ranks.
  double first() const { return first_; }

 private:
  const Topology topology_;
  World world_;
  std::vector<std::vector<int>> mine_;
  double first_ = 0;
};

Transfer of_nbytes(double nbytes, Way way = Way::kFromEach) {
  Transfer transfer;
  transfer.way = way;
  transfer.nbytes = nbytes;
  return transfer;
}

Speeds hosts_at(double rate, double latency = 0) {
  Speeds speeds;
  speeds.between_hosts = rate;
  speeds.host_latency = latency;
  return speeds;
}

TEST(World, BytesOverRateAndLatency) {
  const Topology two = Topology::of_classes(2, 1);
  EXPECT_NEAR(Ranks(two, hosts_at(kRate)).exchange(of_nbytes(5e8)), 0.5, 1e-9);
  EXPECT_NEAR(Ranks(two, hosts_at(kRate, 0.01)).exchange(of_nbytes(5e8)), 0.51, 1e-9);
  // A question goes first.
  Transfer asked = of_nbytes(5e8);
  asked.trips = 2;
  EXPECT_NEAR(Ranks(two, hosts_at(kRate, 0.01)).exchange(asked), 0.52, 1e-9);
  // Latencies of several overlap.
  EXPECT_NEAR(Ranks(two, hosts_at(kRate, 0.01)).exchange(of_nbytes(5e8), 3), 1.51, 1e-9);
}

TEST(World, TransfersShareTheirConnectionsOrFollowEachOther) {
  const Topology two = Topology::of_classes(2, 1);
  for (const bool in_turn : {false, true}) {
    Ranks ranks(two, hosts_at(kRate), {.in_turn = in_turn});
    EXPECT_NEAR(ranks.exchange(of_nbytes(5e8), 3), 1.5, 1e-9);
    EXPECT_NEAR(ranks.first(), in_turn ? 0.5 : 1.5, 1e-9);
  }
}

TEST(World, BothDirectionsShareAHalfDuplexLink) {
  Speeds speeds = hosts_at(kRate);
  speeds.half_duplex = true;
  EXPECT_NEAR(Ranks(Topology::of_classes(2, 1), speeds).exchange(of_nbytes(5e8)), 1, 1e-9);
}

TEST(World, RanksOfAHostShareItsLink) {
  // Each of 4 ranks receives a third from each other one: two thirds come from the other host, for two ranks.
  EXPECT_NEAR(Ranks(Topology::of_classes(4, 2), hosts_at(kRate)).exchange(of_nbytes(3e8)), 0.4, 1e-9);
  // What is inside the host goes on beside, unless it takes longer.
  Speeds speeds = hosts_at(kRate);
  speeds.between_ranks = 1e8;
  EXPECT_NEAR(Ranks(Topology::of_classes(4, 2), speeds).exchange(of_nbytes(3e8)), 1, 1e-9);
  // Once for each host: each of its ranks gets its part.
  EXPECT_NEAR(Ranks(Topology::of_classes(4, 2), hosts_at(kRate)).exchange(of_nbytes(1e8, Way::kAcrossHosts)), 0.2,
              1e-9);
}

TEST(World, ARingEntersEachHostOnce) {
  Speeds speeds = hosts_at(kRate, 1e-3);
  speeds.rank_latency = 1e-5;
  const double nbytes = 8e8, hops = 3 * 1e-3 + (32 - 4) * 1e-5;
  EXPECT_NEAR(Ranks(Topology::of_classes(32, 8), speeds).exchange(of_nbytes(nbytes, Way::kByRing)), 0.8 + hops, 1e-9);
  EXPECT_NEAR(Ranks(Topology::of_classes(32, 8), speeds).exchange(of_nbytes(nbytes)), 8 * 0.8 * 24 / 31 + 1e-3, 1e-9);
}

TEST(World, MessagesTakeTimeOfTheirRank) {
  Speeds speeds = hosts_at(kRate);
  speeds.message_seconds = 1e-3;
  Transfer small = of_nbytes(1);
  small.messages = 2;
  EXPECT_NEAR(Ranks(Topology::of_classes(101, 1), speeds).exchange(small), 0.2, 1e-6);
}

TEST(World, MovingTakesACoreFromComputing) {
  Speeds speeds = hosts_at(kRate);
  speeds.moved_by_core = 4 * kRate;
  // Half of the core for a second of moving in and out, then all of it.
  EXPECT_NEAR(Ranks(Topology::of_classes(2, 1), speeds).exchange(of_nbytes(kRate), 1, 2), 2.5, 1e-9);
  // Where a core moves less than the link, computing keeps half of it.
  speeds.moved_by_core = kRate / 2;
  EXPECT_NEAR(Ranks(Topology::of_classes(2, 1), speeds).exchange(of_nbytes(kRate), 1, 1), 2 + 3, 1e-9);
}

TEST(World, WithoutAThreadDataMovesInCallsOnly) {
  const Topology two = Topology::of_classes(2, 1);
  EXPECT_NEAR(Ranks(two, hosts_at(kRate), {.moves_beside = false}).exchange(of_nbytes(kRate), 1, 2), 3, 1e-9);
  EXPECT_NEAR(Ranks(two, hosts_at(kRate)).exchange(of_nbytes(kRate), 1, 2), 2, 1e-9);
}

// ---- Steps ----

ModelShape small_gpt() { return transformer({.layers = 4, .dim = 128, .heads = 4, .seq = 64}, "gpt"); }

Config config_of(int stage, const std::string& zero = "", const std::string& ours = "", int accumulation = 1) {
  return Config::from_text(fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
           "zero_optimization": {{"stage": {}{}}}, "zerotorch": {{"unit_numel": 100000{}}}}})",
      accumulation, stage, zero, ours));
}

Cluster hosts_of(int ranks, int per_host, double rate = 1e8, double latency = 1e-4) {
  Cluster cluster{.ranks = ranks, .ranks_per_node = per_host};
  cluster.speeds = hosts_at(rate, latency);
  cluster.speeds.between_ranks = 5e9;
  cluster.speeds.rank_latency = 1e-6;
  cluster.speeds.flops_per_s = 1e10;
  cluster.speeds.host_memory = 2e10;
  return cluster;
}

StepSimulation simulate(const Config& config, const Cluster& cluster, bool each_rank = false) {
  const ModelShape model = small_gpt();
  return simulate_step(model, config, cluster, plan_memory(model, config, cluster), {.each_rank = each_rank});
}

struct Case {
  std::string name;
  Config config;
};
std::vector<Case> cases() {
  return {{"stage 0", config_of(0)},
          {"stage 1", config_of(1)},
          {"stage 2", config_of(2)},
          {"stage 2, accumulation", config_of(2, "", "", 3)},
          {"stage 2, waiting", config_of(2, R"(, "overlap_comm": false)", R"(, "overlap_all_gather": "never")")},
          {"stage 3 copying", config_of(3, "", R"(, "store": "copying")")},
          {"stage 3 copying, accumulation", config_of(3, "", R"(, "store": "copying")", 2)},
          {"stage 3 copying, no reuse", config_of(3, R"(, "stage3_max_reuse_distance": 0)", R"(, "store": "copying")")},
          {"stage 3 copying, waiting", config_of(3, R"(, "overlap_comm": false)", R"(, "store": "copying")")},
          {"stage 3 copying, no thread",
           config_of(3, "", R"(, "store": "copying", "progress_thread": "never", "overlap_all_gather": "never")")},
          {"node_shared", config_of(3, "", R"(, "store": "node_shared")")},
          {"node_shared, waiting", config_of(3, "", R"(, "store": "node_shared", "overlap_all_gather": "never")")}};
}
bool is_node_shared(const Case& of) { return of.config.zerotorch.store == Config::Zerotorch::Store::kNodeShared; }

TEST(SimulateStep, NeedsTheSpeedsItIsMadeOf) {
  Cluster cluster = hosts_of(4, 2);
  cluster.speeds.between_hosts = 0;
  EXPECT_EQ(simulate(config_of(2), cluster).seconds, 0);
  cluster = hosts_of(4, 2);
  cluster.speeds.flops_per_s = 0;
  EXPECT_EQ(simulate(config_of(2), cluster).seconds, 0);
  EXPECT_GT(simulate(config_of(2), hosts_of(4, 4)).seconds, 0);
  EXPECT_THROW(simulate(config_of(2), hosts_of(100, 2), /*each_rank=*/true), ConfigError);
}

TEST(SimulateStep, OneRankComputesAndUpdates) {
  const ModelShape model = small_gpt();
  const Cluster cluster = hosts_of(1, 1);
  const Plan plan = plan_memory(model, config_of(2), cluster);
  const StepSimulation step = simulate(config_of(2), cluster);
  EXPECT_NEAR(step.seconds, plan.times.compute + plan.times.update, 1e-9);
  EXPECT_NEAR(step.compute, plan.times.compute, 1e-9);
  EXPECT_EQ(step.nbytes, 0);
}

/// Where nothing goes on beside anything, a step is a sum.
TEST(SimulateStep, IsTheSumOfItsPartsWithoutOverlap) {
  const ModelShape model = small_gpt();
  for (const int stage : {1, 2, 3}) {
    const Config config =
        config_of(stage, R"(, "overlap_comm": false)",
                  R"(, "store": "copying", "overlap_all_gather": "never", "progress_thread": "never")");
    const double rate = 1e8, latency = 1e-3;
    const Cluster cluster = hosts_of(2, 1, rate, latency);
    const Plan plan = plan_memory(model, config, cluster);
    const ShardingPlan shards = shard(model, config, 2, 1, false);
    const auto buckets = sharding::gradient_buckets(shards);
    double resident = 0, gathers = 0;
    for (std::size_t u = 0; u < shards.units.size(); ++u) resident += shards.resident[u] ? 1 : 0;
    if (stage == 3) gathers = plan.traffic.gathered_numel > 0 ? -1 : 0;
    const double copies = 2.0 * 4 * static_cast<double>(shards.padded_numel()) / cluster.speeds.host_memory;
    const double bytes = plan.traffic.nbytes + sharding::agreement_of(shards).nbytes;
    const StepSimulation step = simulate(config, cluster);
    // One trip for a bucket, two for a collective and for a gather.
    const double collectives = 2 + resident;
    const double fixed = plan.times.compute + plan.times.update + copies + bytes / rate +
                         latency * (static_cast<double>(buckets.numel.size()) + 2 * collectives);
    if (gathers == 0) {
      EXPECT_NEAR(step.seconds, fixed, 1e-9) << "stage " << stage;
      continue;
    }
    // As many gathers as seconds are left for their two trips: a whole number, more than once for each unit.
    const double made = (step.seconds - fixed) / (2 * latency);
    EXPECT_NEAR(made, std::round(made), 1e-6);
    EXPECT_GE(made, static_cast<double>(shards.units.size()) - resident);
  }
}

TEST(SimulateStep, MovesWhatThePartsDeclare) {
  const ModelShape model = small_gpt();
  for (const Case& of : cases()) {
    for (const auto& [ranks, per_host] : {std::pair(2, 1), std::pair(4, 2), std::pair(5, 2), std::pair(3, 3)}) {
      if (is_node_shared(of) && ranks % per_host != 0) continue;
      const Cluster cluster = hosts_of(ranks, per_host);
      const Plan plan = plan_memory(model, of.config, cluster);
      const StepSimulation step = simulate(of.config, cluster);
      const ShardingPlan shards = shard(model, of.config, ranks, per_host, false);
      const double told = sharding::agreement_of(shards).nbytes * static_cast<double>(plan.accumulation_steps);
      EXPECT_NEAR(step.nbytes / (plan.traffic.nbytes + told), 1, 1e-9) << of.name << ", " << ranks << " ranks";
      const double part = plan.traffic.nbytes > 0 ? plan.traffic.between_hosts_nbytes / plan.traffic.nbytes : 0;
      if (is_node_shared(of)) continue;
      // What ranks tell each other comes evenly from each; of the rest a host may get a part only once.
      const double away = ranks % per_host == 0 ? (ranks - per_host) / (ranks - 1.0) : part;
      EXPECT_NEAR(step.between_hosts_nbytes, plan.traffic.between_hosts_nbytes + away * told, 1e-6 * step.nbytes)
          << of.name;
    }
  }
}

/// Of the gradients, half as much passes between hosts of two ranks; the rest stays as it is.
TEST(SimulateStep, HostsAddGradientsFirst) {
  const Config plain = config_of(2), blocks = config_of(2, "", R"(, "hierarchical_reduce": 2)");
  for (const int hosts : {2, 3}) {
    const Cluster cluster = hosts_of(2 * hosts, 2);
    const Plan before = plan_memory(small_gpt(), plain, cluster), after = plan_memory(small_gpt(), blocks, cluster);
    const auto sums = 4 * static_cast<double>(before.padded_numel) * (hosts - 1) / (2 * hosts);  // into a rank
    EXPECT_NEAR(before.traffic.between_hosts_nbytes - after.traffic.between_hosts_nbytes, sums, 1e-6 * sums);
    const StepSimulation step = simulate(blocks, cluster), each = simulate(blocks, cluster, true);
    EXPECT_NEAR(step.seconds, each.seconds, 1e-6 * each.seconds);
    EXPECT_NEAR(simulate(plain, cluster).between_hosts_nbytes - step.between_hosts_nbytes, sums, 1e-6 * sums);
  }
  ModelShape frozen = small_gpt();  // has no gradients
  for (auto& parameter : frozen.parameters) parameter.trainable = false;
  EXPECT_EQ(plan_memory(frozen, blocks, hosts_of(4, 2)).traffic.nbytes,
            plan_memory(frozen, plain, hosts_of(4, 2)).traffic.nbytes);
  // On other hosts every gradient travels by itself.
  EXPECT_EQ(plan_memory(small_gpt(), blocks, hosts_of(6, 3)).traffic.between_hosts_nbytes,
            plan_memory(small_gpt(), plain, hosts_of(6, 3)).traffic.between_hosts_nbytes);
}

Cluster gpus_of(int ranks, int per_host) {
  Cluster cluster = hosts_of(ranks, per_host);
  cluster.gpus = true;
  cluster.speeds.device_memory = 1e11;
  return cluster;
}

TEST(SimulateStep, GpusMoveWhatThePartsDeclare) {
  const ModelShape model = small_gpt();
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [ranks, per_host] : {std::pair(4, 2), std::pair(6, 3), std::pair(4, 1)}) {
      const Config config = config_of(stage, "", R"(, "store": "copying")", 2);
      const Cluster cluster = gpus_of(ranks, per_host);
      const Plan plan = plan_memory(model, config, cluster);
      const StepSimulation step = simulate(config, cluster), each = simulate(config, cluster, true);
      const ShardingPlan shards = shard(model, config, ranks, per_host, true);
      const double told = sharding::agreement_of(shards).nbytes * 2, hosts = ranks / per_host;
      EXPECT_NEAR(step.nbytes / (plan.traffic.nbytes + told), 1, 1e-9) << "stage " << stage << ", " << ranks;
      // Rings bring less across hosts than each from each.
      const double away = told * (ranks - ranks / hosts) / (ranks - 1);
      EXPECT_NEAR(step.between_hosts_nbytes, plan.traffic.between_hosts_nbytes + away, 1e-6 * step.nbytes);
      EXPECT_NEAR(step.seconds, each.seconds, 1e-6 * each.seconds) << "stage " << stage << ", " << ranks;
      EXPECT_NEAR(step.compute + step.copies + step.update + step.waits(), step.seconds, 1e-9 * step.seconds);
    }
  }
}

TEST(SimulateStep, WhatARankDoesAddsUp) {
  for (const Case& of : cases()) {
    const StepSimulation step = simulate(of.config, hosts_of(4, 2));
    EXPECT_NEAR(step.compute + step.copies + step.update + step.waits(), step.seconds, 1e-9 * step.seconds) << of.name;
    EXPECT_LE(step.link_use, 1 + 1e-9) << of.name;
    EXPECT_GT(step.link_use, 0) << of.name;
  }
}

TEST(SimulateStep, ClassesAreTheirRanks) {
  for (const Case& of : cases()) {
    for (const int per_host : {1, 2, 3}) {
      for (const int ranks : {2, 3, 4, 5, 6, 7, 9}) {
        if (is_node_shared(of) && ranks % per_host != 0) continue;
        Cluster cluster = hosts_of(ranks, per_host);
        cluster.speeds.moved_by_core = 1e9;
        cluster.speeds.message_seconds = 1e-6;
        const StepSimulation classes = simulate(of.config, cluster), each = simulate(of.config, cluster, true);
        EXPECT_NEAR(classes.seconds, each.seconds, 1e-6 * each.seconds)
            << of.name << ", " << ranks << " ranks, " << per_host << " on a host";
        EXPECT_NEAR(classes.nbytes, each.nbytes, 1e-6 * each.nbytes);
        EXPECT_NEAR(classes.messages, each.messages, 1e-6 * each.messages);
      }
    }
  }
}

TEST(SimulateStep, FasterLinksAreNotSlower) {
  for (const Case& of : cases()) {
    double before = std::numeric_limits<double>::infinity();
    for (double rate = 1e6; rate < 1e11; rate *= 2) {
      const double seconds = simulate(of.config, hosts_of(4, 2, rate)).seconds;
      EXPECT_LE(seconds, before * (1 + 1e-9)) << of.name << " at " << rate;
      before = seconds;
    }
    before = 0;
    for (double latency = 1e-7; latency < 1; latency *= 4) {
      const double seconds = simulate(of.config, hosts_of(4, 2, 1e8, latency)).seconds;
      EXPECT_GE(seconds, before * (1 - 1e-9)) << of.name << " at " << latency;
      before = seconds;
    }
    Cluster half = hosts_of(4, 2);
    half.speeds.half_duplex = true;
    EXPECT_GE(simulate(of.config, half).seconds, simulate(of.config, hosts_of(4, 2)).seconds) << of.name;
  }
}

TEST(SimulateStep, IsNeverShorterThanWhatItsPartsTake) {
  const ModelShape model = small_gpt();
  for (const Case& of : cases()) {
    for (const double rate : {1e6, 1e8, 1e10}) {
      const Cluster cluster = hosts_of(4, 2, rate);
      const Plan plan = plan_memory(model, of.config, cluster);
      EXPECT_GE(simulate(of.config, cluster).seconds, plan.times.at_least() * (1 - 1e-9)) << of.name << " at " << rate;
    }
  }
}

TEST(SimulateStep, OverlapHidesWhatComputingIsLongEnoughFor) {
  Cluster cluster = hosts_of(2, 1, 1e10, 1e-6);
  const double compute = plan_memory(small_gpt(), config_of(2), cluster).times.compute;
  const StepSimulation with = simulate(config_of(2), cluster);
  EXPECT_LT(with.waits(), 0.02 * compute);
}

TEST(SimulateStep, MoreMicroBatchesAreMoreOfTheSame) {
  const Cluster cluster = hosts_of(4, 2);
  const auto seconds = [&](int accumulation) { return simulate(config_of(2, "", "", accumulation), cluster).seconds; };
  const double one_more = seconds(5) - seconds(4);
  EXPECT_NEAR(seconds(20) - seconds(4), 16 * one_more, 1e-6 * seconds(20));
}

TEST(SimulateStep, ManyRanksTakeNoMoreEventsThanFew) {
  const ModelShape model = model_of_numel(1'000'000'000);
  for (const int stage : {1, 2, 3}) {
    std::vector<std::int64_t> events;
    for (const int ranks : {64, 100'000}) {
      Cluster cluster = hosts_of(ranks, 8, 5e10, 1e-5);
      const Config config = Config::from_text(fmt::format(
          R"({{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": {}}},
               "zerotorch": {{"store": "copying"}}}})",
          stage));
      const Plan plan = plan_memory(model, config, cluster);
      const StepSimulation step = simulate_step(model, config, cluster, plan, {.micro_batch_seconds = 1});
      EXPECT_GT(step.seconds, 1);
      events.push_back(step.events);
    }
    EXPECT_LE(events[1], 2 * events[0]) << "stage " << stage;
    EXPECT_LT(events[1], 100'000) << "stage " << stage;
  }
}

}  // namespace
}  // namespace zero::plan::simulation_test
