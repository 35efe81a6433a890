// Every optimizer trains to the same bits whatever the stage, store, tier of its states and number of ranks, also from
// a checkpoint of another number; client optimizers and parameter groups that need different states give libtorch's
// numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <map>

#include "support/bits.h"
#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::optimizers_test {
namespace {

struct OptimizerCase {
  std::string json;
  std::vector<std::string> states;
  std::string bf16 = {};  ///< with bf16: more of its section
  bool stochastic = false;
};

const std::vector<OptimizerCase> kCases = {
    {R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": true}})",
     {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}},
    {R"({"type": "SGD", "params": {"lr": 0.01, "maximize": true}})", {}},
    {R"({"type": "SGD", "params": {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.1}})",
     {"momentum_buffer"}},
    {R"({"type": "Adagrad", "params": {"lr_decay": 0.1, "initial_accumulator_value": 0.5}})", {"sum"}},
    {R"({"type": "RMSprop", "params": {"momentum": 0.9, "centered": true, "eps": 1e-2}})",
     {"square_avg", "momentum_buffer", "grad_avg"}},
    {R"({"type": "RMSprop", "params": {"centered": true, "eps": 1e-2}})", {"square_avg", "grad_avg"}},
    {R"({"type": "Lion", "params": {"weight_decay": 0.1}})", {"exp_avg"}},
    {R"({"type": "AdEMAMix", "params": {"weight_decay": 0.1, "betas": [0.9, 0.99, 0.999], "t_alpha": 3,
      "t_beta3": 8}})",
     {"exp_avg", "exp_avg_sq", "exp_avg_slow"}},
    {R"({"type": "AdamW8bit", "params": {"lr": 0.01, "weight_decay": 0.1}})", {"exp_avg", "exp_avg_sq"}},
    {R"({"type": "Adam8bit", "params": {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false}})",
     {"exp_avg", "exp_avg_sq"},
     R"(, "bf16_master_weights_and_grads": true)"},
    {R"({"type": "AdamW", "params": {"lr": 0.02}})", {"exp_avg", "exp_avg_sq"}, R"(, "bf16_optimizer_states": true)"},
    {R"({"type": "AdamW", "params": {"lr": 0.03}})",
     {"exp_avg", "exp_avg_sq"},
     R"(, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true)"},
    {R"({"type": "SGD", "params": {"lr": 0.03, "momentum": 0.9}})",
     {"momentum_buffer"},
     R"(, "bf16_master_weights_and_grads": true)",
     true},
};

std::string json_of(const OptimizerCase& of, int stage, bool node_shared = false, bool bf16 = false,
                    bool nvme = false) {
  return fmt::format(R"({{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "optimizer": {},
    "gradient_clipping": 0.5, "bf16": {{"enabled": {}{}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "sub_group_size": 13,
      "offload_optimizer": {{"device": "{}", "nvme_path": "{}"}}}},
    "zerotorch": {{"seed": 5, "store": "{}", "stochastic_rounding": {}}}}})",
                     of.json, bf16, bf16 ? of.bf16 : "", stage, nvme ? "nvme" : "none", ::testing::TempDir(),
                     node_shared ? "node_shared" : "copying", bf16 && of.stochastic);
}

constexpr int kMicroBatchesOfAStep = 6;

void train_steps(LayersEngine& engine, int steps) { train(engine, steps * kMicroBatchesOfAStep / engine.world_size()); }

std::uint64_t hash_of(Engine& engine, const OptimizerCase& of) {
  std::uint64_t hash = kNoBits;
  const auto add = [&](const at::Tensor& tensor) { hash = hash_with(hash, tensor); };
  for (const auto& item : engine.module().named_parameters()) {
    add(engine.full_weight(item.key()));
    for (const auto& state : of.states) add(engine.full_optimizer_state(item.key(), state));
  }
  return hash;
}

