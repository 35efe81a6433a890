// What front ends need beside a program in C++: hyper-parameters at any time, losses that are divided already, writes
// that a scope drops, zero_grad() in every micro-batch, buffers that are not saved, progress from elsewhere, signals.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "support/errors.h"
#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::front_end_test {
namespace {

at::Tensor input(int step, int rank) { return at::sin(at::arange(12, at::kFloat).view({2, 6}) * (1 + step) + rank); }

double loss_and_backward(LayersEngine& engine, int step, double weight = 1, double factor = 1) {
  const at::Tensor loss = engine(input(step, engine.rank())).square().mean() * factor;
  engine.backward(loss, {.weight = weight});
  return loss.item<double>();
}

bool same_weights(Engine& a, Engine& b) {
  for (const auto& item : a.module().named_parameters()) {
    if (!at::equal(a.full_weight(item.key()), b.full_weight(item.key()))) return false;
  }
  return true;
}

LayersEngine with(Group group, const std::string& json, InitializeOptions options = {}) {
  at::manual_seed(7);
  options.group = std::move(group);
  return initialize(Layers(Shape()), json, std::move(options));
}

std::string json_with(double decay, double eps, int accumulation = 1) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": {}, "eps": {}}}}},
    "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0}}, "zerotorch": {{"seed": 5}}}})",
                     accumulation, decay, eps);
}

TEST(FrontEnd, AGroupsHyperParametersMayChangeAtAnyTime) {
  expect_all_ok(spawn(2, [](Group group) {
    auto changed = with(group, json_with(0, 1e-8));
    auto made = with(group, json_with(0.25, 1e-3));
    changed.set_parameter_group(0, {.weight_decay = 0.25, .eps = 1e-3});
    for (int step = 0; step < 3; ++step) {
      loss_and_backward(changed, step);
      loss_and_backward(made, step);
      changed.step();
      made.step();
    }
    EXPECT_TRUE(same_weights(changed, made));
    changed.set_parameter_group(0, {.lr = 0.125});
    EXPECT_EQ(changed.learning_rate(), 0.125);
    EXPECT_NE(error_of<ConfigError>([&] { changed.set_parameter_group(0, {.lr = -1}); }).find("lr"), std::string::npos);
    EXPECT_NE(error_of<ConfigError>([&] { changed.set_parameter_group(0, {.momentum = 0.5}); }).find("momentum"),
              std::string::npos);
    EXPECT_NE(error_of<ConfigError>([&] { changed.set_parameter_group(0, {.amsgrad = true}); }).find("max_exp_avg_sq"),
              std::string::npos);
    EXPECT_NE(error_of<ConfigError>([&] { changed.set_parameter_group(7, {}); }), "");
  }));
}

TEST(FrontEnd, RanksThatGiveOtherHyperParametersAreTold) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = with(group, json_with(0, 1e-8));
    engine.set_parameter_group(0, {.weight_decay = 0.1 * group.rank()});
    loss_and_backward(engine, 0);
    EXPECT_NE(error_of<ConfigError>([&] { engine.step(); }).find("weight_decay"), std::string::npos);
  }));
}

TEST(FrontEnd, ALossThatIsDividedAlreadyCountsItsWeight) {
  expect_all_ok(spawn(2, [](Group group) {
    auto divides = with(group, json_with(0.1, 1e-8, 4));
    auto divided = with(group, json_with(0.1, 1e-8, 4));
    for (int step = 0; step < 8; ++step) {
      loss_and_backward(divides, step);
      loss_and_backward(divided, step, 4, 0.25);
      divides.step();
      divided.step();
    }
    EXPECT_TRUE(same_weights(divides, divided));
    EXPECT_EQ(divides.grad_norm(), divided.grad_norm());
  }));
}

TEST(FrontEnd, AGraphMayStayForASecondBackward) {
  auto engine = with(Group(), json_with(0, 1e-8));
  const at::Tensor loss = engine(input(0, 0)).square().mean();
  engine.backward(loss, {.retain_graph = true});
  engine.backward(loss);
  EXPECT_THROW(engine.backward(loss), std::exception);
}

TEST(FrontEnd, AScopeDropsWhatIsWrittenInItAndNothingElse) {
  for (const bool node_shared : {true, false}) {
    expect_all_ok(spawn(2, [node_shared](Group group) {
      auto json = json_with(0, 1e-8);
      const std::string store = node_shared ? "node_shared" : "copying";
      json.replace(json.find(R"("seed")"), 6, fmt::format(R"("store": "{}", "seed")", store));
      auto engine = with(group, json);
      auto plain = with(group, json);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor first = engine.typed_module()->first->weight;
        const at::Tensor before = engine.full_weight("first.weight");
        {
          using Writes = GatheredParameters::ReadersWrites;
          GatheredParameters scope(engine, engine.module().parameters(), {}, Writes::kDropped);
          {
            const at::NoGradGuard no_grad;
            first.fill_(group.rank() + 5);
          }
          EXPECT_EQ(first.mean().item<float>(), group.rank() + 5);
          EXPECT_TRUE(at::equal(engine.full_weight("first.weight"), before));  // which commits other writes
          EXPECT_EQ(first.mean().item<float>(), group.rank() + 5);
        }
        EXPECT_TRUE(at::equal(first.detach().to(at::kFloat), before));
        loss_and_backward(engine, step);
        loss_and_backward(plain, step);
        engine.step();
        plain.step();
      }
      EXPECT_TRUE(same_weights(engine, plain));
    }));
  }
}

