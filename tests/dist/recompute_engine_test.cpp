// Promise: under an engine zero::recompute() changes memory and nothing else: the same losses, norms and weights, bit
// for bit, at every stage, store, precision and number of ranks, with dropout, with updates in backward, with
// backwards of the program's own, and when a micro-batch's first use of a parameter is in a part that runs twice.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/lm/models.h"
#include "zero/zero.h"

namespace zero::testing::recompute_engine_test {
namespace {

using at::Tensor;

constexpr std::int64_t kSteps = 3, kBatch = 4;

struct Case {
  int ranks, stage;
  const char* store = "auto";
  const char* precision = "fp32";
  bool step_in_backward = false;
  bool own_backward = false;
  std::string text() const {
    return fmt::format("{} ranks, stage {}, {}, {}{}{}", ranks, stage, store, precision,
                       step_in_backward ? ", step in backward" : "", own_backward ? ", loss.backward()" : "");
  }
};

std::string json_of(const Case& one) {
  const bool bf16 = one.precision == std::string("bf16"), fp16 = one.precision == std::string("fp16");
  return fmt::format(
      R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": {},
      "bf16": {{"enabled": {}, "check_grad_overflow": false}}, "fp16": {{"enabled": {}, "initial_scale_power": 8}},
      "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 1,
      "stage3_prefetch_bucket_size": 2000}},
      "zerotorch": {{"store": "{}", "seed": 5, "timeout_s": 30, "update": "{}"}}}})",
      one.step_in_backward ? one.ranks : kBatch, one.step_in_backward ? "0.0" : "0.5", bf16, fp16, one.stage, one.store,
      one.step_in_backward ? "in_backward" : "after_backward");
}

GPTOptions shape_of(std::int64_t recompute_every, KeptResults keep = KeptResults::kNone, double dropout = 0.2) {
  return {.layers = 3,
          .dim = 24,
          .heads = 2,
          .vocab = 31,
          .seq = 9,
          .dropout = dropout,
          .recompute_every = recompute_every,
          .recompute_keep = keep};
}

Tensor tokens_of(std::int64_t index) { return at::arange(index * 7, index * 7 + 9).remainder(31).view({1, 9}); }

struct Curve {
  std::vector<double> losses, norms;
  Tensor weights;  ///< of all parameters, [numel]
};

void expect_same(const Curve& a, const Curve& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.weights.equal(b.weights));
}

/// `whole`: the model is one part, in which the micro-batch's first use of a parameter is.
Curve train(Group group, const Case& one, std::int64_t recompute_every, bool whole = false,
            KeptResults keep = KeptResults::kNone, double dropout = 0.2) {
  at::set_num_threads(1);
  at::manual_seed(3);
  GPT model(shape_of(recompute_every, keep, dropout));
  auto engine = initialize(model, json_of(one), {.group = group});
  Curve curve;
  const auto loss_of = [&](const Tensor& tokens) {
    if (!whole) return model->loss(tokens, tokens);
    return recompute([&](const Tensor& in) { return model->loss(in, in); }, tokens);
  };
  while (engine.global_steps() < kSteps) {
    const Tensor loss = loss_of(tokens_of(engine.micro_steps() * engine.world_size() + engine.rank()));
    if (one.own_backward) {
      engine.scale(loss).backward();
    } else {
      engine.backward(loss);
    }
    engine.step();
    curve.losses.push_back(loss.item<double>());
    if (!one.step_in_backward) curve.norms.push_back(engine.grad_norm());
  }
  std::vector<Tensor> all;
  for (const auto& item : model->named_parameters()) all.push_back(engine.full_weight(item.key()).reshape({-1}));
  curve.weights = at::cat(all);
  return curve;
}

constexpr Case kCases[] = {{1, 0},
                           {1, 3, "copying"},
                           {2, 0, "auto", "bf16"},
                           {2, 1},
                           {2, 2, "auto", "fp16"},
                           {2, 3, "copying"},
                           {2, 3, "node_shared", "bf16"},
                           {2, 3, "copying", "bf16", true},
                           {1, 1, "auto", "fp32", true},
                           {2, 3, "copying", "fp32", false, true},
                           {2, 2, "auto", "fp16", false, true},
                           {4, 3, "copying", "bf16"},
                           {3, 1, "auto", "fp32", true}};

TEST(RecomputeEngine, TheSameBitsAsWithout) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.text());
    expect_all_ok(spawn(one.ranks, [&](Group group) {
      const auto said = [&](const char* what, const std::function<Curve()>& make) {
        try {
          return make();
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}: {}", what, error.what()));
        }
      };
      const Curve plain = said("plain", [&] { return train(group, one, 0); });
      const auto check = [&](const char* what, std::int64_t every, bool whole) {
        SCOPED_TRACE(what);
        expect_same(said(what, [&] { return train(group, one, every, whole); }), plain);
      };
      check("every block", 1, false);
      check("every second block", 2, false);
      check("the whole model", 0, true);
      check("blocks inside the whole model", 1, true);
    }));
  }
}