/// Trains each case four steps, two of them before a checkpoint; rank 0 writes "case precision<TAB>hash" lines.
void train_all(Group group, const TemporaryFolder& folder) {
  std::ofstream out;
  if (group.rank() == 0) out.open(folder.file("hashes"), std::ios::app);
  for (std::size_t c = 0; c < kCases.size(); ++c) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool node_shared : {false, true}) {
        const bool bf16 = node_shared != (stage % 2 == 0);
        const std::string curve = fmt::format("{} {}", c, bf16);
        for (const bool nvme : {false, true}) {
          if (nvme && (stage + static_cast<int>(node_shared) + group.size()) % 3 != 0) continue;
          const std::string json = json_of(kCases[c], stage, node_shared, bf16, nvme);
          auto engine = layers_engine(group, 3, {}, json);
          train_steps(engine, 2);
          // Of one, read by all: of fp32 written from memory, of bf16 from NVMe.
          const std::string saved = fmt::format("{}_{}", c, bf16);
          if (group.size() == 2 && stage > 1) engine.save_checkpoint(folder.path(), saved);
          train_steps(engine, 2);
          const std::uint64_t hash = hash_of(engine, kCases[c]);
          if (group.rank() == 0) out << curve << '\t' << hash << '\n';
          if (group.size() == 2 || stage == 2) continue;
          auto resumed = layers_engine(group, 9, {}, json);
          resumed.load_checkpoint(folder.path(), saved);
          train_steps(resumed, 2);
          EXPECT_EQ(hash_of(resumed, kCases[c]), hash) << "resumed, " << json;
        }
      }
    }
  }
}

TEST(Optimizers, TrainToTheSameBitsEverywhereAndFromCheckpoints) {
  const TemporaryFolder folder;
  for (const int ranks : {2, 1, 3})
    expect_all_ok(spawn(ranks, [&](Group group) { train_all(group, folder); }, {.timeout = std::chrono::minutes(2)}));
  std::map<std::string, std::string> of_curve;
  std::map<std::string, int> of_hash;
  int lines = 0;
  std::ifstream in(folder.file("hashes"));
  std::string line;
  while (std::getline(in, line)) {
    const auto tab = line.find('\t');
    const auto [first, is_new] = of_curve.try_emplace(line.substr(0, tab), line.substr(tab + 1));
    EXPECT_EQ(first->second, line.substr(tab + 1)) << line.substr(0, tab);
    of_hash[line.substr(tab + 1)] += is_new;
    ++lines;
  }
  // Each stage and store in memory with 3 numbers of ranks, and on NVMe with one.
  EXPECT_EQ(lines, (3 + 1) * 8 * static_cast<int>(kCases.size()));
  EXPECT_EQ(of_curve.size(), 2 * kCases.size());
  EXPECT_EQ(of_hash.size(), of_curve.size());  // no two of them train alike
}

TEST(Optimizers, ACheckpointOfAnotherIsAnError) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    for (std::size_t c = 0; c < kCases.size(); ++c) {
      auto engine = layers_engine(group, 3, {}, json_of(kCases[c], 3));
      train_steps(engine, 1);
      engine.save_checkpoint(folder.path(), std::to_string(c));
    }
    for (std::size_t c = 0; c < kCases.size(); ++c) {
      for (std::size_t other = 0; other < kCases.size(); ++other) {
        if (kCases[c].states == kCases[other].states) continue;
        auto engine = layers_engine(group, 9, {}, json_of(kCases[c], 3));
        const std::string said = error_of([&] { engine.load_checkpoint(folder.path(), std::to_string(other)); });
        EXPECT_NE(said.find("is of another optimizer"), std::string::npos) << said;
        engine.load_checkpoint(folder.path(), std::to_string(other), {.load_optimizer_states = false});
        train_steps(engine, 1);
      }
    }
  }));
}

/// One step of plain libtorch on all micro-batches, averaged.
void plain_step(Layers& model, torch::optim::Optimizer& optimizer, int step) {
  for (int i = 0; i < kMicroBatchesOfAStep; ++i) {
    const double index = step * kMicroBatchesOfAStep + i;
    const at::Tensor x = at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(index));
    (model(x).square().sum() / kMicroBatchesOfAStep).backward();
  }
  optimizer.step();
  optimizer.zero_grad();
}

