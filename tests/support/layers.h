#pragma once
// A model of two layers whose names, sizes and company can be chosen, an engine of it, and everything an
// engine holds by name: for tests of what a load does.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "zero/zero.h"

namespace zero::testing {

using Names = std::vector<std::string>;

struct Shape {
  std::string first = "first", second = "second", buffer = "seen";
  std::int64_t out = 4;
  bool added = false;
  bool freeze_second = false;
  bool turned = false;  ///< first.weight lies column by column
};

/// Two layers whose names, sizes and company can be chosen.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const Shape& shape) {
    first = register_module(shape.first, torch::nn::Linear(6, 5));
    second = register_module(shape.second, torch::nn::Linear(5, shape.out));
    if (shape.added) added = register_module("added", torch::nn::Linear(5, shape.out));
    for (auto& parameter : second->parameters()) parameter.requires_grad_(!shape.freeze_second);
    if (shape.turned) first->weight.set_data(first->weight.detach().t().contiguous().t());
    seen = register_buffer(shape.buffer, at::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::tanh(first(x));
    seen.add_(1);
    return added ? second(hidden) + added(hidden) : second(hidden);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, added{nullptr};
  at::Tensor seen;
};
TORCH_MODULE(Layers);

inline std::string layers_json(bool bf16 = false, int accumulation = 1, int stage = 3) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
    "scheduler": {{"type": "WarmupLR",
                   "params": {{"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 9}}}},
    "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"seed": 5}}}})",
                     accumulation, bf16, stage);
}

using LayersEngine = ModuleEngine<Layers>;

inline LayersEngine layers_engine(Group group, std::uint64_t seed, const Shape& shape = {},
                                  const std::string& json = layers_json()) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return initialize(Layers(shape), json, {.group = std::move(group)});
}

inline void train(LayersEngine& engine, int micro_batches) {
  for (int i = 0; i < micro_batches; ++i) {
    const double index = static_cast<double>(engine.micro_steps() * engine.world_size() + engine.rank());
    at::Tensor x = at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(index));
    x = x.to(engine.module().parameters().front().scalar_type());
    engine.backward(engine(x).to(at::kFloat).square().sum());
    engine.step();
  }
}

using Values = std::map<std::string, at::Tensor>;

/// Everything that has a name: "weight/...", "exp_avg/...", "exp_avg_sq/...", "buffer/...".
inline Values values_of(Engine& engine) {
  Values values;
  for (const auto& item : engine.module().named_parameters()) {
    values["weight/" + item.key()] = engine.full_weight(item.key());
    if (!item.value().requires_grad()) continue;
    values["exp_avg/" + item.key()] = engine.full_optimizer_state(item.key(), "exp_avg");
    values["exp_avg_sq/" + item.key()] = engine.full_optimizer_state(item.key(), "exp_avg_sq");
  }
  for (const auto& item : engine.module().named_buffers()) {
    values["buffer/" + item.key()] = item.value().clone().to(at::kFloat);
  }
  return values;
}

/// Those of `names` that are not equal in both; "-name" where one has none.
inline Names differing(const Values& a, const Values& b) {
  Names names;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      names.push_back("-" + name);
    } else if (!at::equal(value, other->second)) {
      names.push_back(name);
    }
  }
  for (const auto& [name, value] : b) {
    if (!a.contains(name)) names.push_back("-" + name);
  }
  return names;
}

/// With the names of another model.
inline Values renamed(const Values& values, const std::map<std::string, std::string>& parts) {
  Values result;
  for (const auto& [key, value] : values) {
    std::string name = key;
    for (const auto& [from, to] : parts) {
      if (const auto at = name.find("/" + from); at != std::string::npos) name.replace(at + 1, from.size(), to);
    }
    result[name] = value;
  }
  return result;
}

inline bool any_mentions(const Names& texts, std::string_view part) {
  return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return mentions(text, part); });
}

}  // namespace zero::testing
