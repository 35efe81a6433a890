// zerotorch.update "delayed": the curve of a plain loop whose gradients are of weights without the last update, at
// every stage and number of ranks, wherever states are; and what a program may do meanwhile.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <cerrno>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "doubles/faulty_files.h"
#include "engine/engine_impl.h"
#include "engine/offload_files.h"
#include "io/file_system.h"
#include "support/bits.h"
#include "support/deep_net.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::delayed_update_test {
namespace {

using Net = DeepNet;
using NetEngine = ModuleEngine<Net>;

struct Setting {
  int stage = 3;
  std::string precision = R"("bf16": {"enabled": true})";
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  std::string store = "auto";
  std::string states_path = {}, gradients_path = {};  ///< on a disk; empty: in memory
  bool delayed = true;
  std::int64_t batch = 12;  ///< micro-batches of a step, of one sample each
  std::string own = {};     ///< more keys of zerotorch

  std::string json() const {
    return fmt::format(R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
      "optimizer": {}, {},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 50, "reduce_bucket_size": 3000,
        "sub_group_size": 1024, "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}}}},
      "zerotorch": {{"seed": 5, "store": "{}", "update": "{}",
        "offload_gradients": {{"device": "{}", "nvme_path": "{}", "buffer_count": 3}} {}}}}})",
                       batch, optimizer, precision, stage, states_path.empty() ? "none" : "nvme", states_path, store,
                       delayed ? "delayed" : "after_backward", gradients_path.empty() ? "none" : "nvme", gradients_path,
                       own);
  }
};

Net make_net() {
  at::set_num_threads(1);
  at::manual_seed(3);
  return Net();
}

void set_trainable(Net& net, int layer, bool trains) {
  for (at::Tensor& parameter : net->layers[static_cast<std::size_t>(layer)]->parameters())
    parameter.requires_grad_(trains);
}

/// `frozen`: a layer.
NetEngine make_engine(const Group& group, const Setting& setting, std::optional<int> frozen = {}) {
  Net net = make_net();
  if (frozen) set_trainable(net, *frozen, false);
  return initialize(net, Config::from_text(setting.json()), {.group = group});
}

/// Of micro-batch `index` of the whole run; every eighth step of 12 overflows fp16.
at::Tensor loss_of(Net& net, std::int64_t index) {
  const at::Tensor x = at::sin(at::arange(24, at::kFloat).view({1, 24}).mul(0.7).add(static_cast<double>(index)));
  const at::Tensor out = net->forward(x.to(net->parameters().front().scalar_type())).to(at::kFloat);
  return out.square().sum().mul(index / 12 % 8 == 5 ? 1e6 : 1.0);
}

/// One step; a hash of its losses.
std::uint64_t train_step(NetEngine& engine) {
  std::uint64_t hash = kNoBits;
  for (const std::int64_t step = engine.global_steps(); engine.global_steps() == step;) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    const at::Tensor loss = loss_of(engine.typed_module(), index);
    engine.backward(loss);
    engine.step();
    hash = hash_with(hash, loss.detach());
  }
  return hash;
}

void train_steps(NetEngine& engine, int steps) {
  for (int i = 0; i < steps; ++i) train_step(engine);
}

/// What the module computes with.
std::uint64_t hash_of_seen(NetEngine& engine) {
  std::uint64_t hash = kNoBits;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : engine.module().parameters())
    hash = hash_with(hash, parameter.mul(1).to(at::kFloat).reshape({-1}));
  return hash;
}

/// The same by hand: `ahead` has all updates, and gradients are of a plain copy of what it was a step before. One rank.
class ByHand {
 public:
  explicit ByHand(const Setting& setting, std::optional<int> frozen = {})
      : ahead_(make_engine(Group(), plain(setting), frozen)), seen_(make_net()) {
    if (frozen) delayed_update_test::set_trainable(seen_, *frozen, false);
    see();
  }

