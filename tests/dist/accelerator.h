#pragma once
// What the tests of modules on an accelerator share: the device, a small model of awkward shapes, settings that it is
// trained with, what a training gives.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/bits.h"
#include "support/odd_model.h"
#include "support/parity.h"
#include "support/simulated_device.h"
#include "support/simulated_nccl.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "support/to_device.h"
#include "zero/zero.h"

namespace zero::testing {

inline bool is_slow() { return std::getenv("ZERO_TEST_SLOW") != nullptr; }

inline bool on_gpu() { return std::getenv("ZERO_TEST_DEVICE") != nullptr; }

/// The device, of this process from here on; a simulated one runs in the order of `seed`.
inline at::Device device_with(std::uint64_t seed) {
  if (on_gpu()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setBenchmarkCuDNN(false);
    return at::Device(at::Device(std::getenv("ZERO_TEST_DEVICE")).type(), 0);
  }
  simulated::start({.seed = seed});
  return simulated::device();
}

/// Whether kernels of zerotorch update there; a GPU has them where they were built.
inline void use_kernels(bool use) {
  if (!on_gpu()) simulated::use_kernels(use);
}

/// Whether NCCL finds several ranks on the device. One GPU is enough for NCCL 2.30 and newer, where they are asked.
inline bool has_nccl() { return !on_gpu() || std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr; }
inline constexpr const char* kNoNccl = "needs NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1";

inline void use_nccl() {
  if (!on_gpu()) simulated::use_nccl(true);
}

/// What it was given is done.
inline void finish() {
  if (!on_gpu()) simulated::finish();
}

/// Runs `fn` on every rank of a fresh group; the lines that rank 0 returns.
inline std::vector<std::string> lines_of(int ranks, const std::function<std::vector<std::string>(Group)>& fn) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lines";
  expect_all_ok(spawn(ranks,
                      [&](Group group) {
                        const auto lines = fn(group);
                        if (group.rank() != 0) return;
                        std::ofstream out(path);
                        for (const auto& line : lines) out << line << '\n';
                      },
                      {.timeout = std::chrono::minutes(8)}));
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// A small model of operators that a device has: a table, dense layers of odd sizes, one used twice, a tied and a
/// frozen one, one that is not used, and a BatchNorm with buffers.
struct SmallImpl : torch::nn::Module {
  SmallImpl() {
    table = register_module("table", torch::nn::Embedding(kOddVocab, 13));
    first = register_module("first", torch::nn::Linear(13, 29));
    twice = register_module("twice", torch::nn::Linear(29, 29));
    frozen = register_module("frozen", torch::nn::Linear(29, 29));
    norm = register_module("norm", torch::nn::BatchNorm1d(29));
    last = register_module("last", torch::nn::Linear(29, 13));
    unused = register_parameter("unused", at::ones({7, 3}));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor loss(const at::Tensor& tokens, bool again = false) {
    const at::Tensor flat = tokens.reshape({-1});
    at::Tensor x = at::tanh(first(table(flat)));
    const auto middle = [this](const at::Tensor& in) { return at::tanh(twice(at::tanh(twice(in)))) + frozen(in); };
    x = again ? recompute(middle, x) : middle(x);
    x = at::matmul(last(norm(x)), table->weight.t());
    return at::cross_entropy_loss(x.to(at::kFloat), at::roll(flat, 1));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, twice{nullptr}, frozen{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(Small);

inline Small make_small(at::Device device) {
  at::set_num_threads(1);
  at::manual_seed(3);
  Small model;
  to_device(*model, device);
  return model;
}

struct Setting {
  int stage = 3;
  std::string more = {};  ///< keys of the configuration
  std::string zero = {};  ///< of zero_optimization
  int accumulation = 2;
  std::int64_t bucket_numel = 1100, live_numel = 1000;
  bool recompute = false, in_backward = false, delayed = false, own_stream = false;
  bool writes = false;         ///< the program writes a parameter before each step
  std::string states = "cpu";  ///< where they are
  std::string own = {};        ///< keys of zerotorch
  bool measured = false;       ///< prefetch by times: a seed does not give the same order again
  std::string offload = {};    ///< of offload_optimizer
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
};

/// With libtorch's own 16-bit products on the CPU, too: they are those of the simulated device.
inline std::string json_of(const Setting& setting) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
    "optimizer": {},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 30, "reduce_bucket_size": {},
      "stage3_max_live_parameters": {}, "stage3_max_reuse_distance": 0,
      "offload_optimizer": {{"device": "{}" {}}} {}}},
    "zerotorch": {{"seed": 4, "unit_numel": 400, "cpu_products": "native",
      "update": "{}", "measured_prefetch": {} {}}} {}}})",
                     setting.accumulation, setting.optimizer, setting.stage, setting.bucket_numel, setting.live_numel,
                     setting.states, setting.offload, setting.zero,
                     setting.in_backward ? "in_backward"
                     : setting.delayed   ? "delayed"
                                         : "after_backward",
                     setting.measured, setting.own, setting.more);
}

