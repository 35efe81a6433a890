// Promise: models in Hugging Face's shapes are those models. Logits, loss and every gradient as transformers computed
// them in float64 (scripts/make_causal_lm_golden.py), from its config.json and weights of the names on disk, alone and
// under ZeRO; and back into a folder.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/bits.h"
#include "support/causal_lm_golden.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/lm/causal_lm.h"
#include "zero/zero.h"

namespace zero::testing::causal_lm_test {
namespace {

using at::Tensor;
using models::CausalLM;
using models::CausalLMConfig;

constexpr const char* kModels[] = {
    "gpt2",       "gpt2_untied",       "llama",          "llama_biases_tied", "llama_linear",    "llama_dynamic",
    "llama_yarn", "llama_yarn_mscale", "llama_longrope", "llama_llama3",      "mistral",         "qwen2",
    "qwen3",      "qwen2_windows",     "mixtral",        "qwen3_moe",         "qwen3_moe_mixed",
};

class Goldens : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(CausalLM, Goldens, ::testing::ValuesIn(kModels), [](const auto& one) { return one.param; });

TEST_P(Goldens, LogitsLossAndGradientsAreThoseOfTransformers) {
  at::set_num_threads(1);
  const Tensors golden = read_tensors(kGoldens + GetParam() + ".safetensors");
  CausalLMConfig config = models::read_config(kGoldens + GetParam() + ".json");
  for (const auto& [every, rows] : {std::pair<int, int>(0, 0), {1, 5}, {2, 0}, {0, 7}}) {
    config.recompute_every = every;
    config.loss_rows = rows;
    CausalLM model(config);
    std::size_t parameters = 0;
    {
      const at::NoGradGuard no_grad;
      for (auto& item : model->named_parameters()) item.value().copy_(golden.at("weight/" + item.key()));
    }
    model->eval();
    expect_near(model(golden.at("tokens")), golden.at("logits"), "logits");
    model->train();
    if (config.family == CausalLMConfig::Family::kGpt2) model->eval();  // it has dropout
    const Tensor loss = model->loss(golden.at("tokens"), golden.at("targets"));
    expect_near(loss.reshape({1}), golden.at("loss").reshape({1}), "loss");
    loss.backward();
    for (auto& item : model->named_parameters()) {
      const Tensor& gradient = item.value().grad();
      expect_near(gradient.defined() ? gradient : at::zeros_like(item.value()), golden.at("gradient/" + item.key()),
                  item.key());
      ++parameters;
    }
    std::size_t expected = 0;  // none is left over
    for (const auto& [name, tensor] : golden) expected += name.starts_with("weight/");
    EXPECT_EQ(parameters, expected);
  }
}

TEST_P(Goldens, CachedLogitsAreThoseOfTheWholeText) {
  at::set_num_threads(1);
  const Tensors golden = read_tensors(kGoldens + GetParam() + ".safetensors");
  CausalLM model = golden_model(GetParam(), golden);
  const Tensor& tokens = golden.at("tokens");
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 3, 1}, {2, 7}}) {
    models::KeyValueCache cache;
    for (const std::int64_t count : pieces) {
      const Tensor logits = model->next_logits(tokens.narrow(1, cache.length(), count), cache);
      const std::int64_t last = cache.length() - 1;
      // Rotations that depend on the length of the text are those of what there is so far.
      expect_near(logits, model(tokens.narrow(1, 0, last + 1)).select(1, last), "logits " + std::to_string(last));
      EXPECT_FALSE(logits.requires_grad());
    }
    EXPECT_EQ(cache.length(), 9);
  }
}

TEST_P(Goldens, LikeliestTextIsThatOfTransformers) {
  at::set_num_threads(1);
  const Tensors golden = read_tensors(kGoldens + GetParam() + ".safetensors");
  std::ifstream file(kGoldens + "generated.json");
  const auto want = nlohmann::json::parse(file).at(GetParam()).get<std::vector<std::int64_t>>();
  const auto* first = golden.at("tokens").const_data_ptr<std::int64_t>();
  const std::vector<std::int64_t> prompt(first, first + 5);
  GenerateOptions options{.length = static_cast<std::int64_t>(want.size()), .temperature = 0};
  CausalLM alone = golden_model(GetParam(), golden);
  EXPECT_EQ(models::generate(alone, prompt, options), want);
  const TemporaryFolder folder;
  write_folder(GetParam(), folder.file("from"));
  for (const char* store : {"copying", "node_shared"}) {
    expect_all_ok(spawn(2, [&](Group group) {
      CausalLM model = models::build(folder.file("from"));
      const std::string json = fmt::format(
          R"({{"train_batch_size": 2, "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0}},
            "zerotorch": {{"store": "{}", "unit_numel": 300}}}})",
          store);
      auto engine = initialize(model, json, InitializeOptions{.group = group, .evaluation_only = true});
      models::load_weights(engine, model, folder.file("from"));
      model->eval();
      std::vector<std::int64_t> heard;
      GenerateOptions streamed = options;
      streamed.on_token = [&](std::int64_t token) { heard.push_back(token); };
      EXPECT_EQ(models::generate(model, prompt, streamed), want);
      EXPECT_EQ(heard, want);
    }));
  }
}