  void train_step() {
    const std::int64_t step = ahead_.global_steps();
    std::vector<at::Tensor> before = weights();
    while (ahead_.global_steps() == step) {
      const at::Tensor loss = loss_of(seen_, ahead_.micro_steps()).mul(ahead_.loss_scale());
      const auto gradients = torch_gradients(loss);
      at::Tensor same;  // a loss of `ahead` that has these gradients
      std::size_t i = 0;
      for (const auto& parameter : ahead_.module().parameters()) {
        if (!parameter.requires_grad()) continue;
        const at::Tensor part = parameter.mul(gradients[i++]).to(at::kFloat).sum();
        same = same.defined() ? same + part : part;
      }
      ahead_.backward(same / ahead_.loss_scale());
      ahead_.step();
    }
    set_seen(before);
  }
  void set_trainable(int layer, bool trains) {
    delayed_update_test::set_trainable(ahead_.typed_module(), layer, trains);
    delayed_update_test::set_trainable(seen_, layer, trains);
  }
  void see() { set_seen(weights()); }
  std::uint64_t hash() { return hash_of(ahead_); }
  std::uint64_t hash_of_seen() {
    std::uint64_t hash = kNoBits;
    for (const auto& parameter : seen_->parameters())
      hash = hash_with(hash, parameter.detach().to(at::kFloat).reshape({-1}));
    return hash;
  }
  double grad_norm() const { return ahead_.grad_norm(); }
  std::int64_t skipped_steps() const { return ahead_.skipped_steps(); }

 private:
  static Setting plain(Setting setting) {
    setting.delayed = false;
    setting.states_path.clear();
    setting.gradients_path.clear();
    return setting;
  }
  std::vector<at::Tensor> weights() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    for (const auto& parameter : ahead_.module().parameters()) all.push_back(parameter.mul(1));
    return all;
  }
  void set_seen(const std::vector<at::Tensor>& values) {
    std::size_t i = 0;
    for (at::Tensor& parameter : seen_->parameters()) parameter.set_data(values[i++].clone());
  }
  std::vector<at::Tensor> torch_gradients(const at::Tensor& loss) {
    seen_->zero_grad();
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : seen_->parameters()) {
      if (parameter.requires_grad()) gradients.push_back(parameter.grad().clone());
    }
    return gradients;
  }

  NetEngine ahead_;
  Net seen_;
};

std::vector<Setting> settings_of(const std::string& folder) {
  std::vector<Setting> all;
  for (int stage = 1; stage <= 3; ++stage) {
    for (const std::string& precision : {kFp32, kBf16, kFp16}) {
      all.push_back({.stage = stage, .precision = precision});
      all.push_back({.stage = stage, .precision = precision, .store = "copying", .states_path = folder});
    }
  }
  for (const char* optimizer : {R"({"type": "AdamW8bit", "params": {"lr": 0.01}})",
                                R"({"type": "SGD", "params": {"lr": 0.02, "momentum": 0.9, "dampening": 0.5}})",
                                R"({"type": "Lion", "params": {"lr": 0.002, "weight_decay": 0.1}})"}) {
    all.push_back({.stage = 2, .optimizer = optimizer, .gradients_path = folder});
    all.push_back({.precision = kFp32, .optimizer = optimizer, .states_path = folder, .gradients_path = folder});
  }
  all.push_back({.precision = R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                         "bf16_optimizer_states": true})"});
  return all;
}