using Tensors = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors first, Tensors second)>;

template <class Optimizer, class Options>
MakeOptimizer two_groups(Options of_first, Options of_second, Options rest = Options(0.01)) {
  return [=](Tensors first, Tensors second) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(first), std::make_unique<Options>(of_first));
    groups.emplace_back(std::move(second), std::make_unique<Options>(of_second));
    // What a group leaves at its default it takes from here.
    return std::make_unique<Optimizer>(std::move(groups), rest);
  };
}

std::string without_optimizer(int stage) {
  return fmt::format(R"({{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}}})",
                     stage);
}

TEST(Optimizers, AMomentumThatIsWrittenBeforeTheFirstUpdateIsUsed) {
  const auto json = [](const char* more) {
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
      "optimizer": {{"type": "SGD", "params": {{"lr": 0.01, "momentum": 0.5{}}}}}}})",
                       more);
  };
  expect_all_ok(spawn(2, [&](Group group) {
    const auto momentum_after = [&](double written) {
      auto engine = layers_engine(group, 3, {}, json(""));
      const std::string name = engine.module().named_parameters().keys().front();
      const at::Tensor like = engine.full_weight(name);
      engine.set_full_optimizer_state(name, "momentum_buffer", at::full_like(like, written));
      train(engine, 1);
      return engine.full_optimizer_state(name, "momentum_buffer");
    };
    EXPECT_TRUE(momentum_after(0.25).allclose(momentum_after(0) + 0.125));
    auto engine = layers_engine(group, 3, {}, json(R"(, "dampening": 0.1)"));
    const std::string name = engine.module().named_parameters().keys().front();
    EXPECT_THROW(engine.set_full_optimizer_state(name, "momentum_buffer", engine.full_weight(name)), ModelError);
    group.barrier().wait();
  }));
}

TEST(Optimizers, AClientsAreTakenOverWithGroupsThatNeedDifferentStates) {
  using namespace torch::optim;
  const std::vector<std::pair<std::string, MakeOptimizer>> makers = {
      {"max_exp_avg_sq", two_groups<Adam>(AdamOptions(0.01).eps(1e-3).amsgrad(true), AdamOptions(0.02).eps(1e-3))},
      {"momentum_buffer", two_groups<SGD>(SGDOptions(0.01).momentum(0.9).nesterov(true), SGDOptions(0.02))},
      {"sum", two_groups<Adagrad>(AdagradOptions(0.01).initial_accumulator_value(0.5),
                                  AdagradOptions(0.02).lr_decay(0.1).eps(1e-3))},
      {"sum", two_groups<Adagrad>(AdagradOptions(0.01), AdagradOptions(0.02).lr_decay(0.1).eps(1e-3),
                                  AdagradOptions(0.01).initial_accumulator_value(0.5))},
      {"grad_avg", two_groups<RMSprop>(RMSpropOptions(0.01).eps(1e-2).centered(true),
                                       RMSpropOptions(0.02).eps(1e-2).momentum(0.5))},
  };
  expect_all_ok(spawn(2, [&](Group group) {
    at::set_num_threads(1);
    for (const auto& [state, make] : makers) {
      at::manual_seed(3);
      Layers plain(Shape{}), model(Shape{});
      for (std::size_t p = 0; p < plain->parameters().size(); ++p)
        model->parameters()[p].detach().copy_(plain->parameters()[p].detach());
      const auto of_plain = make(plain->first->parameters(), plain->second->parameters());
      const auto client = make(model->first->parameters(), model->second->parameters());
      auto engine = initialize(model, without_optimizer(3), {.group = group, .optimizer = client.get()});
      for (int step = 0; step < 4; ++step) {
        plain_step(plain, *of_plain, step);
        train_steps(engine, 1);
        for (const auto* optimizer : {&of_plain, &client}) {
          auto& options = (*optimizer)->param_groups()[1].options();
          options.set_lr(options.get_lr() * 0.7);  // read at the next step
        }
      }
      for (const auto& item : plain->named_parameters()) {
        EXPECT_TRUE(at::allclose(engine.full_weight(item.key()), item.value().detach(), 1e-5, 1e-6))
            << state << ", " << item.key();
      }
      EXPECT_GT(engine.full_optimizer_state("first.weight", state).abs().max().item<float>(), 0) << state;
      const float of_second = engine.full_optimizer_state("second.weight", state).abs().max().item<float>();
      EXPECT_EQ(of_second > 0, state == "sum") << state;  // the other group needs no such state
    }
  }));
}

