// The plan without an engine: the ZeRO paper's tables, sizes from 1 to 100,000 ranks, what fits and what
// helps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ctime>

#include "layout/shard.h"
#include "support/errors.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan::plan_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Config config_of(const std::string& zero, const std::string& top = "") {
  return Config::from_text(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true})" + top +
                           R"(, "zero_optimization": {)" + zero + "}}");
}
Config at(int stage) { return config_of("\"stage\": " + std::to_string(stage)); }

ModelShape small_gpt() { return transformer({.layers = 4, .dim = 256, .heads = 4, .seq = 128}, "gpt"); }

/// True when `value` is what the paper prints: rounded to its last digit, or cut off there.
bool prints_as(double value, double printed, double last_digit, bool cut_off) {
  const double scaled = value / last_digit;
  const double shown = cut_off ? std::floor(scaled + 1e-9) : std::round(scaled);
  return std::abs(shown * last_digit - printed) < last_digit / 1000;
}

struct Table1Row {
  double parameters, ranks;
  double states_gb[3];  ///< stages 1 to 3
  double last_digit[3];
};
constexpr Table1Row kTable1[] = {
    {7.5e9, 1, {120, 120, 120}, {1, 1, 1}},          {7.5e9, 4, {52.5, 41.3, 30}, {.1, .1, 1}},
    {7.5e9, 16, {35.6, 21.6, 7.5}, {.1, .1, .1}},    {7.5e9, 64, {31.4, 16.6, 1.88}, {.1, .1, .01}},
    {7.5e9, 256, {30.4, 15.4, 0.47}, {.1, .1, .01}}, {7.5e9, 1024, {30.1, 15.1, 0.12}, {.1, .1, .01}},
    {128e9, 1, {2048, 2048, 2048}, {1, 1, 1}},       {128e9, 4, {896, 704, 512}, {1, 1, 1}},
    {128e9, 16, {608, 368, 128}, {1, 1, 1}},         {128e9, 64, {536, 284, 32}, {1, 1, 1}},
    {128e9, 256, {518, 263, 8}, {1, 1, 1}},          {128e9, 1024, {513, 257, 2}, {1, 1, 1}},
    {1e12, 1, {16000, 16000, 16000}, {1, 1, 1}},     {1e12, 4, {7000, 5500, 4000}, {1, 1, 1}},
    {1e12, 16, {4750, 2875, 1000}, {1, 1, 1}},       {1e12, 64, {4187, 2218, 250}, {1, 1, 1}},
    {1e12, 256, {4046, 2054, 62.5}, {1, 1, .1}},     {1e12, 1024, {4011, 2013, 15.6}, {1, 1, .1}},
};

TEST(PaperTables, Table1) {
  for (const auto& row : kTable1) {
    for (int stage = 1; stage <= 3; ++stage) {
      const double gb = model_states(row.parameters, stage, row.ranks).total_nbytes() / 1e9;
      // The paper rounds the column of 7.5B and cuts off whole GB in the other two: 513.5 is printed as 513.
      const bool cut_off = row.parameters > 1e10;
      EXPECT_TRUE(prints_as(gb, row.states_gb[stage - 1], row.last_digit[stage - 1], cut_off))
          << row.parameters << " parameters, " << row.ranks << " ranks, stage " << stage << ": " << gb;
    }
    EXPECT_DOUBLE_EQ(model_states(row.parameters, 0, row.ranks).total_nbytes(), 16 * row.parameters);
  }
}

TEST(PaperTables, KindsAndPrecision) {
  const ModelStates baseline = model_states(7e9, 0, 64);
  EXPECT_DOUBLE_EQ(baseline.parameters_nbytes, 14e9);
  EXPECT_DOUBLE_EQ(baseline.gradients_nbytes, 14e9);
  EXPECT_DOUBLE_EQ(baseline.optimizer_nbytes, 84e9);
  // Adam's two fp32 moments of a 7B model alone.
  EXPECT_DOUBLE_EQ(model_states(7e9, 0, 1, {.parameters = 0, .gradients = 0, .optimizer = 8}).total_nbytes(), 56e9);
  EXPECT_DOUBLE_EQ(model_states(0, 3, 100'000).total_nbytes(), 0);
  EXPECT_THROW(model_states(-1, 0, 1), ConfigError);
  EXPECT_THROW(model_states(std::nan(""), 0, 1), ConfigError);
  EXPECT_THROW(model_states(1, 4, 1), ConfigError);
  EXPECT_THROW(model_states(1, 3, 0), ConfigError);
}

TEST(ShardRange, IsThatOfTheCuts) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (std::int64_t blocks = 0; blocks <= 20; ++blocks) {
      for (int unit = 0; unit < 11; ++unit) {
        const auto cuts = layout::shard_cuts(blocks * layout::kBlockNumel, ranks, unit);
        for (int rank = 0; rank < ranks; ++rank) {
          const layout::Range range = layout::shard_range(blocks * layout::kBlockNumel, ranks, unit, rank);
          ASSERT_EQ(range, (layout::Range{cuts[rank], cuts[rank + 1]}));
        }
      }
    }
  }
}

