// zerotorch.update "in_backward": no gradients are kept, and nothing else changes.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <bit>

#include "support/odd_model.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::step_in_backward_test {
namespace {

struct Setting {
  int stage = 3;
  const char* store = "auto";
  bool bf16 = false;
  std::int64_t bucket = 500'000'000;
  bool overlap = true;
};

std::string json(const Setting& run, bool in_backward) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 0,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
    "bf16": {{"enabled": {}, "check_grad_overflow": false}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": {},
                           "overlap_comm": {}}},
    "zerotorch": {{"store": "{}", "unit_numel": 2000, "update": "{}"}}}})",
                     run.bf16, run.stage, run.bucket, run.overlap, run.store,
                     in_backward ? "in_backward" : "after_backward");
}

OddModel odd_model() {
  at::set_num_threads(1);
  at::manual_seed(11);
  return OddModel();
}

/// Losses, norms, weights and states of a few steps, and the bytes of gradients at the end.
struct Outcome {
  std::vector<std::uint64_t> bits;
  std::int64_t gradient_nbytes = 0;
};

Outcome train(Group group, const std::string& config) {
  auto model = odd_model();
  auto engine = initialize(model, config, {.group = group});
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor loss = model->loss(micro_batch_tokens(step * group.size() + group.rank()));
    engine.set_learning_rate(0.01 / (step + 1));  // an update within backward, too, goes by the rates of now
    step % 2 == 0 ? engine.backward(loss) : loss.backward();
    engine.step();
    outcome.bits.push_back(std::bit_cast<std::uint32_t>(loss.item<float>()));
    outcome.bits.push_back(std::bit_cast<std::uint64_t>(engine.grad_norm()));
  }
  const auto add = [&](const at::Tensor& values) {
    const auto* data = values.const_data_ptr<float>();
    for (std::int64_t i = 0; i < values.numel(); ++i) outcome.bits.push_back(std::bit_cast<std::uint32_t>(data[i]));
  };
  for (const auto& item : model->named_parameters()) {
    add(engine.full_weight(item.key()));
    if (!item.value().requires_grad()) continue;
    add(engine.full_optimizer_state(item.key(), "exp_avg"));
    add(engine.full_optimizer_state(item.key(), "exp_avg_sq"));
  }
  outcome.gradient_nbytes = engine.memory_report()[MemoryKind::kGradients].peak_nbytes;
  return outcome;
}

TEST(StepInBackward, GivesTheSameBitsAndKeepsNoGradients) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    expect_all_ok(spawn(ranks, [](Group group) {
      for (const Setting& run :
           {Setting{1}, Setting{2, "auto", true, 3000}, Setting{3, "copying"}, Setting{3, "copying", true, 3000, false},
            Setting{3, "node_shared"}, Setting{3, "node_shared", true}}) {
        const Outcome kept = train(group, json(run, false)), consumed = train(group, json(run, true));
        EXPECT_EQ(kept.bits, consumed.bits) << "stage " << run.stage << ", " << run.store << ", bf16 " << run.bf16;
        EXPECT_LT(consumed.gradient_nbytes, kept.gradient_nbytes);
      }
    }));
  }
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// Of one bucket: the frozen layer's weight is needed for what is before it, after the gradients of the layer behind it
/// were used up.
TEST(StepInBackward, AFrozenLayerBeforeOthersIsNeededToTheEnd) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      at::set_num_threads(1);
      at::manual_seed(3);
      torch::nn::Linear frozen(6, 6), last(6, 6);
      torch::nn::Sequential model(frozen, last);
      auto engine = initialize(model, json({.stage = 2, .store = "copying"}, true), {.group = group});
      for (int step = 0; step < 3; ++step) {
        for (auto& parameter : frozen->parameters()) parameter.requires_grad_(step == 0);
        const at::Tensor before = engine.full_weight("0.weight"), input = at::ones({2, 6}).requires_grad_();
        engine.backward(last(frozen(input)).pow(2).mean());
        EXPECT_GT(input.grad().abs().max().item<float>(), 0);
        engine.step();
        EXPECT_EQ(at::equal(engine.full_weight("0.weight"), before), step > 0) << step;
      }
    }));
  }
}

TEST(StepInBackward, WhatCannotWorkIsRefused) {
  const auto refused = [](const char* text, const char* want) {
    const std::string error = error_of([&] { Config::from_text(text); });
    EXPECT_NE(error.find(want), std::string::npos) << error;
  };
  refused(R"({"train_batch_size": 4, "gradient_clipping": 0, "zerotorch": {"update": "in_backward"}})",
          "set zero_optimization.stage to 1, 2 or 3");
  refused(R"({"train_batch_size": 4, "zero_optimization": {"stage": 3}, "zerotorch": {"update": "in_backward"}})",
          "set gradient_clipping to 0");
  refused(R"({"train_batch_size": 4, "gradient_clipping": 0, "bf16": {"enabled": true},
              "zero_optimization": {"stage": 3}, "zerotorch": {"update": "in_backward"}})",
          "set bf16.check_grad_overflow to false");
  expect_all_ok(spawn(2, [](Group group) {
    auto model = odd_model();
    const std::string accumulating = error_of([&] {
      initialize(model,
                 R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
                     "zero_optimization": {"stage": 3}, "zerotorch": {"update": "in_backward"}})",
                 {.group = group});
    });
    EXPECT_NE(accumulating.find("set gradient_accumulation_steps to 1"), std::string::npos) << accumulating;
  }));
  expect_all_ok(spawn(2, [](Group group) {
    auto model = odd_model();
    auto engine = initialize(model, json({}, true), {.group = group});
    const std::string twice = error_of([&] {
      engine.backward(model->loss(micro_batch_tokens(0)));
      engine.backward(model->loss(micro_batch_tokens(1)));
    });
    EXPECT_NE(twice.find("a second backward before step()"), std::string::npos) << twice;
    const std::string after = error_of([&] { engine.step(); });
    EXPECT_NE(after.find("failed half-way"), std::string::npos) << after;
  }));
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int ranks : {1, 2}) {
      expect_all_ok(spawn(ranks, [stage](Group group) {
        torch::nn::Linear model(9, 9);  // one bucket, which the second backward cannot open
        auto engine = initialize(model,
                                 fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
                "optimizer": {{"type": "SGD", "params": {{"lr": 0.1}}}}, "zero_optimization": {{"stage": {}}},
                "zerotorch": {{"update": "in_backward"}}}})",
                                             stage),
                                 {.group = group});
        engine.backward(engine(at::ones({2, 9})).sum());
        const std::string twice = error_of([&] { engine.backward(engine(at::ones({2, 9})).sum()); });
        EXPECT_NE(twice.find("a second backward before step()"), std::string::npos) << twice;
      }));
    }
  }
}

}  // namespace
}  // namespace zero::testing::step_in_backward_test
