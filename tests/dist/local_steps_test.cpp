// zerotorch.local_steps: the bits of plain training of each island, of which an SGD written with libtorch's operators
// makes one every so many steps; whatever the ranks of an island, the stage and the store, and through checkpoints.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "support/bits.h"
#include "support/deep_net.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/odd_model.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::local_steps_test {
namespace {

using Net = DeepNet;
using NetEngine = ModuleEngine<Net>;

constexpr double kLr = 0.7, kMomentum = 0.9;

struct Setting {
  int islands = 2;
  int stage = 1;
  std::string precision = kFp32;
  std::string store = "auto";
  std::int64_t local_steps = 3;
  std::int64_t ranks_per_island = 0;
  std::int64_t batch = 4;  ///< micro-batches of an island's step
  std::int64_t width = 130;
  double momentum = kMomentum;
  std::string nvme = {};  ///< of optimizer states; empty: in memory
  std::string own = {};   ///< more keys of zerotorch

  std::string json() const {
    return fmt::format(R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
      "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}, {},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 50, "reduce_bucket_size": 3000,
        "sub_group_size": 1024, "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}}}},
      "zerotorch": {{"seed": 5, "store": "{}", "timeout_s": 60, "cpu_products": "native",
        "local_steps": {{"steps": {}, "ranks_per_island": {}, "momentum": {}}} {}}}}})",
                       batch * islands, precision, stage, nvme.empty() ? "none" : "nvme", nvme, store, local_steps,
                       ranks_per_island, momentum, own);
  }
  std::string name() const {
    return fmt::format("{} islands, stage {}, {}, {}, exchange after {} steps", islands, stage, precision, store,
                       local_steps);
  }
};

/// With a frozen layer.
Net make_net(std::int64_t width) {
  Net net(width);
  for (at::Tensor& parameter : net->layers[2]->parameters()) parameter.requires_grad_(false);
  return net;
}

NetEngine make_engine(const Group& group, const Setting& setting) {
  at::set_num_threads(1);
  at::manual_seed(3 + group.rank());  // the first rank's values are those of all islands
  return initialize(make_net(setting.width), Config::from_text(setting.json()), {.group = group});
}

/// Of micro-batch `index` of the whole run; some of the second island overflow fp16.
at::Tensor loss_of(Net& net, std::int64_t index) {
  const at::Tensor x = at::sin(at::arange(24, at::kFloat).view({1, 24}).mul(0.7).add(static_cast<double>(index)));
  const at::Tensor out = net->forward(x.to(net->parameters().front().scalar_type())).to(at::kFloat);
  return out.square().sum().mul(index % 16 == 5 ? 1e6 : 1.0);
}

void train_step(NetEngine& engine) {
  for (const std::int64_t step = engine.global_steps(); engine.global_steps() == step;) {
    engine.backward(loss_of(engine.typed_module(), engine.micro_steps() * engine.world_size() + engine.rank()));
    engine.step();
  }
}

/// One engine without local steps for each island, in this process.
class ByHand {
 public:
  explicit ByHand(Setting setting) : setting_(std::move(setting)) {
    Setting plain = setting_;
    plain.local_steps = 0;
    plain.stage = 0;
    plain.islands = 1;
    plain.nvme.clear();
    plain.store = "auto";
    plain.own.clear();
    for (int i = 0; i < setting_.islands; ++i) islands_.push_back(make_engine(Group(), plain));
    for (const auto& item : islands_[0].module().named_parameters()) {
      if (!item.value().requires_grad()) continue;
      names_.push_back(item.key());
      outer_.push_back(islands_[0].full_weight(item.key()));
      momentum_.push_back(at::zeros_like(outer_.back()));
    }
  }

  void train_step() {
    for (int i = 0; i < setting_.islands; ++i) {
      for (std::int64_t j = 0; j < setting_.batch; ++j) {
        NetEngine& engine = islands_[static_cast<std::size_t>(i)];
        const std::int64_t index = (steps_ * setting_.batch + j) * setting_.islands + i;
        engine.backward(loss_of(engine.typed_module(), index));
        engine.step();
      }
    }
    if (++steps_ % setting_.local_steps == 0) exchange();
  }
  NetEngine& island(int island) { return islands_[static_cast<std::size_t>(island)]; }

