// Random numbers: the program's own draws are what they are without an engine, on every rank; dropout belongs
// to the micro-batch, whatever rank it falls on.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include "support/errors.h"
#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::random_streams_test {
namespace {

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() {
    first = register_module("first", torch::nn::Linear(6, 5));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    second = register_module("second", torch::nn::Linear(5, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(at::tanh(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Noisy);

std::string json(int stage, int window, const char* more = "") {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {}, "zero_optimization":
    {{"stage": {}, "stage3_param_persistence_threshold": 0}}, "zerotorch": {{"seed": 5{}}}}})",
      window, stage, more);
}

/// What a plain program draws for its data, two numbers a step.
std::vector<double> draws_alone(std::uint64_t seed, int steps) {
  at::manual_seed(seed);
  std::vector<double> draws;
  for (int i = 0; i < 2 * steps; ++i) draws.push_back(at::randn({}).item<double>());
  return draws;
}

/// With a step of an engine in between, its backward run by `run`.
template <class Run>
std::vector<double> draws_beside(Group group, int stage, std::uint64_t seed, int steps, Run run) {
  Noisy model;
  at::manual_seed(seed);
  auto engine = initialize(model, json(stage, 1), {.group = group});
  std::vector<double> draws;
  for (int i = 0; i < steps; ++i) {
    draws.push_back(at::randn({}).item<double>());  // an odd number: half of a pair is left over
    run(engine, model, at::full({2, 6}, draws.back()));
    draws.push_back(at::randn({}).item<double>());
    engine.step();
  }
  return draws;
}

TEST(RandomStreams, AProgramsOwnDrawsAreItsOwn) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    expect_all_ok(spawn(ranks, [](Group group) {
      at::set_num_threads(1);
      const auto wanted = draws_alone(31 + group.rank(), 5);
      for (int stage = 0; stage < 4; ++stage) {
        const auto plain =
            draws_beside(group, stage, 31 + group.rank(), 5,
                         [](auto& engine, auto& model, const auto& x) { engine.backward(model(x).square().mean()); });
        EXPECT_EQ(plain, wanted) << stage;
        const auto own = draws_beside(group, stage, 31 + group.rank(), 5,
                                      [](auto& engine, auto&, const auto& x) { engine(x).square().mean().backward(); });
        EXPECT_EQ(own, wanted) << stage;
        const auto twice =
            draws_beside(group, stage, 31 + group.rank(), 5, [](auto& engine, auto& model, const auto& x) {
              engine.backward(model(x).square().mean());
              engine.backward(engine(x).square().mean());
              const at::NoGradGuard no_grad;
              (void)model(x);
            });
        EXPECT_NE(twice, wanted) << "without gradients dropout draws from the program's numbers";
      }
    }));
  }
}

/// Weights after two windows of four micro-batches, with draws in between that differ by rank.
Values train(Group group, int stage, bool draws, bool by_call) {
  at::set_num_threads(1);
  at::manual_seed(2);
  Noisy model;
  auto engine = initialize(model, json(stage, 4 / group.size()), {.group = group});
  for (int i = 0; i < 8 / group.size(); ++i) {
    const at::Tensor x = at::full({2, 6}, 0.1 * (i * group.size() + group.rank() + 1));
    if (draws) (void)at::rand({3 + group.rank()});
    engine.backward((by_call ? engine(x) : model(x)).square().mean());
    if (draws) (void)at::randn({1});
    engine.step();
  }
  Values values;
  for (const auto& item : model->named_parameters()) values[item.key()] = engine.full_weight(item.key());
  return values;
}

TEST(RandomStreams, DropoutIsTheMicroBatchsOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  std::vector<std::uint64_t> first;
  const std::string path = folder.path() + "/weights.pt";
  for (const int ranks : {1, 2, 4}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      for (const bool draws : {false, true}) {
        for (const bool by_call : {false, true}) {
          const Values values = train(group, ranks == 1 ? 0 : ranks - 1, draws, by_call);
          std::vector<at::Tensor> flat;
          for (const auto& [name, value] : values) flat.push_back(value.flatten());
          const at::Tensor all = at::cat(flat);
          if (ranks == 1 && !draws && !by_call) torch::save(all, path);
          at::Tensor wanted;
          torch::load(wanted, path);
          EXPECT_TRUE(at::equal(all, wanted)) << ranks << " ranks, " << draws << by_call;
        }
      }
    }));
  }
}

