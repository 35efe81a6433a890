// Promise: a model is names and tensors. Whatever holds these trains, saves and loads as a torch::nn::Module does, bit
// for bit; and the plan takes any of them.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::model_view_test {
namespace {

using at::Tensor;

constexpr const char* kJson = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "zerotorch": {"unit_numel": 2000}})";

/// No module: tensors in a struct, one of them under two names.
struct Plain {
  Tensor table, up, up_bias, down, down_bias, seen;

  Plain() {
    at::manual_seed(2);
    table = trained(at::randn({31, 40}));
    up = trained(at::randn({64, 40}).mul_(0.1));
    up_bias = trained(at::zeros({64}));
    down = trained(at::randn({40, 64}).mul_(0.1));
    down_bias = trained(at::zeros({40}));
    seen = at::zeros({1});
  }
  Tensor loss(const Tensor& tokens) {
    seen.add_(1);
    const Tensor x = at::embedding(table, tokens);
    const Tensor y = x + at::linear(at::gelu(at::linear(x, up, up_bias)), down, down_bias);
    return at::cross_entropy_loss(at::matmul(y, table.t()), tokens.roll(1));
  }
  ModelView view() const {
    ModelView view;
    view.parameters = {{"table", table},
                       {"block.up.weight", up},
                       {"block.up.bias", up_bias},
                       {"block.down.weight", down},
                       {"block.down.bias", down_bias},
                       {"head.weight", table}};
    view.buffers = {{"seen", seen}};
    return view;
  }

 private:
  static Tensor trained(const Tensor& values) { return values.clone().requires_grad_(); }
};

/// The same as a module.
struct ModuleImpl : torch::nn::Module {
  struct Part : torch::nn::Module {};
  explicit ModuleImpl(const Plain& plain) : plain(plain) {
    register_parameter("table", plain.table);
    auto block = register_module("block", std::make_shared<Part>());
    auto up = block->register_module("up", std::make_shared<Part>());
    up->register_parameter("weight", plain.up);
    up->register_parameter("bias", plain.up_bias);
    auto down = block->register_module("down", std::make_shared<Part>());
    down->register_parameter("weight", plain.down);
    down->register_parameter("bias", plain.down_bias);
    register_module("head", std::make_shared<Part>())->register_parameter("weight", plain.table);
    register_buffer("seen", plain.seen);
  }
  Plain plain;
};
TORCH_MODULE(Module);

Tensor tokens_of(std::int64_t index) { return (at::arange(9) * (index + 3)).remainder(31); }

/// Losses and norms.
std::vector<double> train(Engine& engine, Plain& plain, int steps) {
  std::vector<double> seen;
  for (int i = 0; i < steps; ++i) {
    const Tensor loss = plain.loss(tokens_of(i * engine.world_size() + engine.rank()));
    engine.backward(loss);
    engine.step();
    seen.insert(seen.end(), {loss.item<double>(), engine.grad_norm()});
  }
  return seen;
}

TEST(ModelView, TrainsSavesAndLoadsAsTheModuleDoes) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      at::set_num_threads(1);
      Plain one, two;
      Module module(two);
      std::vector<double> want;
      {
        auto engine = initialize(module, kJson, {.group = group});
        want = train(engine, two, 3);
        engine.save_checkpoint(folder.file("module"), "a");
        const auto more = train(engine, two, 2);
        want.insert(want.end(), more.begin(), more.end());
        EXPECT_EQ(&engine.module(), module.ptr().get());
      }
      auto engine = initialize(one.view(), kJson, {.group = group});
      auto got = train(engine, one, 3);
      EXPECT_EQ(engine.full_weight("head.weight").sizes(), one.table.sizes()) << "under another name";
      engine.load_checkpoint(folder.file("module"));
      const auto more = train(engine, one, 2);
      got.insert(got.end(), more.begin(), more.end());
      EXPECT_EQ(got, want);
      expect_said([&] { engine.module(); }, "zero::ModelView");
    }));
  }
}

TEST(ModelView, WhatIsWrongWithItIsSaid) {
  at::set_num_threads(1);
  Plain plain;
  auto view = plain.view();
  view.parameters.push_back({"table", plain.up});
  expect_said([&] { initialize(view, kJson); }, "two parameters or buffers of the model are called 'table'");
  view = plain.view();
  view.parameters.push_back({"computed", plain.up * 2});
  expect_said([&] { initialize(view, kJson); }, "parameter 'computed' is not a leaf");
  // Added later: noticed where the view says how to look.
  view = plain.view();
  std::vector<Tensor> now;
  for (const auto& item : view.parameters) now.push_back(item.tensor);
  view.walk = [&now](const ModelView::Visit& visit) {
    return std::all_of(now.begin(), now.end(), [&](const Tensor& tensor) { return visit(tensor); });
  };
  view.now = [&] {
    auto changed = plain.view();
    changed.parameters.push_back({"late", now.back()});
    return changed;
  };
  auto engine = initialize(view, kJson);
  train(engine, plain, 1);
  now.push_back(at::ones({3}).requires_grad_());
  expect_said([&] { train(engine, plain, 1); }, "'late' was added");
  expect_said([] { ModelView::of(nullptr); }, "the module is empty");
  Plain other;
  view = other.view();
  view.walk = [&other](const ModelView::Visit& visit) { return visit(other.table) && visit(other.up); };
  expect_said([&] { initialize(view, kJson); }, "ModelView::walk does not visit parameter 'block.up.bias'");
  view = other.view();
  view.parameters[1].name = "\xff";
  expect_said([&] { initialize(view, kJson); }, "is not UTF-8");
}

TEST(ModelView, ThePlanTakesAnyModel) {
  const Plain plain;
  const auto shape = plan::shape_of(plain.view(), "a struct");
  EXPECT_EQ(shape.name, "a struct");
  ASSERT_EQ(shape.parameters.size(), 5u) << "the tied one once";
  EXPECT_EQ(shape.parameters[1].name, "block.up.weight");
  EXPECT_EQ(shape.numel(), 31 * 40 + 64 * 40 + 64 + 40 * 64 + 40);
  const auto of_module = plan::shape_of(ModelView::of(Module(plain).ptr()));
  EXPECT_EQ(of_module.numel(), shape.numel());
  auto config = Config::from_text(kJson);
  const auto planned = plan::plan_memory(shape, config, {.ranks = 2});
  // What the plan says is what the engine holds.
  expect_all_ok(spawn(2, [&](Group group) {
    at::set_num_threads(1);
    Plain mine;
    auto engine = initialize(mine.view(), config, {.group = group});
    train(engine, mine, 3);
    if (group.rank() != 0) return;
    const auto report = engine.memory_report();
    for (const MemoryKind kind : {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer})
      EXPECT_EQ(report[kind].current_nbytes, planned.rank[kind].current_nbytes) << memory_kind_name(kind);
  }));
  // Also a model without memory.
  ModelView large;
  large.parameters = {{"weight", at::empty({1 << 20, 1 << 14}, at::TensorOptions().device(c10::kMeta))}};
  EXPECT_EQ(plan::shape_of(large).numel(), std::int64_t{1} << 34);
}

}  // namespace
}  // namespace zero::testing::model_view_test
