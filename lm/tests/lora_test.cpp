// Promise: adapters are PEFT's. Logits, loss and the adapters' gradients as PEFT computed them in float64
// (scripts/make_causal_lm_golden.py), from its adapter_config.json and names, alone and under ZeRO; only they are
// trained, on one curve; merged they give the same model without them; and back into a folder.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/bits.h"
#include "support/causal_lm_golden.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/lm/lora.h"
#include "zero/zero.h"

namespace zero::testing::lora_test {
namespace {

using at::Tensor;
using models::CausalLM;
using models::LoraOptions;

constexpr const char* kModels[] = {"gpt2", "llama", "llama_biases_tied", "mixtral"};
const std::string kPeft = "base_model.model.";

/// The base of a golden adapter with it, in memory.
CausalLM adapted_model(const std::string& name) {
  CausalLM model = golden_model(name, read_tensors(kGoldens + name + ".safetensors"));
  models::add_lora(model, models::read_lora(kGoldens + "lora_" + name + ".json"));
  return model;
}

void take_adapters(CausalLM& model, const Tensors& golden) {
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    const auto found = golden.find("adapter/" + kPeft + item.key());
    if (found != golden.end()) item.value().copy_(found->second);
  }
}

/// As PEFT saves them.
void write_adapters(const std::string& name, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kGoldens + "lora_" + name + ".json", folder + "/adapter_config.json");
  Tensors adapters;
  for (const auto& [key, tensor] : read_tensors(kGoldens + "lora_" + name + ".safetensors"))
    if (key.starts_with("adapter/")) adapters.emplace(key.substr(8), tensor);
  write_safetensors(folder + "/adapter_model.safetensors", adapters);
}

std::string config_of(const std::string& store, int stage = 3) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
        "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
        "zerotorch": {{"store": "{}", "unit_numel": 300, "seed": 9, "unused_parameters": "zero"}}}})",
      stage, store);
}

class Lora : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Lora, ::testing::ValuesIn(kModels), [](const auto& one) { return one.param; });

TEST_P(Lora, LogitsLossAndGradientsAreThoseOfPeft) {
  at::set_num_threads(1);
  const Tensors base = read_tensors(kGoldens + GetParam() + ".safetensors");
  const Tensors golden = read_tensors(kGoldens + "lora_" + GetParam() + ".safetensors");
  CausalLM model = adapted_model(GetParam());
  expect_near(model(base.at("tokens")), base.at("logits"), "logits before they have learnt anything");
  take_adapters(model, golden);
  expect_near(model(base.at("tokens")), golden.at("logits"), "logits");
  const Tensor loss = model->loss(base.at("tokens"), base.at("targets"));
  expect_near(loss.reshape({1}), golden.at("loss").reshape({1}), "loss");
  loss.backward();
  std::size_t count = 0;
  for (auto& item : model->named_parameters()) {
    const auto want = golden.find("gradient/" + kPeft + item.key());
    EXPECT_EQ(item.value().requires_grad(), want != golden.end()) << item.key();
    if (want == golden.end()) {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
      continue;
    }
    ++count;
    expect_near(item.value().grad(), want->second, item.key());
  }
  EXPECT_EQ(2 * count, golden.size() - 2);
}