class DelayedUpdate : public ::testing::TestWithParam<int> {
 protected:
  TemporaryFolder folder_;
  const int ranks_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Ranks, DelayedUpdate, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(DelayedUpdate, IsAPlainLoopWhoseGradientsAreOfTheWeightsBefore) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        const auto all = settings_of(folder_.path());
                        for (std::size_t i = 0; i < all.size(); ++i) {
                          // All over two ranks, else a third of them.
                          if (group.size() != 2 && i % 3 != static_cast<std::size_t>(group.size()) % 3) continue;
                          auto engine = make_engine(group, all[i]);
                          ByHand by_hand(all[i]);
                          for (int step = 0; step < 8; ++step) {
                            train_step(engine);
                            by_hand.train_step();
                            ASSERT_EQ(hash_of_seen(engine), by_hand.hash_of_seen()) << step << all[i].json();
                            // NaNs, too.
                            ASSERT_EQ(fmt::format("{:a}", engine.grad_norm()), fmt::format("{:a}", by_hand.grad_norm()))
                                << step << all[i].json();
                          }
                          EXPECT_EQ(engine.skipped_steps(), by_hand.skipped_steps()) << all[i].json();
                          EXPECT_EQ(engine.skipped_steps() > 0, all[i].precision == kFp16);
                          const std::uint64_t before = hash_of_seen(engine);
                          engine.finish_update();
                          by_hand.see();
                          EXPECT_EQ(hash_of_seen(engine), by_hand.hash_of_seen()) << all[i].json();
                          EXPECT_NE(hash_of_seen(engine), before) << all[i].json();
                          EXPECT_EQ(hash_of(engine), by_hand.hash()) << all[i].json();
                        }
                      },
                      {.timeout = std::chrono::minutes(4)}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST(DelayedUpdateOverHosts, IsTheSameLoop) {
  const OneHostAsSeveral hosts(2);
  expect_all_ok(spawn(4,
                      [&](Group group) {
                        for (const char* store : {"node_shared", "copying"}) {
                          for (const char* own : {"", R"(, "progress_thread": "always")"}) {
                            const Setting setting{.store = store, .own = own};
                            auto engine = make_engine(group, setting);
                            ByHand by_hand(setting);
                            for (int step = 0; step < 5; ++step) {
                              train_step(engine);
                              by_hand.train_step();
                              ASSERT_EQ(hash_of_seen(engine), by_hand.hash_of_seen()) << step << setting.json();
                            }
                            EXPECT_EQ(hash_of(engine), by_hand.hash()) << setting.json();
                          }
                        }
                      },
                      {.timeout = std::chrono::minutes(2)}));
}

/// Whatever reads weights or states, or saves them, has the last update: both runs go on from there.
TEST_P(DelayedUpdate, SavingFinishesIt) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        for (const std::string& path : {std::string(), folder_.file("nvme")}) {
                          const Setting setting{.states_path = path};
                          auto first = make_engine(group, setting);
                          auto told = make_engine(group, setting);
                          train_steps(first, 3);
                          train_steps(told, 3);
                          first.save_checkpoint(folder_.file("ckpt"));
                          told.finish_update();
                          EXPECT_EQ(hash_of_seen(first), hash_of_seen(told));
                          train_steps(first, 3);
                          train_steps(told, 3);
                          auto second = make_engine(group, setting);
                          train_steps(second, 1);  // under way when it loads
                          second.load_checkpoint(folder_.file("ckpt"));
                          train_steps(second, 3);
                          EXPECT_EQ(hash_of_seen(second), hash_of_seen(first));
                          EXPECT_EQ(hash_of(second), hash_of(first));
                          EXPECT_EQ(hash_of(told), hash_of(first));
                        }
                      },
                      {.timeout = std::chrono::minutes(2)}));
}

TEST_P(DelayedUpdate, GatheredParametersSeeAndChangeTheNewestWeights) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    for (int stage = 1; stage <= 3; ++stage) {
      auto engine = make_engine(group, {.stage = stage});
      train_steps(engine, 2);
      {
        at::Tensor& weight = engine.typed_module()->layers[1]->weight;
        const GatheredParameters scope(engine, {weight}, 0);
        const at::NoGradGuard no_grad;
        if (group.rank() == 0) weight.mul_(0.5);
      }
      const at::Tensor halved = engine.full_weight("layer1.weight");
      auto other = make_engine(group, {.stage = stage});
      train_steps(other, 2);
      EXPECT_TRUE(at::allclose(halved, other.full_weight("layer1.weight") * 0.5, 0, 1e-2));
      train_steps(engine, 2);
      EXPECT_THROW(engine.typed_module()->layers[0]->bias.data().add_(1), ModelError);
      EXPECT_THROW(
          {
            const at::NoGradGuard no_grad;
            engine.typed_module()->layers[0]->bias.add_(1);
          },
          ModelError);
    }
  }));
}