 private:
  void exchange() {
    const at::NoGradGuard no_grad;
    const auto fp32 = [](double value) { return at::scalar_tensor(value, at::kFloat); };
    for (std::size_t p = 0; p < names_.size(); ++p) {
      at::Tensor gradient = outer_[p] - islands_[0].full_weight(names_[p]);
      for (std::size_t i = 1; i < islands_.size(); ++i)
        gradient = gradient + (outer_[p] - islands_[i].full_weight(names_[p]));
      gradient = gradient * fp32(1.0 / setting_.islands);
      if (setting_.momentum > 0) {
        momentum_[p] = momentum_[p] * fp32(setting_.momentum) + gradient;
        gradient = gradient + momentum_[p] * fp32(setting_.momentum);
      }
      outer_[p] = outer_[p] - gradient * fp32(kLr);
      for (auto& island : islands_) island.set_full_weight(names_[p], outer_[p]);
    }
  }

  Setting setting_;
  std::vector<NetEngine> islands_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> outer_, momentum_;
  std::int64_t steps_ = 0;
};

int island_of(NetEngine& engine, const Setting& setting) { return engine.rank() % setting.islands; }

void expect_same(NetEngine& engine, NetEngine& expected, const std::string& where) {
  const bool is_finite = std::isfinite(expected.grad_norm());  // a NaN is no number's equal
  EXPECT_EQ(is_finite ? engine.grad_norm() : 0, is_finite ? expected.grad_norm() : 0) << where;
  EXPECT_EQ(engine.skipped_steps(), expected.skipped_steps()) << where;
  EXPECT_EQ(hash_of(engine), hash_of(expected)) << where;
}

void compare(const Group& group, const Setting& setting, int steps) {
  NetEngine engine = make_engine(group, setting);
  ByHand by_hand(setting);
  for (int step = 0; step < steps; ++step) {
    train_step(engine);
    by_hand.train_step();
    expect_same(engine, by_hand.island(island_of(engine, setting)),
                fmt::format("{}, {} ranks, step {}", setting.name(), group.size(), step));
  }
}

std::vector<Setting> settings_of(int islands, std::int64_t ranks_per_island) {
  std::vector<Setting> all;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::string& precision : {kFp32, kBf16, kFp16}) {
      const bool copying = stage != 3 || precision == kFp32;
      all.push_back({.islands = islands,
                     .stage = stage,
                     .precision = precision,
                     .store = copying ? "copying" : "node_shared",
                     .local_steps = (stage + (precision == kBf16 ? 1 : 0)) % 2 == 0 ? 1 : 3,
                     .ranks_per_island = ranks_per_island});
    }
  }
  return all;
}

TEST(LocalSteps, GivesTheBitsOfPlainIslands) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [ranks](Group group) {
      for (const Setting& setting : settings_of(ranks, 1)) compare(group, setting, 7);
    }));
  }
}

TEST(LocalSteps, GivesTheSameBitsOnMoreRanksOfAnIsland) {
  expect_all_ok(spawn(4,
                      [](Group group) {
                        for (const Setting& setting : settings_of(2, 2)) compare(group, setting, 7);
                      },
                      {.timeout = std::chrono::minutes(2)}));
}

TEST(LocalSteps, TakesTheRanksOfAHostForAnIsland) {
  const OneHostAsSeveral hosts(2);
  expect_all_ok(spawn(4, [](Group group) {
    compare(group, {.stage = 2, .precision = kBf16}, 4);
    compare(group, {.stage = 3, .precision = kBf16, .own = R"(, "progress_thread": "always")"}, 4);
  }));
}

TEST(LocalSteps, ExchangesLargeShardsInPieces) {
  expect_all_ok(spawn(2, [](Group group) {
    compare(group, {.stage = 1, .local_steps = 2, .ranks_per_island = 1, .batch = 1, .width = 45'000}, 4);
    compare(group, {.stage = 3, .local_steps = 2, .ranks_per_island = 1, .batch = 1, .width = 30'000, .momentum = 0},
            4);
  }));
}

TEST(LocalSteps, UpdatesStatesOnADisk) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    compare(group, {.precision = kBf16, .local_steps = 2, .ranks_per_island = 1, .nvme = folder.path()}, 5);
  }));
}

