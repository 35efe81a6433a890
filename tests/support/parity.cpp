#include "support/parity.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <bit>
#include <set>

#include "support/bits.h"
#include "support/odd_model.h"
#include "support/to_device.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

constexpr double kClip = 0.05;
constexpr std::uint64_t kSeed = 20240607;

struct Recipe {
  std::string_view name;
  std::string_view optimizer;
  std::string_view schedule = {};
  std::string_view bf16 = {};  ///< more of this section; such a recipe is of bf16 alone
  bool stochastic = false;
};

constexpr Recipe kRecipes[] = {
    {"AdamW", R"({"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}})"},
    {"Adam, OneCycle", R"({"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": false}})",
     R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 2}})"},
    {"AMSGrad, WarmupCosineLR", R"({"type": "AdamW", "params": {"lr": 0.01, "amsgrad": true}})",
     R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2, "total_num_steps": 6}})"},
    {"SGD, LinearLR", R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true}})",
     R"({"type": "LinearLR", "params": {"total_iters": 4}})"},
    {"Adagrad, StepLR", R"({"type": "Adagrad", "params": {"lr": 0.02, "lr_decay": 0.1}})",
     R"({"type": "StepLR", "params": {"step_size": 2, "gamma": 0.5}})"},
    {"RMSprop, PolynomialLR",
     R"({"type": "RMSprop", "params": {"lr": 0.005, "momentum": 0.9, "centered": true, "eps": 0.01}})",
     R"({"type": "PolynomialLR", "params": {"total_iters": 8, "power": 2}})"},
    {"Lion, CosineAnnealingLR", R"({"type": "Lion", "params": {"lr": 0.002, "weight_decay": 0.1}})",
     R"({"type": "CosineAnnealingLR", "params": {"T_max": 6, "eta_min": 0.0001}})"},
    {"Lamb, WarmupLR", R"({"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}})",
     R"({"type": "WarmupLR", "params": {"warmup_num_steps": 3}})"},
    {"Adafactor, ExponentialLR", R"({"type": "Adafactor", "params": {"lr": 0.02, "weight_decay": 0.1}})",
     R"({"type": "ExponentialLR", "params": {"gamma": 0.8}})"},
    {"Muon, WarmupDecayLR", R"({"type": "Muon", "params": {"lr": 0.01, "weight_decay": 0.1}})",
     R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 7, "warmup_max_lr": 0.01}})"},
    {"AdamW8bit, LRRangeTest", R"({"type": "AdamW8bit", "params": {"lr": 0.01, "weight_decay": 0.1}})",
     R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 2}})"},
    {"AdamW, bf16 states", R"({"type": "AdamW", "params": {"lr": 0.01}})", "", R"(, "bf16_optimizer_states": true)"},
    {"AdamW, bf16 masters and sums, rounded stochastically", R"({"type": "AdamW", "params": {"lr": 0.01}})", "",
     R"(, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true)", true},
    {"AdEMAMix, OneCycle",
     R"({"type": "AdEMAMix", "params": {"lr": 0.01, "weight_decay": 0.1, "t_alpha": 3, "t_beta3": 4}})",
     R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 2}})"},
};

std::string json_of(const ParityCase& c, at::Device device = at::kCPU) {
  const Recipe& recipe = kRecipes[c.recipe];
  return fmt::format(
      R"({{
    "train_batch_size": 36,
    "train_micro_batch_size_per_gpu": 3,
    "optimizer": {},{}
    "gradient_clipping": {},
    "bf16": {{"enabled": {}{}}},
    "fp16": {{"enabled": {}, "initial_scale_power": 12, "loss_scale_window": 1, "hysteresis": 1}},
    "zero_optimization": {{
      "stage": {}, "overlap_comm": {}, "reduce_bucket_size": {}, "allgather_bucket_size": {},
      "stage3_param_persistence_threshold": 40, "stage3_max_live_parameters": 8000,
      "stage3_max_reuse_distance": {}, "stage3_prefetch_bucket_size": 4000, "sub_group_size": {},
      "offload_optimizer": {{"device": "{}", "nvme_path": "{}", "buffer_count": {}}},
      "offload_param": {{"device": "{}", "nvme_path": "{}", "buffer_count": {}}}
    }},
    "aio": {{"block_size": 4096, "queue_depth": 3}},
    "zerotorch": {{"store": "{}", "progress_thread": "{}", "overlap_all_gather": "{}", "seed": {},
      "stochastic_rounding": {}}}
  }})",
      recipe.optimizer, recipe.schedule.empty() ? "" : fmt::format(R"( "scheduler": {},)", recipe.schedule),
      c.clipping ? kClip : 0.0, c.bf16, recipe.bf16, c.fp16, c.stage, c.overlap, c.tiny_buckets ? 1100 : 500000000,
      c.tiny_buckets ? 1100 : 500000000, c.tiny_buckets ? 0 : 1000000, c.tiny_buckets ? 700 : 1000000,
      c.nvme                           ? "nvme"
      : device.is_cpu() || c.on_device ? "none"
                                       : "cpu",
      ::testing::TempDir(), c.overlap ? 3 : 5, c.nvme_parameters ? "nvme" : "none", ::testing::TempDir(),
      c.overlap ? 4 : 3, c.node_shared ? "node_shared" : "copying", c.progress_thread ? "always" : "never",
      c.overlap ? "always" : "auto", kSeed, recipe.stochastic);
}