TEST(Optimizers, WhatAClientCannotChangeLaterIsAnError) {
  expect_all_ok(spawn(2, [](Group group) {
    using torch::optim::SGD;
    using torch::optim::SGDOptions;
    const auto step = [](auto& engine, Layers& model) {
      do {
        engine.backward(model->forward(at::ones({2, 6})).square().mean());
        engine.step();
      } while (!engine.was_step_applied());  // a window of several micro-batches
    };
    const auto options = [](SGD& client) -> SGDOptions& {
      return static_cast<SGDOptions&>(client.param_groups()[0].options());
    };
    {
      Layers model{Shape{}};
      SGD client(model->parameters(), SGDOptions(0.1).momentum(0.9));
      options(client).momentum(0);
      auto engine = initialize(model, without_optimizer(2), {.group = group, .optimizer = &client});
      step(engine, model);
      options(client).momentum(0.9).dampening(0.5);
      expect_said([&] { step(engine, model); }, "has come to need the state momentum_buffer");
    }
    {
      Layers model{Shape{}};
      using torch::optim::OptimizerParamGroup;
      SGD client(std::vector<OptimizerParamGroup>{OptimizerParamGroup(model->first->parameters()),
                                                  OptimizerParamGroup(model->second->parameters())},
                 SGDOptions(0.1).momentum(0.9));
      options(client).momentum(0);  // the other group keeps its own
      auto engine = initialize(model, without_optimizer(2), {.group = group, .optimizer = &client});
      step(engine, model);
      options(client).momentum(0.9).dampening(0.5);
      expect_said([&] { step(engine, model); }, "has got a momentum after updates without one");
    }
    {
      Layers model{Shape{}};
      SGD client(model->parameters(), SGDOptions(0.1));
      auto engine = initialize(model, without_optimizer(2), {.group = group, .optimizer = &client});
      step(engine, model);
      client.param_groups()[0].params().push_back(at::ones({3}).requires_grad_());
      expect_said([&] { step(engine, model); }, "has got or lost parameters or groups");
    }
  }));
}

TEST(Optimizers, ParameterGroupsNameTheirHyperparameters) {
  expect_all_ok(spawn(2, [](Group group) {
    at::set_num_threads(1);
    at::manual_seed(3);
    Layers plain(Shape{}), model(Shape{});
    for (std::size_t p = 0; p < plain->parameters().size(); ++p)
      model->parameters()[p].detach().copy_(plain->parameters()[p].detach());
    using torch::optim::SGDOptions;
    const auto sgd = two_groups<torch::optim::SGD>(SGDOptions(0.01).momentum(0.9).dampening(0.2), SGDOptions(0.01))(
        plain->first->parameters(), plain->second->parameters());
    const std::string json = R"({"type": "SGD", "params": {"lr": 0.01}})";
    Config config = Config::from_text(json_of({json}, 2));
    config.gradient_clipping = 0;
    auto engine =
        initialize(model, config,
                   {.group = group, .parameter_groups = {{.names = {"first.*"}, .momentum = 0.9, .dampening = 0.2}}});
    for (int step = 0; step < 3; ++step) plain_step(plain, *sgd, step);
    train_steps(engine, 3);
    for (const auto& item : plain->named_parameters())
      EXPECT_TRUE(at::allclose(engine.full_weight(item.key()), item.value().detach(), 1e-5, 1e-6)) << item.key();

    const auto refused = [&](ParameterGroup wrong) {
      Layers other(Shape{});
      wrong.names = {"first.*"};
      return error_of<ConfigError>(
          [&] { (void)initialize(other, config, {.group = group, .parameter_groups = {std::move(wrong)}}); });
    };
    EXPECT_EQ(refused({.betas = std::pair(0.9, 0.99)}),
              "parameter group 0: betas: not a hyper-parameter of SGD, which takes lr, weight_decay, maximize, "
              "momentum, dampening, nesterov; leave it out");
    EXPECT_NE(refused({.momentum = -1.0}).find("parameter group 0: momentum: got -1.0, want"), std::string::npos);
    EXPECT_NE(refused({.nesterov = true}).find("parameter group 0: nesterov: needs"), std::string::npos);
  }));
}

