// zerotorch.hierarchical_reduce: the curve of a plain loop that adds the gradients of blocks of ranks first, the same
// bits at every number of ranks and on hosts that add their own, and what is received for it.
//
//   hierarchical_reduce_test
//   --rank FOLDER     one rank of an mpirun job
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/deep_net.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/mpi_job.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::hierarchical_reduce_test {
namespace {

constexpr std::int64_t kMicroBatches = 8;
constexpr int kBlock = 2;
using Engine = ModuleEngine<DeepNet>;

struct Setting {
  int stage = 2;
  std::string precision = kFp32;
  int block = kBlock;
  std::int64_t bucket_numel = 3000, batch = kMicroBatches;
  double clipping = 1;
  std::string zero = {}, own = {};  ///< more keys

  std::string json() const {
    return fmt::format(R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": {}, {},
      "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 50, "reduce_bucket_size": {} {}}},
      "zerotorch": {{"seed": 5, "unit_numel": 3000, "hierarchical_reduce": {} {}}}}})",
                       batch, clipping, precision, stage, bucket_numel, zero, block, own);
  }
};

DeepNet make_net() {
  at::set_num_threads(1);
  at::manual_seed(3);
  return DeepNet();
}

Engine make_engine(const Group& group, const Setting& setting) {
  return initialize(make_net(), Config::from_text(setting.json()), {.group = group});
}

/// Of micro-batch `index` of the whole run.
at::Tensor loss_of(DeepNet& net, std::int64_t index) {
  const at::Tensor x = at::sin(at::arange(24, at::kFloat).view({1, 24}).mul(0.7).add(static_cast<double>(index)));
  return net->forward(x.to(net->parameters().front().scalar_type())).to(at::kFloat).square().sum();
}

void train(Engine& engine, int steps) {
  for (const std::int64_t end = engine.global_steps() + steps; engine.global_steps() < end;) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    engine.backward(loss_of(engine.typed_module(), index));
    engine.step();
  }
}

struct Curve {
  std::uint64_t hash;
  double norm;
  bool operator==(const Curve&) const = default;
};

Curve curve_of(const Group& group, const Setting& setting) {
  auto engine = make_engine(group, setting);
  train(engine, 4);
  const double norm = engine.grad_norm();
  return {hash_of(engine), norm};
}

/// Adds the gradients of a block in a plain loop; an engine of one rank takes the sums as gradients of its own, and
/// averages them over fewer micro-batches.
Curve curve_by_hand(const Setting& setting) {
  Setting plain = setting;
  plain.block = 0;
  plain.stage = 0;
  plain.batch = setting.batch / kBlock;
  auto engine = make_engine(Group(), plain);
  DeepNet net = make_net();
  for (std::int64_t index = 0; engine.global_steps() < 4; index += kBlock) {
    const at::NoGradGuard no_grad;
    for (const auto& item : engine.module().named_parameters()) net->named_parameters()[item.key()].copy_(item.value());
    std::map<std::string, at::Tensor> sums;
    for (int i = 0; i < kBlock; ++i) {
      const at::AutoGradMode with_grad(true);
      net->zero_grad();
      loss_of(net, index + i).backward();
      for (const auto& item : net->named_parameters()) {
        at::Tensor& sum = sums[item.key()];
        sum = sum.defined() ? sum + item.value().grad() : item.value().grad().clone();
      }
    }
    const at::AutoGradMode with_grad(true);
    at::Tensor loss;
    for (const auto& item : engine.module().named_parameters()) {
      const at::Tensor part = item.value().mul(sums[item.key()] / kBlock).sum();  // exact: a power of two
      loss = loss.defined() ? loss + part : part;
    }
    engine.backward(loss);
    engine.step();
  }
  const double norm = engine.grad_norm();
  return {hash_of(engine), norm};
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage) all.push_back({.stage = stage});
  all.push_back({.stage = 3, .bucket_numel = 1100, .zero = R"(, "overlap_comm": true)"});
  all.push_back({.stage = 3,
                 .bucket_numel = 1100,
                 .zero = R"(, "overlap_comm": true)",
                 .own = R"(, "progress_thread": "always")"});
  all.push_back({.stage = 3, .own = R"(, "store": "node_shared")"});
  return all;
}

TEST(HierarchicalReduce, IsAPlainLoopThatAddsBlocksFirst) {
  const Curve want = curve_by_hand({});
  EXPECT_NE(want, curve_of(Group(), {.block = 0}));  // the order of sums matters here
  for (const int ranks : {2, 4}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      for (const Setting& setting : settings()) EXPECT_EQ(curve_of(group, setting), want) << setting.json();
    }));
  }
}