/// The generator state the engine gives to a micro-batch (see docs/reproducibility.md).
void seed_micro_batch(std::int64_t global_index) {
  std::uint64_t z = kSeed + (static_cast<std::uint64_t>(global_index) + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  at::manual_seed(z ^ (z >> 31));
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

}  // namespace

std::string ParityCase::curve() const {
  return fmt::format("{}{}{}",
                     fp16   ? "fp16"
                     : bf16 ? "bf16"
                            : "fp32",
                     clipping ? " clipped" : "", recipe == 0 ? "" : fmt::format(", {}", kRecipes[recipe].name));
}

std::string ParityCase::name() const {
  return fmt::format("stage {} {} {}{}{}{}{}{}", stage, node_shared ? "node-shared" : "copying", curve(),
                     tiny_buckets ? " tiny-buckets" : "", overlap ? " overlap" : "",
                     progress_thread ? " progress-thread" : "", nvme ? " nvme" : "",
                     nvme_parameters ? " nvme-parameters"
                     : on_device     ? " on-device"
                                     : "");
}

namespace {

/// The axes that are not the recipe's follow from stage and store.
void add_recipe(std::vector<ParityCase>& cases, int recipe, bool reduced) {
  constexpr int kFp32 = 0, kBf16 = 1, kFp16 = 2;
  for (int stage = 0; stage < 4; ++stage) {
    for (const bool node_shared : {false, true}) {
      for (const int precision : {kFp32, kBf16, kFp16}) {
        if (!kRecipes[recipe].bf16.empty() && precision != kBf16) continue;
        const bool alone = precision == (kRecipes[recipe].bf16.empty() ? recipe % 3 : kBf16);
        if (reduced && !(alone && stage == (node_shared ? 3 - recipe % 4 : recipe % 4))) continue;
        cases.push_back({.stage = stage,
                         .node_shared = node_shared,
                         .bf16 = precision == kBf16,
                         .clipping = reduced ? recipe % 2 == 0 : (stage < 2) == node_shared,
                         .tiny_buckets = (stage % 2 == 0) != node_shared,
                         .overlap = stage % 3 == 0,
                         .progress_thread = stage == 2,
                         .fp16 = precision == kFp16,
                         .recipe = recipe});
      }
    }
  }
}

}  // namespace

std::vector<ParityCase> parity_cases(bool reduced) {
  std::vector<ParityCase> cases;
  for (int recipe = 1; recipe < static_cast<int>(std::size(kRecipes)); ++recipe) add_recipe(cases, recipe, reduced);
  for (int stage = 0; stage < 4; ++stage) {
    for (int bits = 0; bits < 64; ++bits) {
      const bool node_shared = bits & 1, bf16 = bits & 2, clipping = bits & 4, tiny = bits & 8, overlap = bits & 16,
                 thread = bits & 32;
      // A covering sample: the last three axes follow the others.
      if (reduced &&
          (tiny != (node_shared != bf16) || overlap != (clipping != node_shared) || thread != (bf16 != clipping))) {
        continue;
      }
      for (const bool nvme : {false, true}) {
        if (reduced && nvme && (stage + node_shared + 2 * clipping) % 4 != 0) continue;
        cases.push_back({stage, node_shared, bf16, clipping, tiny, overlap, thread, false, nvme});
        if (bf16 && (!reduced || clipping == node_shared))
          cases.push_back({stage, node_shared, false, clipping, tiny, overlap, thread, true, nvme});
        if (stage != 3 || node_shared) continue;
        cases.push_back({stage, node_shared, bf16, clipping, tiny, overlap, thread, false, nvme});
        cases.back().nvme_parameters = true;
        if (!bf16) continue;
        cases.push_back({stage, node_shared, false, clipping, tiny, overlap, thread, true, nvme});
        cases.back().nvme_parameters = true;
      }
    }
  }
  return cases;
}

std::string ParityResult::text() const {
  std::string out;
  for (double loss : losses) out += fmt::format("{:016x} ", std::bit_cast<std::uint64_t>(loss));
  for (double norm : norms) out += fmt::format("{:016x} ", std::bit_cast<std::uint64_t>(norm));
  return out + fmt::format("{:016x}", weights_hash);
}

ParityResult run_parity_case(const ParityCase& test_case, Group group, at::Device device) {
  at::set_num_threads(1);
  at::manual_seed(17 + group.rank());  // ranks start apart: initialize() must make them one
  if (group.rank() == 0) at::manual_seed(17);
  OddModel model;
  to_device(*model, device);
  auto engine = initialize(model, json_of(test_case, device), InitializeOptions{.group = group});
  ParityResult result;
  const int ranks = group.size(), rank = group.rank();
  for (int step = 0; step < kParitySteps; ++step) {
    std::vector<double> mine, all(kParityMicroBatches);
    for (int j = 0; j < kParityMicroBatches / ranks; ++j) {
      const std::int64_t index = step * kParityMicroBatches + j * ranks + rank;
      const at::Tensor loss = model->loss(micro_batch_tokens(index).to(device));
      engine.backward(loss);
      engine.step();
      mine.push_back(loss.item<float>());
    }
    const std::vector<std::int64_t> counts(ranks, kParityMicroBatches / ranks);
    group.all_gather(mine.data(), all.data(), counts, DType::kFloat64).wait();
    for (int i = 0; i < kParityMicroBatches; ++i) {
      result.losses.push_back(all[i % ranks * (kParityMicroBatches / ranks) + i / ranks]);
    }
    result.norms.push_back(engine.grad_norm());
  }
  result.weights_hash = kNoBits;
  for (const auto& item : model->named_parameters()) {
    result.weights_hash = hash_with(result.weights_hash, engine.full_weight(item.key()).cpu());
    if (!item.value().requires_grad()) continue;
    for (const auto& state : engine.optimizer_states(item.key()))
      result.weights_hash = hash_with(result.weights_hash, engine.full_optimizer_state(item.key(), state).cpu());
  }
  return result;
}

PlainResult run_plain(bool bf16, bool clipping) {
  // As the engine computes them on this processor.
  const CpuProductsScope products(CpuProducts::kAuto, DType::kBFloat16);
  at::set_num_threads(1);
  at::manual_seed(17);
  OddModel model;
  std::vector<at::Tensor> parameters, masters;
  std::set<const void*> seen;
  for (auto& parameter : model->parameters()) {
    const bool is_new = seen.insert(parameter.unsafeGetTensorImpl()).second;  // tied ones are listed twice
    if (parameter.requires_grad() && is_new) parameters.push_back(parameter);
  }
  for (auto& parameter : parameters) {
    masters.push_back(bf16 ? parameter.detach().clone().requires_grad_() : parameter);
  }
  if (bf16) model->to(at::kBFloat16);
  torch::optim::AdamW optimizer(
      masters, torch::optim::AdamWOptions(0.01).betas(std::make_tuple(0.9, 0.95)).eps(1e-8).weight_decay(0.1));
  PlainResult result;
  for (int step = 0; step < kParitySteps; ++step) {
    std::vector<at::Tensor> sums;
    std::set<std::size_t> used;  // as plain libtorch, AdamW leaves alone what has no gradient
    for (const auto& master : masters) sums.push_back(at::zeros_like(master.detach()));
    for (int i = 0; i < kParityMicroBatches; ++i) {
      const std::int64_t index = step * kParityMicroBatches + i;
      seed_micro_batch(index);
      const at::Tensor loss = model->loss(micro_batch_tokens(index));
      loss.backward();
      result.losses.push_back(loss.item<float>());
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (!parameters[p].grad().defined()) continue;
        sums[p].add_(parameters[p].grad().to(at::kFloat));
        used.insert(p);
        parameters[p].mutable_grad().reset();
      }
    }
    for (const std::size_t p : used) masters[p].mutable_grad() = sums[p].div_(kParityMicroBatches);
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(masters, clipping ? kClip : 1e30));
    optimizer.step();
    if (bf16) {
      at::NoGradGuard no_grad;
      for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].copy_(masters[p]);
    }
    for (auto& master : masters) master.mutable_grad().reset();
  }
  for (const auto& master : masters) result.weights.push_back(values_of(master));
  return result;
}

PlainResult run_engine_plain(const ParityCase& test_case) {
  at::set_num_threads(1);
  at::manual_seed(17);
  OddModel model;
  auto engine = initialize(model, json_of(test_case), InitializeOptions{.group = Group()});
  PlainResult result;
  for (int step = 0; step < kParitySteps; ++step) {
    for (int i = 0; i < kParityMicroBatches; ++i) {
      const at::Tensor loss = model->loss(micro_batch_tokens(step * kParityMicroBatches + i));
      engine.backward(loss);
      engine.step();
      result.losses.push_back(loss.item<float>());
    }
    result.norms.push_back(engine.grad_norm());
  }
  std::set<const void*> seen;
  for (const auto& item : model->named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    result.weights.push_back(values_of(engine.full_weight(item.key())));
  }
  return result;
}

}  // namespace zero::testing