TEST(CausalLM, GenerationsThatCannotBe) {
  CausalLM gpt(models::read_config(kGoldens + "gpt2.json"));
  models::KeyValueCache cache;
  const auto next = [&](std::int64_t rows, std::int64_t count) {
    gpt->next_logits(at::zeros({rows, count}, at::kLong), cache);
  };
  expect_said([&] { next(1, 3); }, "training mode");
  gpt->eval();
  next(2, 3);
  expect_said([&] { next(1, 1); }, "it has 3 positions of another model or batch");
  expect_said([&] { next(2, 10); }, "13 tokens in a row; this model has learnt 12 positions");
  next(2, 9);  // it is as it was
  cache.clear();
  next(1, 1);
  expect_said([&] { models::generate(gpt, {}); }, "the prompt is empty");
  expect_said([&] { models::generate(gpt, {1, 23}); }, "got tokens from 1 to 23; the vocabulary has 23");
  expect_said([&] { models::generate(gpt, {-1}); }, "got tokens from -1 to -1");
  expect_said([&] { models::generate(gpt, {1}, {.length = 13, .temperature = 0}); }, "13 tokens in a row");
  expect_said([&] { models::generate(gpt, {1}, {.top_p = 0}); }, "top_p 0");
  EXPECT_EQ(models::generate(gpt, {1}, {.length = 12}).size(), 12U);
  // Ends before a token that stops it.
  const auto whole = models::generate(gpt, {1, 2}, {.length = 8, .seed = 5});
  GenerateOptions stops{.length = 8, .seed = 5, .stop = {whole[3], 23}};
  const auto cut = models::generate(gpt, {1, 2}, stops);
  EXPECT_TRUE(std::ranges::equal(cut, std::vector(whole.begin(), std::ranges::find(whole, whole[3]))));
}

TEST_P(Goldens, ConfigComesBack) {
  const CausalLMConfig config = models::read_config(kGoldens + GetParam() + ".json");
  EXPECT_EQ(models::to_json(config), config.source);  // whatever else it says
  CausalLMConfig changed = config;
  changed.source.clear();
  CausalLMConfig again = models::parse_config(models::to_json(changed));
  again.source.clear();
  EXPECT_EQ(again, changed) << models::to_json(changed);
  CausalLMConfig wider = config;
  wider.vocab += 5;
  const CausalLMConfig read = models::parse_config(models::to_json(wider));
  EXPECT_EQ(read.vocab, config.vocab + 5);
  EXPECT_NE(models::to_json(wider).find("bos_token_id"), std::string::npos);  // is kept
  // The plan knows all parameters.
  std::int64_t numel = 0;
  for (const auto& item : CausalLM(config)->named_parameters()) numel += item.value().numel();
  EXPECT_EQ(models::shape_of(config).numel(), numel);
}

TEST_P(Goldens, FromAFolderUnderZeroAndBack) {
  const TemporaryFolder folder;
  const std::string name = GetParam(), from = folder.file("from"), to = folder.file("to");
  const bool is_gpt2 = name.starts_with("gpt2");
  write_folder(name, from, is_gpt2 ? "transformer." : "");  // as on the hub
  std::ofstream(from + "/tokenizer.json") << "{}";
  const Tensors golden = read_tensors(kGoldens + name + ".safetensors");
  for (const int ranks : {1, 2}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      at::set_num_threads(1);
      CausalLM model = models::build(from);
      const std::string json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zerotorch": {"store": "copying", "unit_numel": 300, "unused_parameters": "zero"}})";
      auto engine = initialize(model, json, InitializeOptions{.group = group});
      const auto report = models::load_weights(engine, model, from);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      if (is_gpt2) model->eval();
      const Tensor tokens = golden.at("tokens"), targets = golden.at("targets");
      {
        const at::NoGradGuard no_grad;
        expect_near(model(tokens), golden.at("logits"), "logits");
      }
      const Tensor loss = model->loss(tokens, targets);  // all ranks the same: their average is it
      engine.backward(loss);
      for (auto& item : model->named_parameters()) {
        expect_near(engine.full_gradient(item.key()), golden.at("gradient/" + item.key()), item.key());
      }
      engine.step();
      models::save_pretrained(engine, model, to, "fp32", from);
      if (group.rank() != 0) return;
      const Tensors saved = read_tensors(to);
      std::size_t weights = 0;
      for (const auto& [key, tensor] : golden) {
        if (!key.starts_with("weight/")) continue;
        ++weights;
        EXPECT_TRUE(saved.at(key.substr(7)).equal(tensor)) << key;
      }
      EXPECT_EQ(saved.size(), weights);
      EXPECT_TRUE(std::filesystem::exists(to + "/tokenizer.json"));
      EXPECT_EQ(models::read_config(to), models::read_config(from));
    }));
    std::filesystem::remove_all(to);
  }
}

