// Engines that nobody trains: nothing but the parameters, the same outputs at every stage and store, weights in and
// out, and an error for whatever would train.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/plan.h"

namespace zero::testing::evaluation_only_test {
namespace {

std::string json_of(int stage, bool node_shared, bool bf16, const std::string& more = "") {
  return fmt::format(R"({{"optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}}, "bf16": {{"enabled": {}}}, {}
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"seed": 5, "store": "{}"}}}})",
                     bf16, more, stage, node_shared ? "node_shared" : "copying");
}

LayersEngine evaluation_engine(Group group, const std::string& json, std::uint64_t seed = 7) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return initialize(Layers(Shape()), json, {.group = std::move(group), .evaluation_only = true});
}

at::Tensor output_of(LayersEngine& engine) {
  at::Tensor x = at::sin(at::arange(12, at::kFloat).view({2, 6}));
  return engine(x.to(engine.module().parameters().front().scalar_type())).to(at::kFloat);
}

TEST(EvaluationOnly, HoldsTheParametersAndNothingElseAndGivesTheWeightsOfACheckpoint) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      for (const bool bf16 : {false, true}) {
        auto trained = layers_engine(group, 3, {}, layers_json(bf16, 2));
        train(trained, 3);  // also from inside a window
        const std::string tag = fmt::format("{}_{}", ranks, bf16);
        trained.save_checkpoint(folder.path(), tag);
        const at::Tensor want = output_of(trained).detach().clone();
        for (int stage = 0; stage <= 3; ++stage) {
          for (const bool node_shared : {false, true}) {
            auto engine = evaluation_engine(group, json_of(stage, node_shared, bf16));
            for (const MemoryKind kind :
                 {MemoryKind::kMaster, MemoryKind::kOptimizer, MemoryKind::kGradients, MemoryKind::kBuckets}) {
              EXPECT_EQ(engine.memory_report()[kind].current_nbytes, 0) << static_cast<int>(kind);
              EXPECT_EQ(engine.memory_report()[kind].peak_nbytes, 0) << static_cast<int>(kind);
            }
            const LoadReport report = engine.load_checkpoint(folder.path(), tag);
            EXPECT_EQ(report.notices, Names());
            const at::Tensor output = output_of(engine);
            EXPECT_FALSE(output.requires_grad());
            EXPECT_TRUE(at::equal(output, want)) << stage << node_shared << bf16;
            const at::Tensor weight = trained.full_weight("first.weight");
            EXPECT_TRUE(
                at::equal(engine.full_weight("first.weight"), bf16 ? weight.to(at::kBFloat16).to(at::kFloat) : weight));
            EXPECT_EQ(engine.memory_report()[MemoryKind::kOptimizer].peak_nbytes, 0);
          }
        }
      }
    }));
  }
}

TEST(EvaluationOnly, WeightsGoInAndOut) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = evaluation_engine(group, json_of(3, false, false));
    const at::Tensor want = output_of(engine).clone();
    engine.save_full_weights(folder.file("weights"));
    engine.save_checkpoint(folder.path(), "a");
    auto other = evaluation_engine(group, json_of(1, true, false), 8);
    EXPECT_FALSE(at::equal(output_of(other), want));
    other.load_full_weights(folder.file("weights"));
    EXPECT_TRUE(at::equal(output_of(other), want));
    other.set_full_weight("second.bias", at::ones({4}));
    EXPECT_TRUE(at::equal(other.full_weight("second.bias"), at::ones({4})));
    // A checkpoint of it is weights to train from.
    auto trained = layers_engine(group, 3);
    trained.load_checkpoint(folder.path(), "a");
    EXPECT_TRUE(at::equal(output_of(trained).detach(), want));
    train(trained, 2);
  }));
}

TEST(EvaluationOnly, WhateverWouldTrainIsAnErrorThatSaysSo) {
  expect_all_ok(spawn(2, [&](Group group) {
    constexpr const char* kSaid = "InitializeOptions::evaluation_only";
    for (const int stage : {0, 2, 3}) {
      auto engine = evaluation_engine(group, json_of(stage, false, false, R"("gradient_accumulation_steps": 2,)"));
      for (const auto& parameter : engine.module().parameters()) EXPECT_FALSE(parameter.requires_grad());
      const at::Tensor loss = output_of(engine).sum();
      expect_said([&] { engine.backward(loss); }, kSaid);
      expect_said([&] { engine.step(); }, kSaid);
      expect_said([&] { engine.scale(loss); }, kSaid);
      expect_said([&] { engine.full_gradient("first.weight"); }, "no gradient");
      expect_said([&] { engine.clip_grad_norm(1); }, kSaid);
      expect_said([&] { engine.full_optimizer_state("first.weight", "exp_avg"); }, kSaid);
      output_of(engine);  // and it goes on
      engine.module().parameters()[0].requires_grad_(true);
      expect_said([&] { engine.save_checkpoint("nowhere"); }, kSaid);
    }
    // Trained after it was evaluated: an engine leaves parameters as they were.
    for (const int stage : {0, 3}) {
      Layers both{Shape()};
      both->parameters()[1].requires_grad_(false);
      { const auto scout = initialize(both, json_of(stage, false, false), {.group = group, .evaluation_only = true}); }
      for (std::size_t i = 0; i < both->parameters().size(); ++i)
        EXPECT_EQ(both->parameters()[i].requires_grad(), i != 1);
    }
    Layers model{Shape()};
    const auto initialize_with = [&](InitializeOptions options) {
      options.group = group;
      options.evaluation_only = true;
      initialize(model, json_of(2, false, false), std::move(options));
    };
    expect_said([&] { initialize_with({.parameter_groups = {{.names = {"first.*"}}}}); }, "remove one or the other");
    expect_said([&] { initialize_with({.schedule = [](std::int64_t, double lr) { return lr; }}); }, "remove one");
  }));
  const auto results = spawn(2, [&](Group group) {
    expect_said(
        [&] { initialize(Layers(Shape()), layers_json(), {.group = group, .evaluation_only = group.rank() == 1}); },
        "for evaluation only");
  });
  expect_all_ok(results);
}

TEST(EvaluationOnly, ThePlanOfAFrozenModelAgrees) {
  expect_all_ok(spawn(2, [&](Group group) {
    for (const bool node_shared : {false, true}) {
      auto engine = evaluation_engine(group, json_of(3, node_shared, true));
      Config config = engine.config();
      plan::ModelShape shape = plan::shape_of(ModelView::of(engine.typed_module().ptr()));
      for (const auto& parameter : shape.parameters) EXPECT_FALSE(parameter.trainable);
      const auto plan = plan::plan_memory(shape, config, {.ranks = 2});
      for (const MemoryKind kind : {MemoryKind::kMaster, MemoryKind::kOptimizer, MemoryKind::kGradients})
        EXPECT_EQ(plan.rank[kind].peak_nbytes, 0);
      EXPECT_EQ(plan.rank[MemoryKind::kParameters].current_nbytes,
                engine.memory_report()[MemoryKind::kParameters].current_nbytes);
    }
  }));
}

}  // namespace
}  // namespace zero::testing::evaluation_only_test