// ---- checkpoints ----

Setting resumed(int ranks_per_island) {
  return {.stage = ranks_per_island == 1 ? 1 : 3, .precision = kFp16, .ranks_per_island = ranks_per_island};
}

constexpr int kSteps = 8;

void save_and_go_on(const Group& group, const Setting& setting, const std::string& folder) {
  NetEngine engine = make_engine(group, setting);
  ByHand by_hand(setting);
  for (int step = 1; step <= kSteps; ++step) {
    train_step(engine);
    by_hand.train_step();
    if (step == 4 || step == 6) engine.save_checkpoint(folder, fmt::format("step{}", step));
  }
  expect_same(engine, by_hand.island(island_of(engine, setting)), "saved");
}

void load_and_go_on(const Group& group, const Setting& setting, const std::string& folder) {
  ByHand by_hand(setting);
  for (int step = 0; step < kSteps; ++step) by_hand.train_step();
  for (const int from : {4, 6}) {
    NetEngine engine = make_engine(group, setting);
    train_step(engine);  // what it has is replaced
    const LoadReport report = engine.load_checkpoint(folder, fmt::format("step{}", from));
    EXPECT_EQ(engine.global_steps(), from);
    for (int step = from; step < kSteps; ++step) train_step(engine);
    expect_same(engine, by_hand.island(island_of(engine, setting)),
                fmt::format("{} ranks, from step {}", group.size(), from));
  }
}

TEST(LocalSteps, GoesOnFromACheckpointOnAnyNumberOfRanksOfAnIsland) {
  for (const int saved : {1, 2}) {
    const TemporaryFolder folder;
    expect_all_ok(spawn(2 * saved, [&](Group group) { save_and_go_on(group, resumed(saved), folder.path()); }));
    for (const int loaded : {1, 2})
      expect_all_ok(spawn(2 * loaded, [&](Group group) { load_and_go_on(group, resumed(loaded), folder.path()); }));
  }
}

TEST(LocalSteps, AnotherNumberOfIslandsTakesTheFirstOnes) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) { save_and_go_on(group, resumed(1), folder.path()); }));
  for (const int islands : {1, 3}) {
    expect_all_ok(spawn(islands, [&](Group group) {
      ByHand by_hand(resumed(1));
      for (int step = 0; step < 6; ++step) by_hand.train_step();
      Setting setting = resumed(1);
      setting.islands = islands;
      if (islands == 1) setting.local_steps = 0;
      NetEngine engine = make_engine(group, setting);
      const LoadReport report = engine.load_checkpoint(folder.path(), "step6");
      EXPECT_TRUE(std::ranges::any_of(report.notices, [](const auto& text) { return mentions(text, "of 2 islands"); }));
      EXPECT_EQ(hash_of(engine), hash_of(by_hand.island(0)));
      train_step(engine);
    }));
  }
}

TEST(LocalSteps, IslandsBeginFromAPlainCheckpoint) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    Setting plain = resumed(1);
    plain.local_steps = 0;
    NetEngine before = make_engine(group, plain);
    for (int step = 0; step < 2; ++step) train_step(before);
    before.save_checkpoint(folder.path());
    NetEngine engine = make_engine(group, resumed(1));
    EXPECT_TRUE(engine.load_checkpoint(folder.path()).notices.empty());
    EXPECT_EQ(hash_of(engine), hash_of(before));
    train_step(engine);  // the third step ends a round, which began here
    EXPECT_EQ(engine.communication_report().islands_numel > 0, true);
  }));
}

// ---- programs ----