TEST(Plan, StatesAreThoseOfThePaperUpToFormatAndPadding) {
  // bf16: 2 for parameters, 2 for what they lack of fp32, 8 for the moments, 4 for fp32 gradient sums: 16. A sum of one
  // gradient is that gradient, of 2.
  const ModelShape model = model_of_numel(32 * 1024 * 640);
  const double numel = static_cast<double>(model.numel());
  for (const int ranks : {1, 4, 64}) {
    for (int stage = 0; stage <= 3; ++stage) {
      Config config = at(stage);
      config.zerotorch.store = Config::Zerotorch::Store::kCopying;  // each rank is a host: no memory is shared
      const Plan plan = plan_memory(model, config, {.ranks = ranks, .ranks_per_node = 1});
      std::int64_t states = 0;
      for (const MemoryKind kind :
           {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer, MemoryKind::kGradients}) {
        states += plan.rank[kind].current_nbytes;
      }
      const bool sharded = stage >= 1;
      const double update = (2 + 8 + (ranks == 1 ? 2 : 4)) * numel / (sharded ? ranks : 1);
      const double parameters = 2 * numel / (stage == 3 ? ranks : 1);
      EXPECT_EQ(static_cast<double>(states), update + parameters) << "stage " << stage << ", " << ranks;
    }
  }
}

TEST(Plan, NoRankHoldsMoreThanTheHeaviest) {
  const ModelShape model = transformer({.layers = 3, .dim = 80, .heads = 4, .vocab = 300, .seq = 50}, "odd");
  for (const int ranks : {1, 2, 3, 5, 7, 16, 40, 333}) {
    for (int stage = 0; stage <= 3; ++stage) {
      constexpr int kPerNode = 4;
      Config config = at(stage);
      if (ranks <= kPerNode || ranks % kPerNode == 0) config.zerotorch.store = Config::Zerotorch::Store::kNodeShared;
      const Plan plan = plan_memory(model, config, {.ranks = ranks, .ranks_per_node = kPerNode});
      std::int64_t most = 0;
      config.resolve_batch(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        most = std::max(most, engine_memory(model, config, ranks, rank, kPerNode).total_nbytes());
      }
      EXPECT_EQ(most, plan.rank.total_nbytes()) << "stage " << stage << ", " << ranks;
    }
  }
}

TEST(Plan, ARankThatOwnsItAllNeedsNoMasterOfItsOwn) {
  // One block, one shared copy, nothing sharded: rank 0 writes all there is, rank 1 updates what it may not
  // write.
  Config config = at(0);
  config.zerotorch.store = Config::Zerotorch::Store::kNodeShared;
  config.resolve_batch(2);
  const ModelShape model{.name = "one", .parameters = {{"a.weight", 1000, true}}, .uses = {}, .transformer = {}};
  EXPECT_EQ(engine_memory(model, config, 2, 0)[MemoryKind::kMaster].current_nbytes, 2 * 1024);
  EXPECT_EQ(engine_memory(model, config, 2, 1)[MemoryKind::kMaster].current_nbytes, 4 * 1024);
  // In all both hold the same: rank 1 has no part of the parameters.
  EXPECT_EQ(engine_memory(model, config, 2, 0).total_nbytes(), engine_memory(model, config, 2, 1).total_nbytes());
}

TEST(Plan, HostsAreTheSumOfTheirRanks) {
  const ModelShape model = small_gpt();
  Config config = at(2);
  const Plan plan = plan_memory(model, config, {.ranks = 3});
  config.resolve_batch(3);
  std::int64_t sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const MemoryReport report = engine_memory(model, config, 3, rank);
    sum += plan.process_nbytes + plan.rank[MemoryKind::kActivations].peak_nbytes - plan.reused_nbytes;
    for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer,
                                  MemoryKind::kGradients, MemoryKind::kBuckets, MemoryKind::kGather}) {
      sum += report[kind].peak_nbytes;
    }
  }
  EXPECT_EQ(plan.node_nbytes, sum);
}

TEST(Plan, StagesNeverTakeMore) {
  for (const int ranks : {1, 2, 8, 1000}) {
    std::int64_t before = INT64_MAX;
    for (int stage = 0; stage <= 3; ++stage) {
      // What stays all the time: gather buffers and bucket pools come and go.
      const Plan plan = plan_memory(small_gpt(), at(stage), {.ranks = ranks, .ranks_per_node = 1});
      const std::int64_t states = plan.rank.total_nbytes();
      EXPECT_LE(states, before) << "stage " << stage << ", " << ranks;
      before = states;
    }
  }
}