TEST(RandomStreams, ManualSeedBetweenForwardAndBackwardIsTheProgramsNumbers) {
  expect_all_ok(spawn(2, [](Group group) {
    Noisy model;
    auto engine = initialize(model, json(2, 1), {.group = group});
    const at::Tensor loss = model(at::ones({2, 6})).square().mean();
    at::manual_seed(77);
    engine.backward(loss);
    const at::Tensor drawn = at::rand({5});
    engine.step();
    at::manual_seed(77);
    EXPECT_TRUE(at::equal(drawn, at::rand({5})));
  }));
}

TEST(RandomStreams, ForwardsWithOneSeedHaveOneNoise) {
  expect_all_ok(spawn(2, [](Group group) {
    Noisy model;
    at::manual_seed(3);
    auto engine = initialize(model, json(1, 1), {.group = group});
    const at::Tensor x = at::ones({2, 6});
    const auto forward = [&](std::optional<std::uint64_t> seed) {
      if (seed) at::manual_seed(*seed);
      return model(x);
    };
    const at::Tensor first = forward(3), again = forward(3), other = forward(4), next = forward({});
    EXPECT_TRUE(at::equal(first, again));
    EXPECT_FALSE(at::equal(first, other));
    EXPECT_FALSE(at::equal(other, next)) << "without a seed it goes on";
    // The same where a backward lies between.
    engine.backward(forward(5).square().mean());
    const at::Tensor before = forward(6).detach().clone();
    engine.backward(forward({}).square().mean());
    EXPECT_TRUE(at::equal(before, forward(6)));
    EXPECT_FALSE(at::equal(before, forward({})));
    engine.step();
  }));
}

TEST(RandomStreams, ManualSeedMakesItsSeedTheJobs) {
  expect_all_ok(spawn(1, [](Group group) {
    std::vector<at::Tensor> outputs;
    for (const std::uint64_t seed : {7, 7, 8}) {
      at::manual_seed(1);
      Noisy model;
      auto engine = initialize(model, json(1, 1), {.group = group});
      at::manual_seed(seed);
      outputs.push_back(model(at::ones({2, 6})).detach().clone());
      engine.backward(model(at::ones({2, 6})).square().mean());
      engine.step();
    }
    EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
    EXPECT_FALSE(at::equal(outputs[0], outputs[2]));
  }));
}

TEST(RandomStreams, AProgramGoesOnWithItsOwnNumbersFromACheckpoint) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    at::set_num_threads(1);
    std::vector<double> straight, resumed;
    const auto run = [&](auto& engine, auto& model, int steps, std::vector<double>& draws) {
      for (int i = 0; i < steps; ++i) {
        draws.push_back(at::randn({}).template item<double>());
        const at::Tensor loss = model(at::full({2, 6}, draws.back())).square().mean();
        draws.push_back(loss.template item<double>());
        engine.backward(loss);
        engine.step();
      }
    };
    Noisy model;
    at::manual_seed(40 + group.rank());
    auto engine = initialize(model, json(3, 1), {.group = group});
    run(engine, model, 3, straight);
    engine.save_checkpoint(folder.path(), "three");
    straight.clear();
    run(engine, model, 3, straight);

    Noisy other;
    at::manual_seed(9);
    auto later = initialize(other, json(3, 1), {.group = group});
    later.load_checkpoint(folder.path(), "three");
    run(later, other, 3, resumed);
    EXPECT_EQ(straight, resumed);
  }));
}

/// A forward that is given up has drawn nothing, once the program says so.
TEST(RandomStreams, AMicroBatchThatIsBegunAnewHasItsNumbers) {
  at::set_num_threads(1);
  const auto losses = [](bool gives_up) {
    at::manual_seed(4);
    Noisy model;
    auto engine = initialize(model, json(2, 2), {.group = Group()});
    std::vector<double> all;
    for (int i = 0; i < 6; ++i) {
      const at::Tensor x = at::full({2, 6}, 0.1 * i);
      if (gives_up && i % 2 == 0) {
        (void)engine(x);
        (void)engine(x);
        engine.zero_grad();
      }
      const at::Tensor loss = engine(x).square().mean();
      engine.backward(loss);
      engine.step();
      all.push_back(loss.item<double>());
    }
    return all;
  };
  EXPECT_EQ(losses(true), losses(false));
}

}  // namespace
}  // namespace zero::testing::random_streams_test