TEST(RecomputeEngine, TheSameBitsWithResultsThatAreKept) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.text());
    expect_all_ok(spawn(one.ranks, [&](Group group) {
      for (const double dropout : {0.0, 0.2}) {  // fused attention, and products
        const Curve plain = train(group, one, 0, false, KeptResults::kNone, dropout);
        for (const KeptResults keep : {KeptResults::kAttention, KeptResults::kProducts}) {
          expect_same(train(group, one, 1, false, keep, dropout), plain);
          expect_same(train(group, one, 2, true, keep, dropout), plain);
        }
      }
    }));
  }
}

/// What a program sees of random numbers and losses when it runs several backwards through a part with dropout.
std::vector<double> several_backwards(Group group, bool again, const std::string& way, int stage) {
  at::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5), torch::nn::Linear(4, 4));
  auto engine = initialize(model,
                           fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "SGD",
      "params": {{"lr": 0.1}}}}, "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
      "zerotorch": {{"timeout_s": 30, "seed": 3}}}})",
                                       stage),
                           {.group = group});
  const auto part = [&](const Tensor& in) { return again ? recompute(model, in) : model->forward(in); };
  const auto early = [&](const Tensor& in) {  // dropout before the first parameter: the program's numbers
    auto f = [=](const Tensor& x) mutable { return model->forward(at::dropout(x, 0.5, true)); };
    return again ? recompute(f, in) : f(in);
  };
  std::vector<double> seen;
  for (int i = 0; i < 4; ++i) {
    const Tensor x = at::ones({2, 4}).mul(i + 1 + group.rank());
    if (way == "retain") {
      const Tensor loss = part(x).sum();
      engine.backward(loss, {.retain_graph = true});
      engine.backward(loss);
      seen.push_back(loss.item<double>());
    } else if (way == "two forwards") {
      const Tensor one = part(x).sum(), two = part(x * 2).pow(2).sum();
      engine.backward(one);
      seen.push_back(at::rand({1}).item<double>());
      engine.backward(two);
      seen.push_back(two.item<double>());
    } else if (way == "early") {
      const Tensor loss = early(x).sum();
      engine.backward(loss);
      seen.push_back(loss.item<double>());
    } else {
      const Tensor one = early(x).sum(), two = early(x).sum();
      engine.backward(one);
      engine.backward(two);
      seen.push_back(one.item<double>() + two.item<double>());
    }
    engine.step();
    seen.push_back(engine.grad_norm());
    seen.push_back(at::rand({1}).item<double>());
  }
  return seen;
}

TEST(RecomputeEngine, RandomNumbersOfSeveralBackwards) {
  for (const int stage : {1, 3}) {
    for (const char* way : {"retain", "two forwards", "early", "early, two losses"}) {
      SCOPED_TRACE(fmt::format("stage {}, {}", stage, way));
      expect_all_ok(spawn(2, [&](Group group) {
        at::set_num_threads(1);
        EXPECT_EQ(several_backwards(group, true, way, stage), several_backwards(group, false, way, stage));
      }));
    }
  }
}

TEST(RecomputeEngine, LiveParametersStayBounded) {
  expect_all_ok(spawn(2, [](Group group) {
    const auto live = [&](std::int64_t recompute_every) {
      GPT model(shape_of(recompute_every));
      auto engine = initialize(model, json_of({2, 3, "copying"}), {.group = group});
      for (int i = 0; i < 2; ++i) {
        engine.backward(model->loss(tokens_of(i), tokens_of(i)));
        engine.step();
      }
      for (const auto& kind : engine.memory_report().kinds) {
        EXPECT_GE(kind.peak_nbytes, kind.current_nbytes);
      }
      return engine.memory_report().kinds[static_cast<int>(MemoryKind::kGather)].peak_nbytes;
    };
    const auto plain = live(0);
    EXPECT_LE(live(1), plain);
  }));
}

TEST(RecomputeEngine, AnErrorOfTheSecondRunLeavesTheWindow) {
  expect_all_ok(spawn(2, [](Group group) {
    at::set_num_threads(1);
    at::manual_seed(3);
    GPT model(shape_of(0));
    auto engine = initialize(model, json_of({2, 3, "copying"}), {.group = group});
    double factor = 1;
    const auto loss_of = [&](const Tensor& tokens) {
      return recompute([&](const Tensor& in) { return model->loss(in, in) * factor; }, tokens);
    };
    const Tensor loss = loss_of(tokens_of(0));
    factor = 2;
    expect_said([&] { engine.backward(loss); }, "gave other values for its output 0");
    factor = 1;
    engine.zero_grad();
    for (int i = 0; i < 2; ++i) {
      engine.backward(loss_of(tokens_of(i * 2 + engine.rank())));
      engine.step();
    }
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_GT(engine.grad_norm(), 0);
  }));
}

}  // namespace
}  // namespace zero::testing::recompute_engine_test
