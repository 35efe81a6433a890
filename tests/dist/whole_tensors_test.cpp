// Lamb, Muon and Adafactor, whose steps need whole tensors: DeepSpeed's and PyTorch's numbers after 20 steps, and the
// same bits wherever the tensors are cut. Their checkpoints, groups and refusals.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/bits.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::whole_tensors_test {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// Parameters without a forward of their own: the losses below are sums of products with what their gradients
/// are to be.
struct ParametersImpl : torch::nn::Module {
  explicit ParametersImpl(const Shapes& shapes) {
    for (std::size_t p = 0; p < shapes.size(); ++p) {
      const at::Tensor index = at::arange(c10::multiply_integers(shapes[p].second), at::kDouble);
      const at::Tensor value = (index * 0.71 + static_cast<double>(p)).sin() * 0.5;
      std::string name = shapes[p].first;
      std::ranges::replace(name, '.', '_');
      register_parameter(name, value.to(at::kFloat).view(shapes[p].second));
    }
  }
  at::Tensor forward(int step) {
    at::Tensor loss = at::zeros({});
    int p = 0;
    for (const auto& parameter : parameters()) {
      const at::Tensor index = at::arange(parameter.numel(), at::kDouble);
      const at::Tensor gradient = (index * 0.37 + 1.3 * p + 0.9 * step).sin() + (index * (0.11 * step)).cos() * 0.5;
      loss = loss + (parameter * gradient.to(parameter.scalar_type()).view(parameter.sizes())).sum();
      ++p;
    }
    return loss;
  }
};
TORCH_MODULE(Parameters);

/// `batch`: micro-batches of all ranks in a step; 0: one of each.
std::string json_of(const std::string& optimizer, int stage, const std::string& rest = "", int batch = 0) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, {}, "gradient_clipping": 0,
    "optimizer": {}, "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}{}}})",
      batch > 0 ? fmt::format(R"("train_batch_size": {})", batch) : R"("gradient_accumulation_steps": 1)", optimizer,
      stage, rest);
}

const nlohmann::json& golden() {
  static const auto all = [] {
    std::ifstream in(std::string(ZERO_SOURCE_DIR) + "/tests/data/whole_tensor_golden.json");
    return nlohmann::json::parse(in);
  }();
  return all;
}

/// As the script made them, in its order.
Shapes golden_shapes() {
  Shapes shapes;
  for (const char* name : {"first.weight", "first.bias", "stack.weight", "tall.weight", "square.weight", "embed.weight",
                           "lm_head.weight", "gain"})
    shapes.emplace_back(name, golden()["shapes"][name].get<std::vector<std::int64_t>>());
  return shapes;
}

std::string golden_optimizer(const std::string& curve) {
  const std::string type = curve.substr(0, curve.find(' '));
  nlohmann::json params = golden()[type == "Muon" ? "muon" : type == "Lamb" ? "lamb" : "adafactor"];
  if (curve.starts_with("Muon")) params["ns_method"] = curve == "Muon gram" ? "gram" : "standard";
  return nlohmann::json{{"type", type}, {"params", params}}.dump();
}

TEST(WholeTensors, HaveDeepSpeedsNumbers) {
  for (const int ranks : {1, 3}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      at::set_num_threads(1);
      for (const auto& [curve, weights] : golden()["weights"].items()) {
        for (const int stage : {0, 3}) {
          auto engine =
              initialize(Parameters(golden_shapes()), json_of(golden_optimizer(curve), stage), {.group = group});
          for (int step = 1; step <= golden()["steps"]; ++step) {
            engine.backward(engine(step));
            engine.step();
          }
          double worst = 0;
          for (const auto& [name, shape] : golden_shapes()) {
            std::string ours = name;
            std::ranges::replace(ours, '.', '_');
            const at::Tensor got = engine.full_weight(ours).flatten();
            const auto values = weights[name].get<std::vector<float>>();
            const at::Tensor want = at::tensor(values);
            worst = std::max(worst, (got - want).abs().max().item<double>());
          }
          // fp32 sums in another order; Muon's iterations enlarge it where singular values are small.
          if (group.rank() == 0) std::printf("%s, stage %d: apart by %.2g at most\n", curve.c_str(), stage, worst);
          EXPECT_LT(worst, curve == "Lamb" ? 2e-6 : 2e-5) << curve << ", stage " << stage;
        }
      }
    }));
  }
}

