#include <gtest/gtest.h>

#include "layout/prefetch_window.h"
#include "layout/shard.h"
#include "layout/tensor_rounds.h"
#include "layout/units.h"
#include "layout/use_order.h"
#include "zero/errors.h"

namespace zero::layout::layout_test {
namespace {

TEST(Shard, CutsCoverTheUnitInWholeBlocksAndDifferByOneBlockAtMost) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (std::int64_t blocks = 0; blocks <= 20; ++blocks) {
      for (int unit = 0; unit < 5; ++unit) {
        const auto cuts = shard_cuts(blocks * kBlockNumel, ranks, unit);
        ASSERT_EQ(cuts.size(), ranks + 1u);
        EXPECT_EQ(cuts.front(), 0);
        EXPECT_EQ(cuts.back(), blocks * kBlockNumel);
        std::int64_t least = INT64_MAX, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::int64_t numel = cuts[rank + 1] - cuts[rank];
          EXPECT_GE(numel, 0);
          EXPECT_EQ(numel % kBlockNumel, 0);
          least = std::min(least, numel);
          most = std::max(most, numel);
        }
        EXPECT_LE(most - least, kBlockNumel);
      }
    }
  }
}

TEST(Shard, SmallUnitsLoadAllRanksAlike) {
  std::vector<std::int64_t> load(4, 0);
  for (int unit = 0; unit < 8; ++unit) {
    const auto cuts = shard_cuts(kBlockNumel, 4, unit);
    for (int rank = 0; rank < 4; ++rank) load[rank] += cuts[rank + 1] - cuts[rank];
  }
  EXPECT_EQ(load, std::vector<std::int64_t>(4, 2 * kBlockNumel));
}

TEST(Shard, BucketsCoverTheUnit) {
  for (std::int64_t blocks : {0, 1, 2, 7, 64}) {
    for (std::int64_t bucket : {1, 1024, 1500, 2048, 5000, 1000000}) {
      std::int64_t next = 0;
      for (const Range range : bucket_ranges(blocks * kBlockNumel, bucket)) {
        EXPECT_EQ(range.begin, next);
        EXPECT_GT(range.numel(), 0);
        EXPECT_EQ(range.numel() % kBlockNumel, 0);
        EXPECT_LE(range.numel(), std::max(bucket, kBlockNumel));
        next = range.end;
      }
      EXPECT_EQ(next, blocks * kBlockNumel);
    }
  }
}

TEST(Shard, CountsAreTheOverlap) {
  const std::vector<std::int64_t> cuts = {0, 1024, 1024, 4096};
  EXPECT_EQ(shard_counts(cuts, {512, 2048}), (std::vector<std::int64_t>{512, 0, 1024}));
}

ModuleNode layer(const std::string& name, int first) { return {name, {first, first + 1}, {}}; }

struct Example {
  ModuleNode root;
  std::vector<ParameterInfo> parameters;
};

/// embedding (big), four layers of (1000 + 10), a tiny norm, a frozen head.
Example example() {
  Example e;
  e.root.name = "";
  e.parameters = {{"embedding.weight", 8000}};
  e.root.children.push_back({"embedding", {0}, {}});
  ModuleNode layers{"layers", {}, {}};
  for (int i = 0; i < 4; ++i) {
    const std::string name = "layers." + std::to_string(i);
    layers.children.push_back(layer(name, static_cast<int>(e.parameters.size())));
    e.parameters.push_back({name + ".weight", 1000});
    e.parameters.push_back({name + ".bias", 10});
  }
  e.root.children.push_back(layers);
  e.root.children.push_back({"norm", {9}, {}});
  e.parameters.push_back({"norm.weight", 8});
  e.root.children.push_back({"head", {10, 11}, {}});
  e.parameters.push_back({"head.weight", 900, false});
  e.parameters.push_back({"head.bias", 9, true});
  return e;
}