TEST(Plan, OneRankUsesItsBucketsAgainAtAnyStage) {
  const auto buckets = [](int ranks, int stage) {
    const Config config = config_of("\"reduce_bucket_size\": 1000000, \"stage\": " + std::to_string(stage),
                                    ", \"gradient_accumulation_steps\": 2");
    return plan_memory(small_gpt(), config, {.ranks = ranks, .ranks_per_node = 1})
        .rank[MemoryKind::kBuckets]
        .peak_nbytes;
  };
  for (int stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(buckets(1, stage), buckets(1, 2)) << stage;
    EXPECT_GT(buckets(2, stage), buckets(2, 2)) << stage;
  }
}

TEST(Plan, TrafficIsTheTheory) {
  const ModelShape model = model_of_numel(32 * 1024 * 10);
  const double psi = static_cast<double>(model.numel());
  const auto elements = [](const Plan& plan) {
    return plan.traffic.gathered_numel + plan.traffic.reduced_numel + plan.traffic.published_numel;
  };
  for (const int ranks : {2, 3, 64}) {
    const double others = (ranks - 1.0) / ranks;
    for (int stage = 0; stage <= 2; ++stage) {
      EXPECT_NEAR(elements(plan_memory(model, at(stage), {.ranks = ranks})), 2 * psi * others, 1) << stage;
    }
    const std::string copying = R"("stage": 3, "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0)";
    const Config far = config_of(copying, R"(, "zerotorch": {"store": "copying"})");
    // The last layer of forward is the first of backward: gathered once for both.
    const Plan plan = plan_memory(model, far, {.ranks = ranks});
    EXPECT_NEAR(elements(plan), (3 * psi - plan.padded_numel / plan.units) * others, 1);
    EXPECT_NEAR(elements(plan_memory(model, at(3), {.ranks = ranks})), psi * others, 1);
    Config accumulating = at(2);
    accumulating.gradient_accumulation_steps = 5;
    EXPECT_NEAR(elements(plan_memory(model, accumulating, {.ranks = ranks})), 6 * psi * others, 1);
  }
  EXPECT_EQ(elements(plan_memory(model, at(3), {.ranks = 1})), 0);
  const Plan timed = plan_memory(model, at(1), {.ranks = 2, .bandwidth_nbytes_per_s = 1e6});
  EXPECT_DOUBLE_EQ(timed.traffic.seconds, timed.traffic.nbytes / 1e6);
  // bf16 both ways, and one fp64 norm per block.
  EXPECT_NEAR(timed.traffic.nbytes, 2 * psi * 0.5 * 2 + psi / 1024 * 8 * 0.5 + 8, 1);
}

TEST(Plan, DegenerateModels) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int ranks : {1, 2, 100'000}) {
      const Plan nothing = plan_memory(model_of_numel(0), at(stage), {.ranks = ranks});
      EXPECT_EQ(nothing.rank.total_nbytes(), 0);
      EXPECT_EQ(nothing.padded_numel, 0);
      // Fewer elements than ranks: most ranks hold nothing, one holds a block.
      const Plan one = plan_memory(model_of_numel(1), at(stage), {.ranks = ranks, .ranks_per_node = 1});
      EXPECT_EQ(one.padded_numel, 1024);
      EXPECT_GE(one.rank.total_nbytes(), 1024 * (ranks == 1 ? 14 : 16));
    }
  }
  const ModelShape frozen{.name = "frozen", .parameters = {{"a.weight", 5000, false}}, .uses = {}, .transformer = {}};
  const Plan plan = plan_memory(frozen, at(2), {.ranks = 2});
  EXPECT_EQ(plan.rank[MemoryKind::kOptimizer].peak_nbytes, 0);
  EXPECT_EQ(plan.rank[MemoryKind::kBuckets].peak_nbytes, 0);
  EXPECT_EQ(plan.rank[MemoryKind::kParameters].peak_nbytes, 5120 * 2);
  EXPECT_EQ(plan_memory(ModelShape{}, at(3), {.ranks = 7}).rank.total_nbytes(), 0);
}