/// Tensors that shards of one unit cut in the middle, and some that they do not.
const Shapes kShapes = {{"first.weight", {70, 24}},    {"first.bias", {70}},       {"filter.weight", {8, 5, 3, 3}},
                        {"second.weight", {50, 70}},   {"small.weight", {3, 4}},   {"embed.weight", {37, 24}},
                        {"stack.weight", {3, 20, 30}}, {"third.weight", {40, 40}}, {"norm.weight", {31}}};

std::uint64_t hash_of(Engine& engine) {
  std::uint64_t hash = kNoBits;
  const auto add = [&](const at::Tensor& tensor) { hash = hash_with(hash, tensor); };
  for (const auto& item : engine.module().named_parameters()) {
    add(engine.full_weight(item.key()));
    for (const char* state : {"exp_avg", "exp_avg_sq", "momentum_buffer", "row_var", "col_var", "variance"}) {
      try {
        add(engine.full_optimizer_state(item.key(), state));
      } catch (const ModelError& error) {  // not all parameters have all states
        EXPECT_NE(std::string_view(error.what()).find("has no state"), std::string_view::npos) << error.what();
      }
    }
  }
  return hash;
}

void train_steps(ModuleEngine<Parameters>& engine, int steps) {
  for (int i = 0; i < steps; ++i) {
    const int step = static_cast<int>(engine.global_steps()) + 1;
    do {
      engine.backward(engine(step));
      engine.step();
    } while (engine.global_steps() < step);
  }
}

TEST(WholeTensors, TrainToTheSameBitsWhereverTheyAreCut) {
  const std::vector<std::string> optimizers = {
      R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1, "max_coeff": 0.4}})",
      R"({"type": "Muon", "params": {"muon_lr": 0.01, "adam_lr": 0.004, "weight_decay": 0.1}})",
      R"({"type": "Muon", "params": {"ns_method": "standard"}})",
      R"({"type": "Adafactor", "params": {"weight_decay": 0.1}})"};
  const TemporaryFolder folder;
  for (const int ranks : {2, 1, 3, 4}) {
    expect_all_ok(spawn(
        ranks,
        [&](Group group) {
          at::set_num_threads(1);
          std::ofstream out;
          if (group.rank() == 0) out.open(folder.file("hashes"), std::ios::app);
          for (std::size_t o = 0; o < optimizers.size(); ++o) {
            for (int stage = 0; stage <= 3; ++stage) {
              for (const char* store : {"copying", "node_shared"}) {
                for (const char* precision : {"", R"(, "bf16": {"enabled": true})"}) {
                  // One unit, which cuts tensors over one, two and three ranks.
                  const std::string json =
                      json_of(optimizers[o], stage,
                              fmt::format(R"({}, "zerotorch": {{"seed": 5, "store": "{}", "unit_numel": 100000}})",
                                          precision, store),
                              12);
                  const std::string curve = fmt::format("{} {}", o, precision);
                  auto engine = initialize(Parameters(kShapes), json, {.group = group});
                  train_steps(engine, 2);
                  const std::string saved = fmt::format("{}_{}", o, *precision ? "bf16" : "fp32");
                  if (group.size() == 2 && stage == 3) engine.save_checkpoint(folder.path(), saved);
                  train_steps(engine, 2);
                  const std::uint64_t hash = hash_of(engine);
                  if (group.rank() == 0) out << curve << '\t' << hash << '\n';
                  if (group.size() == 2 || stage == 2) continue;
                  auto resumed = initialize(Parameters(kShapes), json, {.group = group});
                  resumed.load_checkpoint(folder.path(), saved);
                  train_steps(resumed, 2);
                  EXPECT_EQ(hash_of(resumed), hash) << "resumed, " << json;
                }
              }
            }
          }
        },
        {.timeout = std::chrono::minutes(3)}));
  }
  std::map<std::string, std::string> of_curve;
  int lines = 0;
  std::ifstream in(folder.file("hashes"));
  for (std::string line; std::getline(in, line); ++lines) {
    const auto tab = line.find('\t');
    const auto first = of_curve.try_emplace(line.substr(0, tab), line.substr(tab + 1)).first;
    EXPECT_EQ(first->second, line.substr(tab + 1)) << line.substr(0, tab);
  }
  EXPECT_EQ(lines, 4 * 4 * 2 * 2 * static_cast<int>(optimizers.size()));
  EXPECT_EQ(of_curve.size(), 2 * optimizers.size());
}