TEST(TensorRounds, EveryTensorIsBroughtTogetherOnceByTheRankThatHoldsMost) {
  const std::vector<std::int64_t> numels = {3000, 1, 5000, 64, 12000, 700, 1024, 2048};
  std::vector<TensorPlace> tensors;
  std::vector<std::int64_t> unit_numel;
  for (int unit = 0; unit < 3; ++unit) {
    std::int64_t offset = 0;
    for (const std::int64_t numel : numels) {
      tensors.push_back({unit, {offset, offset + numel}});
      offset = round_up(offset + numel, kAlignNumel);
    }
    unit_numel.push_back(round_up(offset, kBlockNumel));
  }
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::vector<std::vector<std::int64_t>> cuts;
    for (int unit = 0; unit < 3; ++unit) cuts.push_back(shard_cuts(unit_numel[unit], ranks, unit));
    const auto part = [&](int tensor, int rank) {
      const auto& its = cuts[tensors[tensor].unit];
      return intersect(tensors[tensor].range, {its[rank], its[rank + 1]}).numel();
    };
    const TensorRounds plan = plan_rounds(tensors, cuts);
    ASSERT_EQ(plan.owner.size(), tensors.size());
    std::vector<int> seen(tensors.size(), 0);
    for (const int t : plan.local) {
      ++seen[t];
      EXPECT_EQ(part(t, plan.owner[t]), tensors[t].range.numel());
    }
    for (const TensorRound& round : plan.rounds) {
      std::int64_t to = 0, from = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        to += round.to_owner[rank];
        from += round.from_owner[rank];
        const int t = round.tensor_of[rank];
        if (t < 0) continue;
        ++seen[t];
        EXPECT_EQ(plan.owner[t], rank);
        EXPECT_LE(tensors[t].range.numel(), plan.largest_numel);
        for (int other = 0; other < ranks; ++other) {
          EXPECT_LE(part(t, other), part(t, rank));
          if (other == rank) continue;
          EXPECT_LE(part(t, other), round.to_owner[rank]);
          EXPECT_LE(part(t, other), round.from_owner[other]);
        }
      }
      EXPECT_LE(std::max(to, from), plan.send_numel);
    }
    EXPECT_EQ(seen, std::vector<int>(tensors.size(), 1)) << ranks;
    EXPECT_EQ(plan.rounds.empty(), ranks == 1);
  }
  EXPECT_TRUE(plan_rounds({}, {}).owner.empty());
}

TEST(Units, EveryParameterHasOnePlaceAndFrozenOnesAreApart) {
  const auto e = example();
  for (std::int64_t bound : {0, 1, 500, 1500, 5000, 100000}) {
    const auto units = make_units(e.root, e.parameters, {bound, {}});
    std::vector<int> seen(e.parameters.size(), 0);
    for (const auto& unit : units) {
      std::int64_t end = 0, payload = 0;
      for (const auto& slot : unit.slots) {
        ++seen[slot.parameter];
        EXPECT_EQ(slot.offset_numel % kAlignNumel, 0);
        EXPECT_GE(slot.offset_numel, end);
        EXPECT_EQ(slot.numel, e.parameters[slot.parameter].numel);
        EXPECT_EQ(unit.trainable, e.parameters[slot.parameter].trainable);
        end = slot.range().end;
        payload += slot.numel;
      }
      EXPECT_LE(end, unit.numel);
      EXPECT_EQ(unit.numel % kBlockNumel, 0);
      EXPECT_EQ(unit.payload_numel, payload);
    }
    EXPECT_EQ(seen, std::vector<int>(e.parameters.size(), 1)) << "bound " << bound;
  }
}

TEST(Units, BlocksBecomeUnits) {
  const auto e = example();
  const auto units = make_units(e.root, e.parameters, {1500, {}});
  std::vector<std::string> names;
  for (const auto& unit : units) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "layers.0", "layers.1", "layers.2", "layers.3..norm", "head",
                                             "head (frozen)"}));
}

TEST(Units, NamedModulesAreOneUnitAndUnknownNamesAreErrors) {
  const auto e = example();
  const auto units = make_units(e.root, e.parameters, {100, {"layers"}});
  EXPECT_TRUE(std::any_of(units.begin(), units.end(),
                          [](const Unit& unit) { return unit.name == "layers" && unit.slots.size() == 8; }));
  EXPECT_THROW(make_units(e.root, e.parameters, {0, {"layer"}}), ConfigError);
}