/// config.json of a model with some keys changed; null: without.
std::string changed(const std::string& model, const nlohmann::json& changes) {
  std::ifstream in(kGoldens + model + ".json");
  nlohmann::json text = nlohmann::json::parse(in);
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null()) {
      text.erase(key);
    } else {
      text[key] = value;
    }
  }
  return text.dump();
}

TEST(CausalLMConfig, WhatIsNotBuiltIsRefusedByName) {
  const auto refused = [](const std::string& model, const nlohmann::json& changes, std::string_view words) {
    expect_said([&] { models::parse_config(changed(model, changes), "some/config.json"); }, words);
  };
  refused("llama", {{"model_type", "gemma2"}},
          "some/config.json: model_type is 'gemma2', which is not built; there are gpt2, llama, mistral, qwen2, qwen3");
  refused("llama", {{"model_type", nullptr}}, "model_type is ''");
  refused("llama", {{"attn_logit_softcapping", 50.0}}, "'attn_logit_softcapping' is not known");
  refused("llama", {{"hidden_act", "gelu"}}, "'hidden_act' is \"gelu\": only \"silu\" is built");
  refused("llama", {{"pretraining_tp", 2}}, "'pretraining_tp' is 2");
  refused("llama", {{"num_hidden_layers", "two"}}, "'num_hidden_layers' is \"two\": has another type");
  refused("llama", {{"num_key_value_heads", 3}}, "heads (4) is not a multiple of kv_heads (3)");
  refused("llama", {{"num_hidden_layers", 0}}, "layers is 0");
  refused("llama", {{"head_dim", 3}}, "head_dim is 3: rotary embeddings turn pairs");
  refused("llama", {{"quantization_config", {{"bits", 4}}}}, "only weights in floating point");
  refused("llama", {{"rope_parameters", {{"rope_type", "mrope"}, {"rope_theta", 1.0}}}}, "'rope_type' is \"mrope\"");
  refused("llama", {{"rope_parameters", {{"rope_type", "linear"}}}}, "'factor' is missing");
  refused("llama", {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}, {"secret", 1}}}},
          "'secret' is not known");
  refused("llama_longrope", {{"head_dim", 8}}, "longrope needs 4 numbers");
  refused("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}, "'scale_attn_by_inverse_layer_idx' is true");
  refused("gpt2", {{"activation_function", "relu"}}, "only \"gelu_new\" is built");
  refused("gpt2", {{"n_head", 3}}, "want dim = heads * head_dim");
  refused("mixtral", {{"router_jitter_noise", 0.1}}, "'router_jitter_noise'");
  refused("mixtral", {{"num_experts_per_tok", 9}}, "9 experts a token, of 4");
  refused("qwen2", {{"layer_types", {"full_attention"}}}, "want one for each of 2 layers");
  refused("qwen2", {{"layer_types", {"full_attention", "linear_attention"}}},
          "only full_attention and sliding_attention");
  expect_said([] { models::parse_config("{", "x.json"); }, "x.json: not JSON");
  expect_said([] { models::parse_config("[]", "x.json"); }, "x.json: want a JSON object");
  expect_said([] { models::read_config("/nowhere"); }, "'/nowhere' cannot be read: No such file");
  refused("llama_linear", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
          "rope_parameters says something else");
  expect_said(
      [] {
        models::parse_config(R"({"model_type": "qwen2", "num_hidden_layers": 1, "use_sliding_window": true,
                                 "sliding_window": null, "layer_types": ["sliding_attention"]})");
      },
      "there is no sliding_window");
  // What a file does not say is what transformers takes for it.
  const auto of = [](const std::string& json) { return models::parse_config(json); };
  const CausalLMConfig mixtral = of(R"({"model_type": "mixtral"})"), mistral = of(R"({"model_type": "mistral"})");
  EXPECT_EQ(mixtral.norm_eps, 1e-5);
  EXPECT_EQ(mixtral.kv_heads, 8);
  EXPECT_EQ(mistral.windows, std::vector<std::int64_t>{4096});
  EXPECT_EQ(mistral.mlp_dim, 14'336);
  EXPECT_EQ(of(R"({"model_type": "mistral", "sliding_window": null})").windows, std::vector<std::int64_t>{0});
  EXPECT_EQ(of(R"({"model_type": "mistral", "num_key_value_heads": null})").kv_heads, 32);
  EXPECT_EQ(of(R"({"model_type": "qwen2"})").vocab, 151'936);
  const std::string moe =
      R"({"model_type": "qwen3_moe", "sliding_window": 3, "max_window_layers": 20, "use_sliding_window": )";
  EXPECT_EQ(of(moe + "true}").windows, std::vector<std::int64_t>{3});  // all layers
  EXPECT_EQ(of(moe + "false}").windows, std::vector<std::int64_t>{0});
  EXPECT_EQ(of(moe + "true}").head_dim, 64);
  const std::string yarn =
      R"({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0,
    "original_max_position_embeddings": 32, "truncate": null}, "original_max_position_embeddings": 16})";
  EXPECT_EQ(of(yarn).rope.beta_fast, 32);
  EXPECT_FALSE(of(yarn).rope.truncate);
  EXPECT_EQ(of(yarn).rope.original_max_positions, 16);
  // Older files say the same in other words.
  const CausalLMConfig old = models::parse_config(changed(
      "llama_linear",
      {{"rope_parameters", nullptr}, {"rope_theta", 100.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}));
  EXPECT_EQ(old.rope, models::read_config(kGoldens + "llama_linear.json").rope);
}