/// Eight ranks as hosts of two, whose sums travel, and of four, whose blocks are parts of them.
TEST(HierarchicalReduce, GivesTheSameBitsBetweenHosts) {
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  for (const int per_host : {2, 4}) {
    const OneHostAsSeveral hosts(per_host);
    const MpiJobResult result = run_under_mpirun(8, {"--rank", std::to_string(per_host)}, std::chrono::seconds(200));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_TRUE(result.leftovers.empty());
  }
}

TEST(HierarchicalReduce, SixteenBitsHaveOneCurve) {
  expect_all_ok(spawn(4, [&](Group group) {
    Group pair = group.split(group.rank() / 2);
    for (const std::string& precision : {kBf16, kFp16}) {
      const Curve want = curve_of(pair, {.precision = precision});
      EXPECT_EQ(curve_of(group, {.precision = precision}), want) << precision;
      EXPECT_EQ(curve_of(group, {.stage = 3, .precision = precision, .bucket_numel = 1100}), want) << precision;
    }
  }));
}

TEST(HierarchicalReduce, HasOneCurveWithOtherSchedulesAndPlaces) {
  const TemporaryFolder folder;
  const std::string nvme = fmt::format(R"("device": "nvme", "nvme_path": "{}")", folder.path());
  const std::vector<Setting> all{
      {.own = R"(, "update": "delayed")"},
      {.zero = fmt::format(R"(, "offload_optimizer": {{{}}})", nvme), .own = R"(, "update": "speculative")"},
      {.stage = 3,
       .zero = fmt::format(R"(, "offload_optimizer": {{{}}})", nvme),
       .own = fmt::format(R"(, "offload_gradients": {{{}}})", nvme)},
      {.stage = 1, .precision = kBf16, .own = R"(, "update": "delayed")"}};
  expect_all_ok(spawn(4, [&](Group group) {
    Group pair = group.split(group.rank() / 2);
    for (const Setting& setting : all) EXPECT_EQ(curve_of(group, setting), curve_of(pair, setting)) << setting.json();
    // A window of one micro-batch.
    Setting at_once{.batch = 4, .clipping = 0};
    const Curve want = curve_of(group, at_once);
    at_once.own = R"(, "update": "in_backward")";
    EXPECT_EQ(curve_of(group, at_once).hash, want.hash);
  }));
}

/// The micro-batches of an open window are added by other ranks than those after it.
TEST(HierarchicalReduce, GoesOnWithAnOpenWindowOnOtherRanks) {
  const TemporaryFolder folder;
  const std::string path = folder.file("checkpoint");
  expect_all_ok(spawn(4, [&](Group group) {
    Group pair = group.split(group.rank() / 2);
    auto engine = make_engine(group, {});
    train(engine, 1);
    engine.backward(loss_of(engine.typed_module(), engine.micro_steps() * 4 + group.rank()));
    engine.step();
    engine.save_checkpoint(path);
    train(engine, 2);
    auto resumed = make_engine(pair, {});
    resumed.load_checkpoint(path);
    train(resumed, 2);
    EXPECT_EQ(hash_of(resumed), hash_of(engine));
    EXPECT_EQ(resumed.grad_norm(), engine.grad_norm());
  }));
}

TEST(HierarchicalReduce, RefusesRanksThatAreNoMultiple) {
  expect_all_ok(spawn(3, [](Group group) {
    const std::string error = error_of<ConfigError>([&] { make_engine(group, {.batch = 9}); });
    EXPECT_NE(error.find("zerotorch.hierarchical_reduce: 2, but there are 3 ranks"), std::string::npos) << error;
  }));
}

}  // namespace

/// A rank of an mpirun job, on a host of `per_host` ranks.
int be_rank(int per_host) {
  Group group = join_mpi_job();
  const Curve want = curve_by_hand({});
  for (const Setting& setting : settings()) EXPECT_EQ(curve_of(group, setting), want) << setting.json();
  auto engine = make_engine(group, {});
  train(engine, 1);
  const CommunicationReport report = engine.communication_report();
  // A rank of a host of two gets half of all gradients from the one beside it, and three sums of its eighth.
  std::int64_t received = report.reduced_numel;
  group.all_reduce(&received, 1, DType::kInt64).wait();
  const std::int64_t all = report.padded_numel;
  EXPECT_EQ(received, per_host == kBlock ? 8 / kBlock * all + 3 * all : 7 * all);
  const auto traffic = plan::plan_memory(plan::shape_of(ModelView::of(make_net().ptr())),
                                         Config::from_text(Setting{}.json()), {.ranks = 8, .ranks_per_node = per_host})
                           .traffic;
  EXPECT_EQ(std::llround(8 * traffic.reduced_numel), received);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace zero::testing::hierarchical_reduce_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc >= 3 && std::string_view(argv[1]) == "--rank")
    return zero::testing::hierarchical_reduce_test::be_rank(std::stoi(argv[2]));
  return RUN_ALL_TESTS();
}