TEST(LocalSteps, DropoutAndBuffersDoNotDependOnTheRanksOfAnIsland) {
  const TemporaryFolder folder;
  for (const int ranks : {2, 4}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      at::set_num_threads(1);
      at::manual_seed(9);
      OddModel model;
      Setting setting{.stage = 2, .local_steps = 2, .ranks_per_island = ranks / 2, .own = R"(, "buffers": "each")"};
      auto engine = initialize(model, Config::from_text(setting.json()), {.group = group});
      for (int i = 0; i < 5 * 8 / ranks; ++i) {
        const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
        engine.backward(model->loss(micro_batch_tokens(index, 1)));
        engine.step();
      }
      const std::string file = folder.file(fmt::format("island{}", engine.rank() % 2));
      const std::string hash = fmt::format("{:x}", hash_of(engine));
      if (group.size() == 2) {
        std::ofstream(file) << hash;
      } else {
        std::string expected;
        std::ifstream(file) >> expected;
        EXPECT_EQ(hash, expected);
      }
    }));
  }
}

TEST(LocalSteps, ValuesWrittenBetweenRoundsAreThoseThatIslandsStartFrom) {
  expect_all_ok(spawn(2, [](Group group) {
    const Setting setting{.local_steps = 2, .ranks_per_island = 1};
    NetEngine engine = make_engine(group, setting);
    for (int step = 0; step < 2; ++step) train_step(engine);
    const std::string name = "layer1.weight";
    const at::Tensor written = at::full(engine.full_weight(name).sizes(), 0.25);
    engine.set_full_weight(name, written);
    engine.set_learning_rate(0);  // then islands move nowhere, and what moves is momentum
    for (int step = 0; step < 2; ++step) train_step(engine);
    const at::Tensor now = engine.full_weight(name);
    EXPECT_LT((now - written).abs().max().item<float>(), 0.1);
    EXPECT_THROW(GatheredParameters(engine, 0), ConfigError);
  }));
}

TEST(LocalSteps, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::string& more) {
    return error_of<ConfigError>([&] {
      Config::from_text(fmt::format(R"({{"train_batch_size": 2, "optimizer": {{"type": "AdamW"}},
        "zero_optimization": {{"stage": 2}}, {}}})",
                                    more));
    });
  };
  const std::string local = R"("local_steps": {"steps": 4})";
  EXPECT_TRUE(mentions(refused(fmt::format(R"("zerotorch": {{{}, "update": "delayed"}})", local)), "local_steps"));
  EXPECT_TRUE(mentions(
      refused(fmt::format(R"("zerotorch": {{{}}}, "bf16": {{"enabled": true, "bf16_master_weights_and_grads": true}})",
                          local)),
      "16-bit master"));
  EXPECT_TRUE(mentions(refused(R"("zerotorch": {"local_steps": {"steps": 4, "lr": 0}})"), "lr"));
  EXPECT_TRUE(mentions(refused(R"("zerotorch": {"local_steps": {"steps": 4, "momentum": 1}})"), "momentum"));
  expect_all_ok(spawn(3, [](Group group) {
    const Setting setting{.islands = 3, .ranks_per_island = 2};
    expect_said([&] { make_engine(group, setting); }, "3 ranks cannot make islands of 2");
  }));
  const OneHostAsSeveral hosts(2);
  expect_all_ok(spawn(3, [](Group group) {
    const Setting setting{.islands = 3};
    expect_said([&] { make_engine(group, setting); }, "there are islands of");
  }));
}

TEST(LocalSteps, AFrozenLayerOnOneIslandIsAnErrorOnAll) {
  expect_all_ok(spawn(2, [](Group group) {
    NetEngine engine = make_engine(group, {.local_steps = 1, .ranks_per_island = 1});
    if (group.rank() == 1) {
      for (at::Tensor& parameter : engine.typed_module()->layers[0]->parameters()) parameter.requires_grad_(false);
    }
    expect_said([&] { train_step(engine); }, "frozen different parameters");
  }));
}

TEST(LocalSteps, EvaluationNeedsNoIslands) {
  expect_all_ok(spawn(2, [](Group group) {
    at::set_num_threads(1);
    auto engine = initialize(make_net(130), Config::from_text(Setting{.ranks_per_island = 1}.json()),
                             {.group = group, .evaluation_only = true});
    EXPECT_EQ(engine.world_size(), 2);
  }));
}

}  // namespace
}  // namespace zero::testing::local_steps_test