std::string llama(const std::string& type, int layers, int hidden, int heads, int kv, int mlp, int vocab,
                  const std::string& more = "") {
  return fmt::format(R"({{"model_type": "{}", "num_hidden_layers": {}, "hidden_size": {}, "num_attention_heads": {},
    "num_key_value_heads": {}, "intermediate_size": {}, "vocab_size": {}, "max_position_embeddings": 4096{}}})",
                     type, layers, hidden, heads, kv, mlp, vocab, more);
}

TEST(CausalLMConfig, NumbersOfParametersAreThoseOfTheModels) {
  const auto numel_of = [](const std::string& json) { return models::shape_of(models::parse_config(json)).numel(); };
  EXPECT_EQ(numel_of(R"({"model_type": "gpt2"})"), 124'439'808);
  EXPECT_EQ(numel_of(R"({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25})"), 1'557'611'200);
  EXPECT_EQ(numel_of(llama("llama", 32, 4096, 32, 32, 11008, 32000)), 6'738'415'616);   // Llama 2 7B
  EXPECT_EQ(numel_of(llama("llama", 32, 4096, 32, 8, 14336, 128256)), 8'030'261'248);   // Llama 3 8B
  EXPECT_EQ(numel_of(llama("llama", 80, 8192, 64, 8, 28672, 32000)), 68'976'648'192);   // Llama 2 70B
  EXPECT_EQ(numel_of(llama("mistral", 32, 4096, 32, 8, 14336, 32000)), 7'241'732'096);  // Mistral 7B
  EXPECT_EQ(numel_of(llama("qwen2", 28, 3584, 28, 4, 18944, 152064)), 7'615'616'512);   // Qwen2 7B
  EXPECT_EQ(numel_of(llama("qwen2", 24, 896, 14, 2, 4864, 151936, R"(, "tie_word_embeddings": true)")),
            494'032'768);                                                                // Qwen2 0.5B
  EXPECT_EQ(numel_of(llama("mixtral", 32, 4096, 32, 8, 14336, 32000)), 46'702'792'704);  // Mixtral 8x7B
  EXPECT_EQ(numel_of(llama("qwen3", 36, 4096, 32, 8, 12288, 151936)), 8'190'735'360);    // Qwen3 8B
}

TEST(CausalLM, WeightsThatDoNotFitChangeNothing) {
  const TemporaryFolder folder;
  write_folder("llama", folder.file("small"));
  write_folder("llama_biases_tied", folder.file("other"));
  const auto lacks = [&](const std::string& weights, std::string_view words) {
    CausalLM model = models::build(folder.file("small"));
    auto engine = initialize(model, R"({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1}}})");
    const auto weights_now = [&] {
      std::uint64_t hash = kNoBits;
      for (const auto& item : model->named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()));
      return hash;
    };
    const std::uint64_t before = weights_now();  // these are so small that they have values all the same
    expect_said([&] { models::load_weights(engine, model, folder.file(weights)); }, words);
    EXPECT_EQ(weights_now(), before);
  };
  // A head that is tied here and not in the file.
  CausalLM tied = models::build(folder.file("other"));
  auto engine = initialize(tied, R"({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1}}})");
  write_folder("llama_biases_tied", folder.file("same"), "", {{"lm_head.weight", "model.embed_tokens.weight"}});
  EXPECT_TRUE(models::load_weights(engine, tied, folder.file("same")).unexpected.empty());
  write_folder("llama_biases_tied", folder.file("untied"), "", {{"lm_head.weight", "-"}});
  expect_said(
      [&] { models::load_weights(engine, tied, folder.file("untied")); },
      "'model.embed_tokens.weight' and 'lm_head.weight' are one parameter of the model, and differ in the file");
  lacks("other", "q_proj.bias");
  lacks("nowhere", "nowhere");
  std::filesystem::resize_file(folder.file("small/model.safetensors"), 5000);
  lacks("small", "model.safetensors");
}

struct Curve {
  int ranks = 1, stage = 0;
  const char* store = "copying";
  int recompute_every = 0;
  bool deferred = false;
  int loss_rows = 3;
};

/// Three steps of twelve sequences, two of them ragged by masked targets: a hash of losses and weights.
std::uint64_t train(const std::string& name, const Curve& curve, Group group) {
  at::set_num_threads(1);
  CausalLMConfig config = models::read_config(kGoldens + name + ".json");
  config.recompute_every = curve.recompute_every;
  config.loss_rows = curve.loss_rows;
  at::manual_seed(3);
  CausalLM model = curve.deferred ? deferred_init([&] { return CausalLM(config); }) : CausalLM(config);
  const std::string json = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 12, "gradient_clipping": 0.5,
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
        "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
        "zerotorch": {{"store": "{}", "unit_numel": 300, "seed": 9}}}})",
      curve.stage, curve.store);
  auto engine = initialize(model, json, InitializeOptions{.group = group});
  std::uint64_t hash = kNoBits;
  for (int micro = 0; micro < 3 * 12 / curve.ranks; ++micro) {
    const int index = micro * curve.ranks + group.rank();
    const Tensor tokens =
        at::arange(9).add(5 * index).remainder(config.vocab).square().remainder(config.vocab).view({1, 9});
    Tensor targets = tokens.roll(-1, 1).clone();
    if (index % 5 == 0) targets.narrow(1, 0, 4).fill_(-100);
    engine.backward(model->loss(tokens, targets));
    engine.step();
  }
  for (const auto& item : model->named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()));
  return hash;
}

TEST(CausalLM, OneCurve) {
  // Dropout of GPT-2 and experts that some ranks do not use included.
  for (const char* name : {"gpt2", "llama", "mistral", "qwen3_moe_mixed"}) {
    const Curve curves[] = {
        {2, 0},
        {3, 1},
        {4, 2},
        {1, 3},
        {2, 3, "node_shared"},
        {3, 3},
        {4, 3, "node_shared", 1, true},
        {2, 3, "copying", 2, true},
        {1, 0, "copying", 1},
        {3, 2, "copying", 0, true},
    };
    for (const Curve& curve : curves) {
      expect_all_ok(spawn(curve.ranks, [&](Group group) {
        EXPECT_EQ(train(name, curve, group), train(name, {}, Group()))
            << name << ": " << curve.ranks << " ranks, stage " << curve.stage << ", " << curve.store << ", recompute "
            << curve.recompute_every << ", deferred " << curve.deferred;
      }));
    }
  }
}

TEST(CausalLM, WrongTokensAreErrors) {
  CausalLM gpt(models::read_config(kGoldens + "gpt2.json"));
  expect_said([&] { gpt(at::zeros({3}, at::kLong)); }, "got tokens of 1 dimensions");
  expect_said([&] { gpt(at::zeros({1, 3})); }, "dtype Float");
  expect_said([&] { gpt(at::zeros({1, 13}, at::kLong)); }, "13 tokens in a row; this model has learnt 12 positions");
  expect_said([&] { gpt->loss(at::zeros({1, 3}, at::kLong), at::zeros({1, 4}, at::kLong)); }, "3 tokens and 4 targets");
}

}  // namespace
}  // namespace zero::testing::causal_lm_test