TEST_P(Lora, FromFoldersUnderZeroAndBack) {
  const TemporaryFolder folder;
  const std::string name = GetParam(), from = folder.file("from"), adapters = folder.file("adapters");
  write_folder(name, from);
  write_adapters(name, adapters);
  const Tensors base = read_tensors(kGoldens + name + ".safetensors");
  const Tensors golden = read_tensors(kGoldens + "lora_" + name + ".safetensors");
  for (const char* store : {"copying", "node_shared"}) {
    const std::string to = folder.file(std::string("to-") + store),
                      merged = folder.file(std::string("merged-") + store);
    expect_all_ok(spawn(2, [&](Group group) {
      at::set_num_threads(1);
      CausalLM model = models::build(from);
      const LoraOptions options = models::read_lora(adapters);
      models::add_lora(model, options);
      auto engine = initialize(model, config_of(store), InitializeOptions{.group = group});
      EXPECT_TRUE(models::load_weights(engine, model, from).missing.empty());
      EXPECT_TRUE(models::load_adapters(engine, model, adapters).unexpected.empty());
      model->eval();
      const Tensor loss = model->loss(base.at("tokens"), base.at("targets"));
      engine.backward(loss);
      for (const auto& [key, gradient] : golden) {
        if (key.starts_with("gradient/"))
          expect_near(engine.full_gradient(key.substr(9 + kPeft.size())), gradient, key);
      }
      engine.step();
      models::load_adapters(engine, model, adapters);
      expect_said([&] { models::save_pretrained(engine, model, merged, "fp32"); }, "have learnt something");
      models::save_adapters(engine, model, options, to);
      models::merge_adapters(engine, model);
      {
        const at::NoGradGuard no_grad;
        expect_near(model(base.at("tokens")), golden.at("logits"), "merged logits");
      }
      models::save_pretrained(engine, model, merged, "fp32");
    }));
    const Tensors saved = read_tensors(to + "/adapter_model.safetensors");
    for (const auto& [key, tensor] : golden) {
      if (!key.starts_with("adapter/")) continue;
      EXPECT_TRUE(saved.at(key.substr(8)).equal(tensor)) << key;
    }
    EXPECT_EQ(2 * saved.size(), golden.size() - 2);
    EXPECT_EQ(models::read_lora(to), models::read_lora(adapters));
    // Without adapters, and the frozen ones as they were.
    CausalLM plain(models::read_config(merged));
    const Tensors weights = read_tensors(merged);
    EXPECT_EQ(weights.size(), plain->named_parameters().size());
    const at::NoGradGuard no_grad;
    for (auto& item : plain->named_parameters()) item.value().copy_(weights.at(item.key()));
    plain->eval();
    expect_near(plain(base.at("tokens")), golden.at("logits"), "logits without adapters");
  }
}

struct Curve {
  int ranks = 1, stage = 0;
  const char* store = "copying";
  int recompute_every = 0;
};

/// A hash of the weights after some steps; `base`: of those that are frozen, before.
std::uint64_t train(const std::string& name, const Curve& curve, Group group, double dropout) {
  at::set_num_threads(1);
  auto config = models::read_config(kGoldens + name + ".json");
  config.recompute_every = curve.recompute_every;
  at::manual_seed(3);
  CausalLM model(config);
  models::add_lora(model, {.rank = 3, .alpha = 5, .dropout = dropout, .targets = {"all-linear"}});
  std::map<std::string, Tensor> frozen;
  for (const auto& item : model->named_parameters())
    if (!item.value().requires_grad()) frozen.emplace(item.key(), item.value().detach().clone());
  nlohmann::json json = nlohmann::json::parse(config_of(curve.store, curve.stage));
  json["train_batch_size"] = 12;
  auto engine = initialize(model, json.dump(), InitializeOptions{.group = group});
  for (int micro = 0; micro < 2 * 12 / curve.ranks; ++micro) {
    const int index = micro * curve.ranks + group.rank();
    const Tensor tokens = at::arange(9).add(5 * index).remainder(config.vocab).view({1, 9});
    engine.backward(model->loss(tokens, tokens.roll(-1, 1).clone()));
    engine.step();
  }
  std::uint64_t hash = kNoBits;
  for (const auto& item : model->named_parameters()) {
    const Tensor value = engine.full_weight(item.key());
    const auto before = frozen.find(item.key());
    if (before != frozen.end()) {
      EXPECT_TRUE(value.equal(before->second)) << item.key();
    } else if (item.key().ends_with("lora_B.weight")) {
      EXPECT_GT(value.count_nonzero().item<std::int64_t>(), 0) << item.key();
    }
    hash = hash_with(hash, value);
  }
  return hash;
}

TEST(LoraTraining, OneCurve) {
  for (const char* name : {"gpt2", "llama"}) {
    for (const double dropout : {0.0, 0.3}) {
      const std::uint64_t want = train(name, {}, Group(), dropout);
      for (const Curve& curve : {Curve{2, 0},
                                 {3, 1},
                                 {4, 2},
                                 {1, 3},
                                 {2, 3, "node_shared"},
                                 {3, 3},
                                 {4, 3, "copying", 1},
                                 {2, 2, "copying", 2}}) {
        expect_all_ok(spawn(curve.ranks, [&](Group group) {
          EXPECT_EQ(train(name, curve, group, dropout), want)
              << name << ": " << curve.ranks << " ranks, stage " << curve.stage << ", " << curve.store << ", recompute "
              << curve.recompute_every << ", dropout " << dropout;
        }));
      }
    }
  }
}