TEST(Plan, RefusesWhatCannotBe) {
  const ModelShape model = small_gpt();
  EXPECT_THROW(plan_memory(model, at(3), {.ranks = 0}), ConfigError);
  EXPECT_THROW(plan_memory(model, at(3), {.ranks = 2, .ranks_per_node = -1}), ConfigError);
  const Config shared = config_of(R"("stage": 3)", R"(, "zerotorch": {"store": "node_shared"})");
  EXPECT_THROW(plan_memory(model, shared, {.ranks = 5, .ranks_per_node = 2}), ConfigError);
  EXPECT_NO_THROW(plan_memory(model, shared, {.ranks = 4, .ranks_per_node = 2}));
  EXPECT_NO_THROW(plan_memory(model, shared, {.ranks = 4, .ranks_per_node = 4}));
  Config named = at(3);
  named.zerotorch.unit_names = {"no.such.module"};
  const auto error_of = [&](const Config& config) -> std::string {
    try {
      plan_memory(model, config, {.ranks = 2});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_TRUE(error_of(named).starts_with("zerotorch.unit_names: the model has no module 'no.such.module'"));
  named.zerotorch.unit_names.clear();
  named.zero_optimization.leaf_module_names = {"no.such.module"};
  EXPECT_TRUE(error_of(named).starts_with("zero_optimization.leaf_module.names: the model has no module"));
  Config five = at(0);
  five.train_batch_size = 5;
  EXPECT_THROW(plan_memory(model, five, {.ranks = 2}), ConfigError);
  EXPECT_THROW(engine_memory(model, at(0), 2, 2), ConfigError);
}

TEST(Plan, AHundredThousandRanksTakeNoTime) {
  const std::clock_t begin = std::clock();  // of the processor: other tests run beside this one
  const ModelShape large = transformer({.style = Transformer::Style::kLlama,
                                        .layers = 126,
                                        .dim = 16384,
                                        .heads = 128,
                                        .kv_heads = 8,
                                        .mlp_dim = 53248,
                                        .vocab = 128256,
                                        .seq = 8192},
                                       "llama-405b");
  EXPECT_EQ(large.numel(), 405'853'388'800);
  for (const int ranks : {1, 7, 1000, 99'999, 100'000}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Plan plan = plan_memory(large, at(stage), {.ranks = ranks, .ranks_per_node = 8});
      EXPECT_GT(plan.node_nbytes, 0);
    }
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, kSanitized ? 10.0 : 1.0);
  std::printf("20 plans of 405B parameters on up to 100,000 ranks: %.3f s\n", seconds);
}

TEST(Plan, TinyBucketsOfHugeModelsAreBounded) {
  Config config = config_of(R"("stage": 2, "reduce_bucket_size": 1024)");
  const Plan plan = plan_memory(model_of_numel(1'000'000'000'000), config, {.ranks = 64});
  EXPECT_EQ(plan.rank[MemoryKind::kBuckets].peak_nbytes, 3 * 1024 * 2);
}

TEST(Plan, StepInBackwardKeepsNoGradients) {
  Config config = config_of(R"("stage": 2)", R"(, "gradient_clipping": 0)");
  const Cluster cluster{.ranks = 4, .ranks_per_node = 2};
  const ModelShape model = small_gpt();
  config.zerotorch.caching_allocator = false;  // else gradients may need no memory of their own
  const Plan kept = plan_memory(model, config, cluster);
  config.zerotorch.update = Config::Zerotorch::Update::kInBackward;
  config.bf16.check_grad_overflow = false;
  const Plan used_up = plan_memory(model, config, cluster);
  const MemoryUse before = kept.rank[MemoryKind::kGradients], after = used_up.rank[MemoryKind::kGradients];
  EXPECT_LT(after.peak_nbytes, before.peak_nbytes);
  EXPECT_GT(after.peak_nbytes, 0);
  EXPECT_GE(used_up.node_nbytes, 2 * (used_up.training_nbytes - after.peak_nbytes));
  EXPECT_LT(used_up.node_nbytes, kept.node_nbytes);
  EXPECT_EQ(at_stage(config, 0).zerotorch.update, Config::Zerotorch::Update::kAfterBackward);
  config.gradient_accumulation_steps = 2;
  EXPECT_THROW(plan_memory(model, config, cluster), ConfigError);
}

TEST(Plan, GradientsComeIntoThePlaceOfActivations) {
  const ModelShape model = transformer({.layers = 12, .dim = 1024, .heads = 16, .seq = 256});
  const Cluster cluster{.ranks = 2};
  const auto planned = [&](int stage, auto change) {
    Config config = config_of("\"stage\": " + std::to_string(stage), R"(, "gradient_clipping": 0)");
    config.train_micro_batch_size_per_gpu = 2;
    config.train_batch_size = config.gradient_accumulation_steps = 0;
    change(config);
    return plan_memory(model, config, cluster);
  };
  const auto nothing = [](Config&) {};
  for (int stage = 1; stage <= 3; ++stage) {
    const Plan plan = planned(stage, nothing);
    const std::int64_t gradients = plan.rank[MemoryKind::kGradients].peak_nbytes;
    const std::int64_t activations = plan.rank[MemoryKind::kActivations].peak_nbytes;
    EXPECT_GT(plan.reused_nbytes, activations / 2) << stage;
    EXPECT_LE(plan.reused_nbytes, std::min(gradients, activations)) << stage;
    std::int64_t sum = plan.process_nbytes - plan.rank[MemoryKind::kStaging].peak_nbytes;
    for (const auto& kind : plan.rank.kinds) sum += kind.peak_nbytes;
    EXPECT_EQ(plan.training_nbytes, sum - plan.reused_nbytes) << stage;
  }
  // Sums that live on while the next micro-batch runs, that other ranks read, or that do not come and go.
  EXPECT_EQ(planned(0, nothing).reused_nbytes, 0);
  EXPECT_EQ(planned(3, [](Config& c) { c.gradient_accumulation_steps = 2; }).reused_nbytes, 0);
  EXPECT_EQ(planned(3, [](Config& c) { c.zerotorch.caching_allocator = false; }).reused_nbytes, 0);
  const auto in_backward = [](Config& c) {
    c.zerotorch.update = Config::Zerotorch::Update::kInBackward;
    c.bf16.check_grad_overflow = false;
    c.gradient_clipping = 0;
  };
  EXPECT_EQ(planned(3, in_backward).reused_nbytes, 0);
}

TEST(Plan, StageChangesTakeTheDefaultOfOverlapAlong) {
  EXPECT_TRUE(at_stage(at(0), 3).zero_optimization.overlaps_comm());
  EXPECT_FALSE(at_stage(at(3), 1).zero_optimization.overlaps_comm());
  const Config asked = config_of(R"("stage": 2, "overlap_comm": true)");
  EXPECT_TRUE(at_stage(asked, 1).zero_optimization.overlaps_comm());
  const Config blocking = config_of(R"("stage": 2, "overlap_comm": false)");
  EXPECT_FALSE(at_stage(blocking, 3).zero_optimization.overlaps_comm()) << "as asked, also where it was the default";
}

TEST(Suggest, FitsAsItIs) {
  const auto found = suggest(small_gpt(), at(0), {.ranks = 2, .node_memory_nbytes = 64LL << 30});
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->changes.empty());
  EXPECT_TRUE(suggest(small_gpt(), at(0), {.ranks = 2})->changes.empty());  // memory unknown
}

/// Memory of a host that is just enough for `config`.
std::int64_t need(const ModelShape& model, const Config& config, Cluster cluster) {
  return plan_memory(model, config, cluster).node_nbytes;
}

TEST(Suggest, TheSmallestChangeFirst) {
  const ModelShape model = transformer({.layers = 24, .dim = 2048, .heads = 16, .vocab = 50257, .seq = 1024}, "1.3b");
  Config config = at(0);
  config.train_micro_batch_size_per_gpu = 8;
  Cluster cluster{.ranks = 4};
  const auto suggestion = [&](std::int64_t memory) {
    cluster.node_memory_nbytes = memory;
    return suggest(model, config, cluster);
  };
  // Just enough for stage 1 is not enough for stage 0.
  const auto stage1 = suggestion(need(model, at_stage(config, 1), cluster));
  ASSERT_TRUE(stage1);
  ASSERT_EQ(stage1->changes.size(), 1u);
  EXPECT_EQ(stage1->changes[0], "zero_optimization.stage 1");
  EXPECT_TRUE(fits(stage1->plan, stage1->cluster));
  // Every suggestion fits, and its words are not empty.
  for (std::int64_t gb = 20; gb <= 200; gb += 6) {
    const auto found = suggestion(gb * 1'000'000'000);
    if (!found) continue;
    EXPECT_TRUE(fits(found->plan, found->cluster));
    EXPECT_LE(found->plan.node_nbytes, gb * 1'000'000'000);
    EXPECT_EQ(plan_memory(found->model, found->config, found->cluster).node_nbytes, found->plan.node_nbytes);
  }
  // A megabyte is enough for nothing: every rank's process alone takes more.
  EXPECT_FALSE(suggestion(1'000'000));
}

TEST(Suggest, MoreHostsAreTheFewestThatDo) {
  const ModelShape model = model_of_numel(13'000'000'000);
  Config config = at(3);  // which keeps everything that was gathered
  config.gradient_accumulation_steps = 2;
  config.zero_optimization.stage3_max_live_parameters = config.zero_optimization.stage3_max_reuse_distance = 1LL << 40;
  Cluster cluster{.ranks = 8, .ranks_per_node = 1, .node_memory_nbytes = 64'000'000'000};
  Cluster small = cluster;
  small.ranks = 1;  // too few for states and parameters on NVMe to be enough
  const auto found = suggest(model, config, small, {.gradients_on_nvme = false});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->changes.size(), 1u);
  const int ranks = found->plan.ranks;
  small.ranks = ranks - 1;
  EXPECT_FALSE(fits(plan_memory(model, config, small), small));
  small.ranks = ranks;
  EXPECT_TRUE(fits(plan_memory(model, config, small), small));
}

TEST(Suggest, AModuleThatIsNeverWholeWhereEightDoNotFit) {
  // 8 modules of 280 GB do not fit 2 TB; more hosts with 8 ranks each would not help.
  const auto found =
      suggest(model_of_numel(70'000'000'000), at(3), {.ranks = 8, .node_memory_nbytes = 2'000'000'000'000});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->changes.size(), 1u);
  EXPECT_EQ(found->changes[0], "the module built by zero::deferred_init");
  EXPECT_TRUE(found->plan.deferred_init);
  EXPECT_LT(found->plan.node_nbytes, 1'500'000'000'000);
}

TEST(Suggest, StatesOnNvmeWhereNothingElseIsEnough) {
  const auto found = suggest(model_of_numel(13'000'000'000), at(3),
                             {.ranks = 2, .ranks_per_node = 1, .node_memory_nbytes = 64'000'000'000});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->changes.size(), 1u);
  EXPECT_NE(found->changes[0].find("offload_optimizer.device \"nvme\""), std::string::npos);
  EXPECT_GT(found->plan.rank.nvme_nbytes, 13'000'000'000 / 2 * 8);
  EXPECT_EQ(found->plan.rank[MemoryKind::kOptimizer].peak_nbytes, 0);
}

/// Where a disk would do, states and masters of fewer bits may do without one.
TEST(Suggest, FewerBitsInPlace) {
  const ModelShape model = model_of_numel(4'000'000'000);
  const auto config = [](std::string_view optimizer, std::string_view dtype = R"("bf16": {"enabled": true})") {
    return Config::from_text(fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, {}, "optimizer": {{"type": {}}},
                                             "zero_optimization": {{"stage": 3}}}})",
                                         dtype, optimizer));
  };
  constexpr std::string_view kBf16 = R"("bf16": {"enabled": true})", kFp16 = R"("fp16": {"enabled": true})",
                             kWithoutMasters = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})";
  struct Case {
    std::string_view optimizer, dtype;
    double nbytes;  ///< of a parameter
    std::string_view type, change;
  };
  for (const auto& [optimizer, dtype, nbytes, type, change] :
       {Case{R"("AdamW")", kBf16, 13, "AdamW", "bf16.bf16_optimizer_states"},
        Case{R"("Adam")", kBf16, 11, "Adam8bit", "\"Adam8bit\""},
        Case{R"("AdamW")", kBf16, 7, "AdamW8bit", "zerotorch.stochastic_rounding"},
        Case{R"("AdamW", "params": {"amsgrad": true})", kBf16, 11, "AdamW", "zerotorch.stochastic_rounding"},
        Case{R"("AdamW")", kWithoutMasters, 7, "AdamW8bit", "\"AdamW8bit\""},
        Case{R"("AdamW")", kFp16, 13, "AdamW8bit", "\"AdamW8bit\""},
        Case{R"("Lion")", kBf16, 7, "Lion", "bf16.bf16_master_weights_and_grads"}}) {
    const Cluster cluster{.ranks = 2, .node_memory_nbytes = static_cast<std::int64_t>(nbytes * 4e9)};
    Changes allowed{.update = false, .deferred_init = false};
    ModelShape deferred = model;
    deferred.deferred_init = true;
    const auto in_place = suggest_in_place(deferred, config(optimizer, dtype), cluster, allowed);
    ASSERT_TRUE(in_place) << optimizer << dtype << nbytes;
    EXPECT_EQ(in_place->plan.rank.nvme_nbytes, 0);
    EXPECT_EQ(in_place->config.optimizer.type, type);
    ASSERT_EQ(in_place->changes.size(), 1u);
    EXPECT_TRUE(testing::mentions(in_place->changes[0], change)) << in_place->changes[0];
    EXPECT_TRUE(testing::mentions(in_place->changes[0], "another curve")) << in_place->changes[0];
    const auto elsewhere = suggest(deferred, config(optimizer, dtype), cluster, allowed);
    ASSERT_TRUE(elsewhere);
    EXPECT_EQ(elsewhere->config.optimizer.type, config(optimizer).optimizer.type);
    EXPECT_GT(elsewhere->plan.rank.nvme_nbytes, 0);
  }
  // Not where what keeps the numbers is enough, nor where nothing is.
  const Cluster roomy{.ranks = 2, .node_memory_nbytes = 1LL << 40}, tiny{.ranks = 2, .node_memory_nbytes = 1LL << 30};
  EXPECT_TRUE(suggest_in_place(model, config(R"("AdamW")"), roomy)->changes.empty());
  EXPECT_FALSE(suggest_in_place(model, config(R"("AdamW")"), tiny));
}

/// Of what is allowed the smallest, never other numbers.
TEST(Fit, ChangesOnlyWhatIsAllowed) {
  const ModelShape model = transformer({.layers = 24, .dim = 2048, .heads = 16, .vocab = 50257, .seq = 1024}, "1.3b");
  Config config = at(0);
  config.train_micro_batch_size_per_gpu = 8;
  Cluster cluster{.ranks = 2, .node_memory_nbytes = 1LL << 42};
  EXPECT_TRUE(fit(model, config, cluster).changes.empty());
  int fitted = 0;
  for (std::int64_t gb = 2; gb <= 100; gb += 2) {
    cluster.node_memory_nbytes = gb * 1'000'000'000;
    Changes allowed{.stage = gb % 4 != 0,
                    .micro_batch = gb % 3 != 0,
                    .recompute = gb % 5 != 0,
                    .fewer_bits = true,
                    .nvme_path = "/disk"};
    allowed.states_on_nvme = allowed.gradients_on_nvme = allowed.parameters_on_nvme = gb % 7 != 0;
    try {
      const Suggestion found = fit(model, config, cluster, allowed);
      ++fitted;
      EXPECT_LE(found.plan.node_nbytes, cluster.node_memory_nbytes);
      EXPECT_EQ(found.config.param_dtype(), config.param_dtype());
      EXPECT_EQ(found.config.optimizer.type, config.optimizer.type);
      EXPECT_EQ(found.config.state_dtype(), config.state_dtype());
      EXPECT_EQ(found.cluster.ranks, 2);
      EXPECT_EQ(found.cluster.node_memory_nbytes, cluster.node_memory_nbytes);
      const auto& zero = found.config.zero_optimization;
      const bool on_disk = zero.offload_param.device == Config::OffloadDevice::kNvme;
      EXPECT_TRUE(allowed.stage || zero.stage == (on_disk ? 3 : 0)) << gb;
      EXPECT_TRUE(allowed.micro_batch || found.config.train_micro_batch_size_per_gpu == 8);
      EXPECT_EQ(found.config.train_micro_batch_size_per_gpu * found.config.gradient_accumulation_steps, 8);
      EXPECT_TRUE(allowed.recompute || !found.model.transformer->checkpointing);
      EXPECT_TRUE(allowed.states_on_nvme || found.plan.rank.nvme_nbytes == 0);
      EXPECT_EQ(zero.offload_optimizer.nvme_path, found.plan.rank.nvme_nbytes > 0 ? "/disk" : "");
    } catch (const ConfigError& error) {
      EXPECT_TRUE(testing::mentions(error.what(), "a host needs ")) << error.what();
      EXPECT_LT(gb, 60);
    }
  }
  EXPECT_GT(fitted, 20);
}

/// What is chosen is a configuration that can be: Lamb needs whole tensors, which updates in backward do not keep.
TEST(Fit, ChoosesWhatGoesTogether) {
  const ModelShape model = transformer({.layers = 12, .dim = 768, .heads = 12, .vocab = 50257, .seq = 1024}, "small");
  Config config = Config::from_text(R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0,
    "bf16": {"enabled": true, "check_grad_overflow": false}, "optimizer": {"type": "Lamb"}})");
  config.resolve_batch(2);
  Cluster cluster{.ranks = 2};
  for (const double share : {0.9, 0.8, 0.7, 0.6, 0.5}) {
    cluster.node_memory_nbytes = static_cast<std::int64_t>(share * static_cast<double>(need(model, config, cluster)));
    const Suggestion found = fit(model, config, cluster);
    EXPECT_EQ(found.config.zerotorch.update, Config::Zerotorch::Update::kAfterBackward);
    EXPECT_NO_THROW(Config::from_text(found.config.to_json()));
  }
  // Who has bad steps skipped keeps that.
  Config skips = Config::from_text(R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "bf16": {"enabled": true, "check_grad_overflow": true}})");
  skips.resolve_batch(2);
  cluster.node_memory_nbytes = need(model, skips, cluster) * 8 / 10;
  EXPECT_TRUE(fit(model, skips, cluster).config.bf16.check_grad_overflow);
}

/// A tenth of the memory stays free where that can be.
TEST(Fit, LeavesRoom) {
  const ModelShape model = transformer({.layers = 12, .dim = 768, .heads = 12, .vocab = 50257, .seq = 1024}, "small");
  const Config config = at(0);
  const std::int64_t as_it_is = need(model, config, {.ranks = 2});
  const Cluster tight{.ranks = 2, .node_memory_nbytes = as_it_is + 1'000'000};
  const Suggestion found = fit(model, config, tight);
  EXPECT_FALSE(found.changes.empty());
  EXPECT_LE(found.plan.node_nbytes, 0.9 * static_cast<double>(tight.node_memory_nbytes));
  const Changes nothing{.buckets = false,
                        .stage = false,
                        .store = false,
                        .update = false,
                        .micro_batch = false,
                        .recompute = false,
                        .deferred_init = false,
                        .states_on_nvme = false,
                        .gradients_on_nvme = false,
                        .parameters_on_nvme = false};
  EXPECT_TRUE(fit(model, config, tight, nothing).changes.empty());
}

/// Adapters over a base on NVMe: every gather reads the base, and no update writes it.
TEST(PlanMemory, FrozenParametersOnNvmeAreNotWritten) {
  ModelShape model = transformer({.layers = 4, .dim = 256, .heads = 4, .vocab = 1000, .seq = 128}, "base");
  for (ParameterShape& parameter : model.parameters) parameter.trainable = parameter.name.ends_with("ln1.weight");
  const Config config = Config::from_text(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
    "stage3_param_persistence_threshold": 0, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}})");
  const Plan plan = plan_memory(model, config, {.ranks = 2});
  EXPECT_GT(plan.rank.nvme_nbytes, 0);
  EXPECT_LT(plan.traffic.nvme_written_nbytes, 0.02 * static_cast<double>(plan.rank.nvme_nbytes));
  EXPECT_GT(plan.traffic.nvme_nbytes, static_cast<double>(plan.rank.nvme_nbytes));
}

/// Also where shards begin at multiples of pages.
TEST(PlanMemory, ShowsTheRankWhoseStatesTakeMost) {
  const ModelShape model = transformer({.layers = 4, .dim = 64, .heads = 4, .vocab = 256, .seq = 64}, "tiny");
  for (const char* const offload :
       {R"("stage": 3)", R"("stage": 1)", R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"})"}) {
    for (const int ranks : {2, 3, 4}) {
      Config config = Config::from_text(fmt::format(
          R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {{"enabled": true}},
              "zero_optimization": {{{}}}}})",
          offload));
      config.resolve_batch(ranks);
      const auto states = [&](int rank) {
        const MemoryReport report = engine_memory(model, config, ranks, rank);
        std::int64_t sum = 0;
        for (const MemoryKind kind :
             {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer, MemoryKind::kGradients})
          sum += report[kind].peak_nbytes;
        return sum;
      };
      std::int64_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) most = std::max(most, states(rank));
      EXPECT_EQ(states(plan_memory(model, config, {.ranks = ranks}).heaviest_rank), most) << offload << " " << ranks;
    }
  }
}