TEST(FrontEnd, ZeroGradInEveryMicroBatchKeepsTheWindowWhereAsked) {
  expect_all_ok(spawn(2, [](Group group) {
    auto keeps = with(group, json_with(0, 1e-8, 3), {.zero_grad_keeps_window = true});
    auto plain = with(group, json_with(0, 1e-8, 3));
    for (int step = 0; step < 6; ++step) {
      step % 2 ? keeps.zero_grad() : keeps.module().zero_grad();
      loss_and_backward(keeps, step);
      loss_and_backward(plain, step);
      keeps.step();
      plain.step();
    }
    EXPECT_EQ(keeps.global_steps(), 2);
    EXPECT_TRUE(same_weights(keeps, plain));
    loss_and_backward(keeps, 0);
    keeps.zero_grad();  // of the first micro-batch of a window: dropped
    loss_and_backward(keeps, 1);
    keeps.step();
    loss_and_backward(keeps, 2);
    EXPECT_NE(error_of<ModelError>([&] { keeps.zero_grad(); }).find("call step() first"), std::string::npos);
  }));
}

TEST(FrontEnd, StatesAndProgressOfAnotherLibraryGoOn) {
  expect_all_ok(spawn(2, [](Group group) {
    auto trained = with(group, json_with(0.1, 1e-8));
    for (int step = 0; step < 3; ++step) {
      loss_and_backward(trained, step);
      trained.step();
    }
    auto other = with(group, json_with(0.1, 1e-8));
    loss_and_backward(other, 9);
    other.step();
    Progress progress{.global_steps = 3};
    for (const auto& item : trained.module().named_parameters()) {
      const std::string& name = item.key();
      other.set_full_weight(name, trained.full_weight(name));
      EXPECT_EQ(trained.optimizer_states(name), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
      for (const auto& state : trained.optimizer_states(name))
        other.set_full_optimizer_state(name, state, trained.full_optimizer_state(name, state));
      progress.updates[name] = 3;
      EXPECT_EQ(trained.parameter_group_of(name), 0);
    }
    other.set_progress(progress);
    for (int step = 3; step < 6; ++step) {
      loss_and_backward(trained, step);
      loss_and_backward(other, step);
      trained.step();
      other.step();
    }
    EXPECT_TRUE(same_weights(trained, other));
    EXPECT_EQ(other.global_steps(), 6);
    EXPECT_THROW(other.set_full_optimizer_state("first.weight", "exp_avg", at::zeros({2})), ModelError);
    EXPECT_THROW(other.set_full_optimizer_state("first.weight", "sum", at::zeros({5, 6})), ModelError);
    EXPECT_THROW(other.set_progress({.global_steps = 1, .skipped_steps = 2}), ConfigError);
    for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL})
      EXPECT_THROW(other.set_progress({.global_steps = 1, .loss_scale = scale}), ConfigError) << scale;
    EXPECT_THROW(other.set_progress({.global_steps = 1, .updates = {{"no", 1}}}), ModelError);
  }));
}

TEST(FrontEnd, LocalPartsMakeUpTheWhole) {
  expect_all_ok(spawn(3, [](Group group) {
    auto engine = with(group, json_with(0, 1e-8));
    loss_and_backward(engine, 0);
    engine.step();
    const at::Tensor whole = engine.full_weight("first.weight").flatten();
    const at::Tensor moments = engine.full_optimizer_state("first.weight", "exp_avg").flatten();
    const auto part = engine.local_weight("first.weight");
    const auto state = engine.local_optimizer_state("first.weight", "exp_avg");
    EXPECT_TRUE(at::equal(whole.narrow(0, part.begin, part.values.numel()), part.values));
    EXPECT_TRUE(at::equal(moments.narrow(0, state.begin, state.values.numel()), state.values));
    std::int64_t numel = part.values.numel();
    group.all_reduce(&numel, 1, DType::kInt64).wait();
    EXPECT_EQ(numel, whole.numel());
  }));
}

TEST(FrontEnd, BuffersThatAreNotPersistentAreNotSaved) {
  const TemporaryFolder folder;
  const auto engine_of = [](double value) {
    at::manual_seed(7);
    ModelView view;
    view.parameters = {{"weight", at::ones({3}).requires_grad_(true)}};
    view.buffers = {{.name = "kept", .tensor = at::full({2}, value)},
                    {.name = "made", .tensor = at::full({2}, value), .persistent = false}};
    return std::pair(view, initialize(view, Config::from_text(json_with(0, 1e-8)), {.group = Group()}));
  };
  auto [saved_view, saved] = engine_of(1);
  saved.save_checkpoint(folder.path(), "t");
  auto [view, engine] = engine_of(2);
  EXPECT_EQ(engine.load_checkpoint(folder.path(), "t").missing, Names());
  EXPECT_EQ(view.buffers[0].tensor.mean().item<float>(), 1);
  EXPECT_EQ(view.buffers[1].tensor.mean().item<float>(), 2);
}

std::atomic<bool> g_interrupt = false;

TEST(FrontEnd, AWaitAsksWhetherItIsInterrupted) {
  struct Interrupted : std::exception {};
  const auto outcome = spawn(2, [](Group group) {
    set_interrupt_check([] {
      if (g_interrupt.load()) throw Interrupted();
    });
    if (group.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      EXPECT_THROW(group.barrier().wait(), CommError);
      return;
    }
    g_interrupt = true;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THROW(group.barrier().wait(), Interrupted);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
    EXPECT_TRUE(group.failed());
    set_interrupt_check(nullptr);
  });
  expect_all_ok(outcome);
}

}  // namespace
}  // namespace zero::testing::front_end_test