TEST(UseOrder, PredictsASecondPassAndReuseDistances) {
  UseOrder order({10, 20, 30});
  const auto pass = [&] {
    for (int u : {0, 1, 2}) order.use(u, 0);
    for (int u : {2, 1, 0}) order.use(u, 1);
  };
  order.use(0, 0);
  EXPECT_EQ(order.predict(1).unit, -1);
  pass();
  pass();
  order.use(0, 0);
  EXPECT_EQ(order.predict(1).unit, 1);
  EXPECT_EQ(order.predict(2).unit, 2);
  EXPECT_EQ(order.predict(3).unit, 2);
  EXPECT_EQ(order.predict(3).phase, 1);
  UseOrder::Walk walk(order);
  for (int ahead = 1; ahead <= 12; ++ahead) {
    const auto walked = walk.next(), predicted = order.predict(ahead);
    EXPECT_EQ(walked.unit, predicted.unit) << ahead;
    EXPECT_EQ(walked.phase, predicted.phase) << ahead;
  }
  order.use(1, 0);
  // Unit 2 twice (forward and backward) lies between the uses of unit 1.
  EXPECT_EQ(order.reuse_distance(1), 60);
  EXPECT_EQ(order.reuse_distance(0), 20 + 60 + 20);
}

TEST(UseOrder, FollowsAChangedOrder) {
  UseOrder order({1, 1, 1, 1});
  for (int i = 0; i < 3; ++i) {
    for (int u : {0, 1, 2}) order.use(u, 0);
  }
  for (int i = 0; i < 2; ++i) {
    for (int u : {0, 1, 3}) order.use(u, 0);
  }
  for (int u : {0, 1}) order.use(u, 0);
  EXPECT_EQ(order.predict(1).unit, 3);
}

/// `count` uses of 100 elements each, alike.
std::vector<TimedUse> alike(int count, double compute, double gather, int phase = 0) {
  return std::vector<TimedUse>(static_cast<std::size_t>(count), {phase, compute, 100, gather});
}

TEST(PrefetchWindow, GathersFasterThanComputationNeedOneUnitAhead) {
  EXPECT_EQ(prefetch_window(alike(6, 10, 4), 1), 100);
  EXPECT_EQ(prefetch_window(alike(6, 10, 10), 1), 100);
}

TEST(PrefetchWindow, SlowerGathersBeginEarlier) {
  // Uses at 0, 10, 20, 30, 40, ends at 50. Backwards: the gather for 40 begins at 25, for 30 at 10, 20: -5,
  // 10: -20. At the first use those for 10 and 20 must be under way; at 10 those for 20 and 30, at 20 those
  // for 30 and 40.
  EXPECT_EQ(prefetch_window(alike(5, 10, 15), 1), 200);
  // Twice as slow: 10, -20, -50, -80.
  EXPECT_EQ(prefetch_window(alike(5, 10, 30), 1), 300);
  EXPECT_EQ(prefetch_window(alike(5, 10, 15), 2), 300);
}

TEST(PrefetchWindow, MoreThanComputationCanHideIsTheWholePass) {
  EXPECT_EQ(prefetch_window(alike(5, 10, 1000), 1), 400);
}

TEST(PrefetchWindow, AWholeUnitCostsNothingAndOneLongComputationHidesMuch) {
  auto uses = alike(5, 1, 3);
  uses[1].gathered_numel = 0;
  uses[1].gather_seconds = 0;
  EXPECT_EQ(prefetch_window(uses, 1), 300);  // the rest, all of it begun early
  uses = alike(5, 1, 3);
  uses[0].compute_seconds = 1000;
  EXPECT_EQ(prefetch_window(uses, 1), 300);  // the last one may begin at the second use
  uses = alike(2, 1000, 3);
  EXPECT_EQ(prefetch_window(uses, 1), 100);
}

TEST(PrefetchWindow, NothingIsGatheredAheadIntoTheNextPass) {
  auto uses = alike(3, 10, 1000);
  const auto backward = alike(4, 10, 1000, 1), forward = alike(2, 10, 1000);
  EXPECT_EQ(prefetch_window(uses, 1), 200);
  uses.insert(uses.end(), forward.begin(), forward.end());
  EXPECT_EQ(prefetch_window(uses, 1), 400);  // the same pass
  uses.insert(uses.begin(), backward.begin(), backward.end());
  EXPECT_EQ(prefetch_window(uses, 1), 400);  // backward, then forward: 3 and 4 gathers
  EXPECT_EQ(prefetch_window({}, 1), 0);
}

}  // namespace
}  // namespace zero::layout::layout_test