TEST_P(DelayedUpdate, ParametersMayBeFrozenAndUnfrozenMeanwhile) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    for (const std::string& path : {std::string(), folder_.path()}) {
      for (const std::string& precision : {kFp32, kBf16}) {
        const Setting setting{.precision = precision, .states_path = path};
        auto engine = make_engine(group, setting, 1);
        ByHand by_hand(setting, 1);
        const auto train_both = [&] {
          for (int step = 0; step < 2; ++step) {
            train_step(engine);
            by_hand.train_step();
            ASSERT_EQ(hash_of_seen(engine), by_hand.hash_of_seen()) << setting.json();
          }
        };
        const auto set_both = [&](int layer, bool trains) {
          set_trainable(engine.typed_module(), layer, trains);
          by_hand.set_trainable(layer, trains);
        };
        train_both();
        set_both(1, true);
        train_both();
        set_both(0, false);
        train_both();
        set_both(0, true);
        train_both();
        EXPECT_EQ(hash_of(engine), by_hand.hash()) << setting.json();
      }
    }
  }));
}

TEST_P(DelayedUpdate, MemoryIsCounted) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    const auto late = make_engine(group, {}), plain = make_engine(group, {.delayed = false});
    const MemoryReport with = late.memory_report(), without = plain.memory_report();
    EXPECT_EQ(with[MemoryKind::kGradients].current_nbytes, 2 * without[MemoryKind::kGradients].current_nbytes);
    EXPECT_GT(with[MemoryKind::kParameters].current_nbytes, without[MemoryKind::kParameters].current_nbytes);
  }));
}

/// A disk that fails under an update that nobody waits for: the next call of all ranks says so.
TEST(DelayedUpdateFailures, ADiskThatFailsIsAnErrorOfTheNextStep) {
  const TemporaryFolder folder;
  const auto results = spawn(2, [&](Group group) {
    io::FaultyFileSystem files(io::system_files());
    engine::use_files_for_offload(&files);
    auto engine = make_engine(group, {.states_path = folder.path()});
    train_steps(engine, 2);
    engine.finish_update();
    if (group.rank() == 1) files.fail_mutation(files.count(), EIO);
    train_steps(engine, 4);
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 1) << result.error;
  EXPECT_NE(results[1].error.find("optimizer states of 'layer"), std::string::npos) << results[1].error;
  EXPECT_NE(results[1].error.find(folder.path()), std::string::npos) << results[1].error;
}

TEST(DelayedUpdateFailures, AnEngineMayGoInTheMiddle) {
  for (int i = 0; i < 20; ++i) {
    auto engine = make_engine(Group(), {.batch = 1});
    train_steps(engine, i % 3 + 1);
  }
}

/// A save is part of the curve, which does not depend on the clock unless somebody wants it to.
TEST(DelayedUpdateFailures, NothingIsSavedByTheClock) {
  const auto minutes = [](const char* own) {
    return Config::from_text(fmt::format(R"({{"zero_optimization": {{"stage": 2}}, "zerotorch": {{{}}}}})", own))
        .zerotorch.checkpoint.every_minutes;
  };
  EXPECT_EQ(minutes(""), 10);
  EXPECT_EQ(minutes(R"("update": "delayed")"), 0);
  EXPECT_EQ(minutes(R"("update": "delayed", "checkpoint": {"every_minutes": 3})"), 3);
}

TEST(DelayedUpdateFailures, RefusesWhatCannotBeLate) {
  const auto problem = [](const std::string& more) {
    return error_of<ConfigError>([&] {
      Config::from_text(R"({"train_micro_batch_size_per_gpu": 1, "zerotorch": {"update": "delayed")" + more + "}");
    });
  };
  EXPECT_NE(problem("}").find("zero_optimization.stage"), std::string::npos) << problem("}");
  for (const char* type : {"Lamb", "Muon", "Adafactor"}) {
    const std::string text = problem(fmt::format(
        R"(}}, "zero_optimization": {{"stage": 2}}, "optimizer": {{"type": "{}", "params": {{"lr": 0.1}}}})", type));
    EXPECT_NE(text.find(type), std::string::npos) << text;
  }
  const std::string disk =
      problem(R"(}, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/tmp"}})");
  EXPECT_NE(disk.find("offload_param"), std::string::npos) << disk;
}

}  // namespace
}  // namespace zero::testing::delayed_update_test