TEST(WholeTensors, MuonKeepsWhatEachParameterNeedsAndTakesGroups) {
  expect_all_ok(spawn(2, [](Group group) {
    const std::string json = json_of(R"({"type": "Muon", "params": {"lr": 0.01}})", 2);
    InitializeOptions options{.group = group};
    options.parameter_groups = {{.names = {"third_weight", "embed_weight"}, .lr = 0.5, .use_muon = false},
                                {.names = {"norm*"}, .betas = std::pair(0.5, 0.6)}};
    auto engine = initialize(Parameters(kShapes), json, options);
    EXPECT_EQ(engine.learning_rate(0), 0.5);  // 2g and 2g + 1
    EXPECT_EQ(engine.learning_rate(1), 0.5);
    EXPECT_EQ(engine.learning_rate(4), 0.01);
    train_steps(engine, 1);
    engine.full_optimizer_state("first_weight", "momentum_buffer");
    expect_said([&] { engine.full_optimizer_state("first_weight", "exp_avg"); },
                "has no state 'exp_avg' of 'first_weight'");
    engine.full_optimizer_state("third_weight", "exp_avg");
    expect_said([&] { engine.full_optimizer_state("first_bias", "momentum_buffer"); },
                "it has 'exp_avg', 'exp_avg_sq'");
    // 4 bytes an element for matrices, 8 for the rest; shards are made of blocks.
    const double states = static_cast<double>(engine.memory_report()[MemoryKind::kOptimizer].current_nbytes);
    double want = 0;
    for (const auto& [name, shape] : kShapes) {
      const bool by_muon = shape.size() > 1 && name != "third.weight" && name != "embed.weight";
      want += (by_muon ? 4.0 : 8.0) * static_cast<double>(c10::multiply_integers(shape)) / 2;
    }
    EXPECT_NEAR(states, want, 8 * 1024 * 3);
    const std::string other = json_of(R"({"type": "AdamW"})", 2);
    expect_said(
        [&] {
          InitializeOptions of_adam{.group = group};
          of_adam.parameter_groups = {{.names = {"*"}, .use_muon = true}};
          initialize(Parameters(kShapes), other, of_adam);
        },
        "only type Muon reads it");
    expect_said(
        [&] {
          InitializeOptions of_bias{.group = group};
          of_bias.parameter_groups = {{.names = {"first_bias"}, .use_muon = true}};
          initialize(Parameters(kShapes), json, of_bias);
        },
        "'first_bias' has 1 dimensions");
  }));
}

TEST(WholeTensors, WhatCannotBeIsAnErrorThatSaysWhatToDo) {
  for (const char* type : {"Lamb", "Muon", "Adafactor"}) {
    const std::string optimizer = fmt::format(R"({{"type": "{}"}})", type);
    expect_said([&] { Config::from_text(json_of(optimizer, 2, R"(, "zerotorch": {"update": "in_backward"})"), "-"); },
                fmt::format("optimizer.type {}: it keeps no gradients", type));
    expect_said(
        [&] {
          Config::from_text(
              json_of(optimizer, 2, R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})"), "-");
        },
        "set data_types.grad_accum_dtype to \"fp32\"");
  }
  Config::from_text(json_of(R"({"type": "Lamb"})", 2, R"(, "data_types": {"grad_accum_dtype": "fp32"},
    "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})"),
                    "-");
  expect_said([] { Config::from_text(json_of(R"({"type": "Lamb", "params": {"muon_lr": 1}})", 2), "-"); },
              "not a parameter of Lamb");
}