TEST(LoraOptions, WhatIsNotBuiltIsRefusedByName) {
  std::ifstream in(kGoldens + "lora_llama.json");
  const nlohmann::json good = nlohmann::json::parse(in);
  const auto refused = [&](const char* key, const nlohmann::json& value, std::string_view words) {
    nlohmann::json changed = good;
    changed[key] = value;
    expect_said([&] { models::parse_lora(changed.dump(), "some/adapter_config.json"); }, words);
  };
  refused("peft_type", "IA3", "some/adapter_config.json: 'peft_type' is \"IA3\"");
  refused("use_dora", true, "'use_dora' is true, which is not built");
  for (const char* changes_the_base : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "eva"})
    refused("init_lora_weights", changes_the_base, fmt::format("'init_lora_weights' is \"{}\"", changes_the_base));
  refused("bias", "all", "'bias' is \"all\"");
  refused("modules_to_save", {"lm_head"}, "'modules_to_save'");
  refused("rank_pattern", {{"q_proj", 3}}, "'rank_pattern'");
  refused("layers_to_transform", {0}, "'layers_to_transform'");
  refused("target_modules", "model.*q_proj", "is the pattern");
  refused("lora_alpha", "big", "damaged");
  refused("r", 0, "got rank 0");
  refused("something_new", 1, "'something_new' is 1, which is not built");
  expect_said([] { models::read_lora("/nowhere"); }, "'/nowhere' cannot be read");
  const auto cannot = [](const std::string& name, const LoraOptions& options, std::string_view words) {
    CausalLM model(models::read_config(kGoldens + name + ".json"));
    expect_said([&] { models::add_lora(model, options); }, words);
    for (const Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.requires_grad());  // as it was
  };
  cannot("llama", {.targets = {"q_proj", "c_attn"}},
         "no linear map 'c_attn'; there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
  cannot("llama", {.targets = {"lm_head"}}, "'lm_head' is 'lm_head', and the head");
  cannot("mixtral", {.targets = {"w1"}}, "routed experts have no adapters here");
  cannot("qwen3_moe", {.targets = {"gate"}}, "routers");
  cannot("qwen3_moe_mixed", {.targets = {"q_proj", "down_proj"}}, "for which PEFT would take them; there are k_proj");
  cannot("llama", {.rank = 4, .alpha = 0}, "alpha 0");
  CausalLM twice(models::read_config(kGoldens + "llama.json"));
  models::add_lora(twice, {});
  expect_said([&] { models::add_lora(twice, {}); }, "has an adapter already");
}

/// PEFT takes "gate_proj" and its like for the experts', also those of a dense layer.
TEST(LoraOptions, AllLinearIsWhatPeftCanLoad) {
  CausalLM model(models::read_config(kGoldens + "qwen3_moe_mixed.json"));
  models::add_lora(model, {.targets = {"all-linear"}});
  std::set<std::string> kinds;
  for (const auto& item : model->named_parameters()) {
    if (const auto end = item.key().rfind(".lora_A.weight"); end != std::string::npos)
      kinds.insert(item.key().substr(item.key().rfind('.', end - 1) + 1, end - item.key().rfind('.', end - 1) - 1));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"k_proj", "o_proj", "q_proj", "v_proj"}));
}

TEST(LoraOptions, DefaultsAreReadBack) {
  for (const char* name : {"gpt2", "llama", "qwen3_moe"}) {
    const auto family = models::read_config(kGoldens + name + ".json").family;
    const LoraOptions read = models::parse_lora(models::to_json({.rank = 4, .alpha = 12, .base = "here"}, family));
    EXPECT_EQ(read.rank, 4);
    EXPECT_EQ(read.alpha, 12);
    EXPECT_EQ(read.base, "here");
    EXPECT_EQ(read.targets.size(), std::string(name) == "gpt2" ? 1U : 2U);
  }
  // The plan knows what is trained.
  const auto shape = models::shape_of(models::read_config(kGoldens + "llama.json"), {.rank = 2});
  std::int64_t trained = 0;
  for (const auto& parameter : shape.parameters) trained += parameter.trainable ? parameter.numel : 0;
  EXPECT_EQ(trained, 2 * (2 * (8 + 16) + 2 * (8 + 8)));  // two layers; q: 8 to 16, v: 8 to 8
}

}  // namespace
}  // namespace zero::testing::lora_test