/// Also of units that are unfrozen later, and in a checkpoint of theirs.
/// What a group gives counts as if the JSON gave it to all.
TEST(Optimizers, AGroupHasASlowAverageOfItsOwn) {
  expect_all_ok(spawn(2, [](Group group) {
    const OptimizerCase of{R"({"type": "AdEMAMix", "params": {"lr": 0.01}})",
                           {"exp_avg", "exp_avg_sq", "exp_avg_slow"}};
    const OptimizerCase same{R"({"type": "AdEMAMix", "params": {"lr": 0.01, "betas": [0.8, 0.9, 0.99], "alpha": 7,
      "t_alpha": 2, "t_beta3": 9}})",
                             of.states};
    const auto hash = [&](const OptimizerCase& one, std::vector<ParameterGroup> groups) {
      at::manual_seed(3);
      Layers model(Shape{});
      auto engine = initialize(model, Config::from_text(json_of(one, 2)),
                               {.group = group, .parameter_groups = std::move(groups)});
      train_steps(engine, 3);
      return hash_of(engine, of);
    };
    const ParameterGroup all{
        .names = {"*"}, .betas = std::pair(0.8, 0.9), .alpha = 7.0, .beta3 = 0.99, .t_alpha = 2, .t_beta3 = 9};
    const auto wanted = hash(same, {});
    EXPECT_EQ(hash(of, {all}), wanted);
    EXPECT_NE(hash(of, {}), wanted);
    for (const auto change : {&ParameterGroup::alpha, &ParameterGroup::beta3}) {
      ParameterGroup other = all;
      other.*change = 0.5;
      EXPECT_NE(hash(of, {other}), wanted);
    }
    for (const auto change : {&ParameterGroup::t_alpha, &ParameterGroup::t_beta3}) {
      ParameterGroup other = all;
      other.*change = 0;
      EXPECT_NE(hash(of, {other}), wanted);
    }
  }));
}

TEST(Optimizers, AdagradsSumsStartAtTheirInitialValue) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string json = json_of({R"({"type": "Adagrad", "params": {"initial_accumulator_value": 0.5}})"}, 3);
    auto engine = layers_engine(group, 3, {.freeze_second = true}, json);
    train_steps(engine, 1);
    for (auto& parameter : engine.typed_module()->second->parameters()) parameter.requires_grad_(true);
    const auto sums = [&](LayersEngine& of) { return of.full_optimizer_state("second.weight", "sum"); };
    EXPECT_TRUE(at::equal(sums(engine), at::full({4, 5}, 0.5f)));
    train_steps(engine, 1);
    EXPECT_GE(sums(engine).min().item<float>(), 0.5f);
    EXPECT_GT(sums(engine).max().item<float>(), 0.5f);
    engine.save_checkpoint(folder.path(), "later");
    auto again = layers_engine(group, 4, {}, json);
    again.load_checkpoint(folder.path(), "later");
    EXPECT_TRUE(at::equal(sums(again), sums(engine)));
    // Parameters that the checkpoint has no states of start anew.
    auto frozen = layers_engine(group, 3, {.freeze_second = true}, json);
    frozen.save_checkpoint(folder.path(), "frozen");
    again.load_checkpoint(folder.path(), "frozen");
    EXPECT_TRUE(at::equal(sums(again), at::full({4, 5}, 0.5f)));
  }));
}

}  // namespace
}  // namespace zero::testing::optimizers_test