TEST(WholeTensors, MuonGoesOnWhereAllParametersAreOfOneKindOrOneIsFrozen) {
  const Shapes matrices = {{"a.weight", {20, 20}}, {"b.weight", {20, 11}}}, vectors = {{"a", {20}}, {"embed", {7, 3}}};
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string json = json_of(R"({"type": "Muon"})", 2);
    int saves = 0;
    for (const Shapes& shapes : {matrices, vectors, kShapes}) {
      const TemporaryFolder folder;
      std::string path = folder.path();
      path.resize(4096);
      group.broadcast(path.data(), static_cast<std::int64_t>(path.size()), DType::kByte, 0).wait();
      path = path.c_str();
      Parameters frozen(shapes);
      if (++saves == 3) {
        for (auto& item : frozen->named_parameters()) item.value().requires_grad_(item.value().dim() > 1);
      }
      auto engine = initialize(frozen, json, {.group = group});
      train_steps(engine, 2);
      engine.save_checkpoint(path, "two");
      auto resumed = initialize(Parameters(shapes), json, {.group = group});
      resumed.load_checkpoint(path, "two");
      train_steps(resumed, 1);
      if (saves < 3) {
        train_steps(engine, 1);
        EXPECT_EQ(hash_of(resumed), hash_of(engine));
      }
      group.barrier().wait();
    }
  }));
}

TEST(WholeTensors, ACheckpointOfAnotherOptimizerIsAnErrorThoughItsStatesHaveTheSameNames) {
  expect_all_ok(spawn(1, [](Group group) {
    const TemporaryFolder folder;
    auto engine = initialize(Parameters(kShapes), json_of(R"({"type": "AdamW"})", 1), {.group = group});
    train_steps(engine, 1);
    engine.save_checkpoint(folder.path(), "adam");
    auto lamb = initialize(Parameters(kShapes), json_of(R"({"type": "Lamb"})", 1), {.group = group});
    expect_said([&] { lamb.load_checkpoint(folder.path(), "adam"); }, "is of another optimizer: Adam with exp_avg");
    auto narrow = initialize(Parameters(kShapes), json_of(R"({"type": "AdamW8bit"})", 1), {.group = group});
    narrow.load_checkpoint(folder.path(), "adam");
    train_steps(narrow, 1);
  }));
}

/// An unfinished or poisoned step leaves no trace: what the first pass has written into gradients is gone.
TEST(WholeTensors, StepsAfterASkippedOneAreAsIfItHadNotBeen) {
  expect_all_ok(spawn(2, [](Group group) {
    at::set_num_threads(1);
    for (const char* type : {"Lamb", "Muon", "Adafactor"}) {
      const std::string json = json_of(fmt::format(R"({{"type": "{}"}})", type), 2, R"(, "bf16": {"enabled": true})");
      auto poisoned = initialize(Parameters(kShapes), json, {.group = group});
      auto plain = initialize(Parameters(kShapes), json, {.group = group});
      for (int step = 1; step <= 3; ++step) {
        if (step == 2) {
          poisoned.backward(poisoned(step) * std::nan(""));
          poisoned.step();
          EXPECT_FALSE(poisoned.was_step_applied());
        }
        for (auto* engine : {&poisoned, &plain}) {
          engine->backward((*engine)(step));
          engine->step();
        }
      }
      EXPECT_EQ(hash_of(poisoned), hash_of(plain)) << type;
    }
  }));
}

}  // namespace
}  // namespace zero::testing::whole_tensors_test
