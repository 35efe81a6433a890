// zero::Init: a module that is built on the first rank only trains as one that every rank has built.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "support/bits.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

constexpr std::int64_t kDim = 700;

/// Weights of 2 MB, a mask that is computed and a buffer that is drawn.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    table = register_module("table", torch::nn::Embedding(kDim, kDim));
    first = register_module("first", torch::nn::Linear(kDim, kDim));
    second = register_module("second", torch::nn::Linear(kDim, kDim));
    mask = register_buffer("mask", at::ones({kDim, kDim}).tril());
    noise = register_buffer("noise", at::empty({kDim, kDim}).normal_());
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor x = table(tokens);
    return second(at::tanh(first(x)) + x.matmul((mask * noise).to(x.scalar_type())).mul(0.01));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor mask, noise;
};
TORCH_MODULE(Wide);

std::string json(int stage, const char* store, bool bf16) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
      "bf16": {{"enabled": {}}}, "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
      "zerotorch": {{"store": "{}", "seed": 5}}}})",
      bf16, stage, store);
}

std::uint64_t train(Wide model, Group group, const std::string& config) {
  at::set_num_threads(1);
  auto engine = initialize(std::move(model), config, {.group = group});
  std::uint64_t hash = kNoBits;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor tokens = at::arange(4).add(7 * step + group.rank()).view({1, 4});
    engine.backward(engine(tokens).to(at::kFloat).square().mean());
    engine.step();
  }
  for (const auto& item : engine.module().named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()));
  for (const auto& item : engine.module().named_buffers()) hash = hash_with(hash, item.value().to(at::kFloat));
  return hash;
}

Wide built_everywhere(const Group& group) {
  at::manual_seed(17 + group.rank());  // initialize() takes the first rank's
  return Wide();
}

Wide built_once(const Group& group, std::optional<DType> dtype = {}) {
  at::manual_seed(17 + group.rank());
  const Init init(group, dtype);
  return Wide();
}

TEST(Init, TrainsAsAModuleThatEveryRankHasBuilt) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const char* store : {"copying", "node_shared"}) {
          const std::string config = json(stage, store, stage % 2 == 1);
          EXPECT_EQ(train(built_once(group), group, config), train(built_everywhere(group), group, config)) << config;
        }
      }
    }));
  }
}

TEST(Init, WeightsOfOtherRanksTakeNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  expect_all_ok(spawn(2, [](Group group) {
    constexpr std::int64_t kWide = 6000, kNbytes = kWide * kWide * 4;  // 144 MB
    const std::int64_t before = resident_nbytes();
    torch::nn::Linear layer{nullptr};
    {
      const Init init(group);
      layer = torch::nn::Linear(torch::nn::LinearOptions(kWide, kWide));
    }
    const std::int64_t taken = resident_nbytes() - before;
    if (group.rank() == 0) {
      EXPECT_GT(taken, kNbytes / 2);
    } else {
      EXPECT_LT(taken, kNbytes / 10);
    }
    // What is small or not drawn is written as ever, and afterwards everything is.
    EXPECT_LE(layer->bias.abs().max().item<float>(), 1.0f / 70);
    EXPECT_GT(at::empty({1000, 1000}).normal_().abs().sum().item<float>(), 1e5f);
  }));
}

/// A layer, and a random matrix that is neither parameter nor buffer.
struct StrayImpl : torch::nn::Module {
  explicit StrayImpl(const std::function<at::Tensor(const torch::nn::Linear&)>& make) {
    layer = register_module("layer", torch::nn::Linear(kDim, kDim));
    matrix = make(layer);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x).matmul(matrix); }
  torch::nn::Linear layer{nullptr};
  at::Tensor matrix;
};
TORCH_MODULE(Stray);

TEST(Init, TheGeneratorIsWhereItIsWithout) {
  expect_all_ok(spawn(2, [](Group group) {
    const auto drawn_after = [](bool once, const Group& of) {
      at::manual_seed(3);
      std::optional<Init> init;
      if (once) init.emplace(of);
      const Stray model([](const auto&) { return at::randn({kDim, 4}); });
      const at::Tensor odd = at::empty({300, 301}).t().normal_();  // not contiguous
      const at::Tensor coins = at::empty({40'001}).bernoulli_(0.3);
      return at::cat({model->matrix.flatten(), at::randn({5})});
    };
    EXPECT_TRUE(drawn_after(true, group).equal(drawn_after(false, group)));
  }));
}

TEST(Init, WhatOnlyTheFirstRankHasIsNotTrainedWith) {
  const std::function<at::Tensor(const torch::nn::Linear&)> strays[] = {
      [](const auto&) {
        return at::empty({kDim, kDim}).normal_();
      },
      [](const torch::nn::Linear& layer) { return layer->weight.detach().clone(); },
      [](const torch::nn::Linear& layer) {
        return at::ones({kDim, kDim}).add_(layer->weight.detach().t());
      },
  };
  for (const auto& stray : strays) {
    const auto results = spawn(2, [&](Group group) {
      const Stray model = [&] {
        const Init init(group);
        return Stray(stray);
      }();
      initialize(model, json(0, "copying", false), {.group = group});
    });
    for (const auto& result : results) {
      EXPECT_FALSE(result.ok);
      EXPECT_NE(result.error.find("neither a parameter nor a buffer"), std::string::npos) << result.error;
    }
  }
  // A view of a parameter is no copy, and what is gone is not trained with.
  expect_all_ok(spawn(2, [&](Group group) {
    const Stray model = [&] {
      const Init init(group);
      return Stray([](const torch::nn::Linear& layer) {
        const at::Tensor gone = layer->weight.detach().clone();
        return at::eye(kDim);
      });
    }();
    initialize(model, json(0, "copying", false), {.group = group});
  }));
}

TEST(Init, AModuleThatDecidesByRandomValuesIsRefused) {
  const auto results = spawn(2, [&](Group group) {
    const Init init(group);
    const Stray model([](const torch::nn::Linear& layer) {
      return layer->weight.abs().max().item<float>() > 1 ? at::ones({kDim, kDim}) : at::eye(kDim);
    });
  });
  EXPECT_TRUE(results[0].ok) << results[0].error;
  EXPECT_NE(results[1].error.find("looks at random initial values"), std::string::npos) << results[1].error;
}

TEST(Init, BuildsInAnotherDtype) {
  expect_all_ok(spawn(2, [](Group group) {
    const Wide model = built_once(group, DType::kBFloat16);
    EXPECT_EQ(model->first->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::empty({1}).scalar_type(), at::kFloat);  // as before
    const std::string config = json(3, "node_shared", true);
    const std::uint64_t hash = train(model, group, config);
    at::manual_seed(17 + group.rank());
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kBFloat16));
    const Wide everywhere;
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
    EXPECT_EQ(hash, train(everywhere, group, config));
  }));
  expect_said(
      [] {
        const Init open{Group()};
        train(Wide(), Group(), json(0, "copying", false));
      },
      "a zero::Init is alive on this thread");
  expect_said([] { const Init half(Group(), DType::kFloat16); }, "want fp32 or bf16");
}

}  // namespace
}  // namespace zero::testing