/// Everything that training gives and that does not depend on the number of ranks, as one line: norms, weights, states.
inline std::string outcome_of(Engine& engine, Small& model, std::vector<double> numbers) {
  std::uint64_t hash = kNoBits;
  for (const double number : numbers) hash = (hash ^ std::bit_cast<std::uint64_t>(number)) * 1099511628211ull;
  for (const auto& item : model->named_parameters()) {
    hash = hash_with(hash, engine.full_weight(item.key()).cpu());
    if (!item.value().requires_grad()) continue;
    for (const auto& state : engine.optimizer_states(item.key()))
      hash = hash_with(hash, engine.full_optimizer_state(item.key(), state).cpu());
  }
  return fmt::format("{:016x} {}", hash, numbers.back());
}

/// What the log says of the configuration.
inline std::string notices_of(const Engine& engine) {
  return fmt::format("{}", fmt::join(engine.config().notices, " "));
}

inline constexpr int kMicroBatches = 12;

inline at::Tensor tokens_of(int step, int index, at::Device device) {
  return micro_batch_tokens(step * kMicroBatches + index, 2, 5).to(device);
}

inline std::string train(Group group, at::Device device, const Setting& setting, int steps = 3) {
  Small model = make_small(device);
  Setting own = setting;
  own.accumulation = own.in_backward ? 1 : kMicroBatches / group.size();
  const c10::impl::VirtualGuardImpl backend(device.type());
  std::optional<c10::StreamGuard> stream;
  if (setting.own_stream && !device.is_cpu()) {
    finish();  // the model was moved in the default stream
    stream.emplace(backend.getStreamFromGlobalPool(device));
  }
  auto engine = initialize(model, json_of(own), {.group = group});
  std::vector<double> numbers;
  for (int step = 0; step < steps; ++step) {
    if (setting.writes) {
      GatheredParameters scope(engine, {model->first->weight}, 0);
      const at::NoGradGuard no_grad;
      if (group.rank() == 0) model->first->weight.mul_(0.75);
    }
    double sum = 0;
    for (int j = 0; j < own.accumulation; ++j) {
      const at::Tensor loss = model->loss(tokens_of(step, j * group.size() + group.rank(), device), setting.recompute);
      engine.backward(loss);
      engine.step();
      sum += loss.item<float>();
    }
    numbers.push_back(engine.grad_norm());
    if (step + 1 == steps) {
      std::vector<double> all(static_cast<std::size_t>(group.size()));
      group.all_gather(&sum, all.data(), std::vector<std::int64_t>(all.size(), 1), DType::kFloat64).wait();
      for (const double one : all) numbers.push_back(one);
    }
  }
  return outcome_of(engine, model, {numbers.begin(), numbers.begin() + steps});
}

/// The settings that a small model is trained with: what each adds to the paths that copies take.
inline const std::map<std::string, Setting>& settings() {
  static const std::map<std::string, Setting> all = {
      {"stage 0", {.stage = 0}},
      {"stage 1", {.stage = 1}},
      {"stage 2", {.stage = 2}},
      {"stage 3", {.stage = 3}},
      {"stage 3, no overlap", {.stage = 3, .zero = R"(, "overlap_comm": false)"}},
      {"stage 2, clipped", {.stage = 2, .more = R"(, "gradient_clipping": 0.05)"}},
      {"stage 3, bf16", {.stage = 3, .more = R"(, "bf16": {"enabled": true})"}},
      {"stage 1, bf16, gradients sent in fp32",
       {.stage = 1, .more = R"(, "bf16": {"enabled": true}, "communication_data_type": "fp32")"}},
      {"stage 2, fp16", {.stage = 2, .more = R"(, "fp16": {"enabled": true, "initial_scale_power": 8})"}},
      {"stage 3, one bucket, all live", {.stage = 3, .bucket_numel = 1'000'000, .live_numel = 1'000'000}},
      {"stage 3, parts run again", {.stage = 3, .recompute = true}},
      {"stage 3, updated in backward", {.stage = 3, .more = R"(, "gradient_clipping": 0)", .in_backward = true}},
      {"stage 1, updated in backward", {.stage = 1, .more = R"(, "gradient_clipping": 0)", .in_backward = true}},
      {"stage 3, on another stream", {.stage = 3, .own_stream = true}},
  };
  return all;
}

/// The same, and optimizers of whole tensors, which need kernels there. A GPU makes numbers of its own of these.
inline std::map<std::string, Setting> settings_of_kernels() {
  auto all = settings();
  if (on_gpu()) return all;
  all["stage 3, Muon"] = {.stage = 3, .optimizer = R"({"type": "Muon", "params": {"lr": 0.01}})"};
  all["stage 2, Lamb"] = {.stage = 2, .optimizer = R"({"type": "Lamb", "params": {"lr": 0.01}})"};
  all["stage 1, Adafactor"] = {.stage = 1, .optimizer = R"({"type": "Adafactor", "params": {"lr": 0.01}})"};
  return all;
}

/// Of zero_optimization.
inline constexpr const char* kParametersOnHost = R"(, "offload_param": {"device": "cpu"})";

/// Keys of zerotorch.
inline constexpr const char* kByNccl = R"(, "device_transport": "nccl")";

}  // namespace zero::testing