/// Where they are clipped, so that they must be summed first.
TEST(Suggest, GradientsOnNvmeForOneMachine) {
  ModelShape model = model_of_numel(7'000'000'000);
  model.deferred_init = true;
  Config config = at(3);
  config.bf16.enabled = true;
  config.gradient_clipping = 1;
  const auto found = suggest(model, config, {.ranks = 2, .node_memory_nbytes = 36'000'000'000});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->changes.size(), 2u);
  EXPECT_NE(found->changes[0].find("offload_optimizer.device \"nvme\""), std::string::npos);
  EXPECT_NE(found->changes[1].find("offload_gradients.device \"nvme\""), std::string::npos);
  EXPECT_EQ(found->plan.rank[MemoryKind::kGradients].peak_nbytes, 0);
  EXPECT_NO_THROW(Config::from_text(found->config.to_json()));
  // A step of one micro-batch writes and reads all once; each further one once more.
  Config accumulates = found->config;
  accumulates.train_batch_size = 0;
  accumulates.gradient_accumulation_steps = 3;
  const Plan three = plan_memory(model, accumulates, found->cluster);
  const double sums = 7e9 / 2 * 4;
  EXPECT_NEAR(three.traffic.nvme_nbytes - found->plan.traffic.nvme_nbytes, 2 * sums, 0.001 * sums);
  EXPECT_NEAR(three.traffic.nvme_written_nbytes - found->plan.traffic.nvme_written_nbytes, 2 * sums, 0.001 * sums);
}

/// Hundreds of machines are no smaller a change than a disk.
TEST(Suggest, ADiskBeforeManyMachines) {
  const ModelShape model = model_of_numel(7'000'000'000);
  Config config = at(3);
  config.gradient_clipping = 1;
  const auto found = suggest(model, config, {.ranks = 2, .node_memory_nbytes = 12'000'000'000});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->plan.ranks, 2);
  EXPECT_GT(found->plan.rank.nvme_nbytes, 0);
}

TEST(Suggest, ParametersOnNvmeForOneMachine) {
  ModelShape model = model_of_numel(7'000'000'000);
  model.deferred_init = true;
  Config config = at(3);
  config.bf16.enabled = true;
  const auto found =
      suggest(model, config, {.ranks = 2, .node_memory_nbytes = 36'000'000'000}, {.gradients_on_nvme = false});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->changes.size(), 2u);
  EXPECT_NE(found->changes[1].find("offload_param.device \"nvme\""), std::string::npos);
  EXPECT_EQ(found->plan.rank[MemoryKind::kParameters].peak_nbytes, 0);
  EXPECT_GT(found->plan.traffic.nvme_nbytes, found->plan.traffic.nvme_written_nbytes);
}

}  // namespace
}  // namespace zero::plan::plan_test
