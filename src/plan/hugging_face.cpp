// Hugging Face's config.json.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

using nlohmann::json;

class Reader {
 public:
  Reader(const json& root, std::string_view source) : root_(root), source_(source) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw ConfigError(fmt::format("{}: {}", source_, problem));
  }
  bool has(const char* key) const { return root_.contains(key) && !root_.at(key).is_null(); }

  std::int64_t number(const char* key) const {
    if (!has(key)) fail(fmt::format("{}: missing; want a whole number", key));
    const json& value = root_.at(key);
    if (!value.is_number_integer()) fail(fmt::format("{}: got {}, want a whole number", key, value.dump()));
    const auto numel = value.get<std::int64_t>();
    if (numel < 1) fail(fmt::format("{}: got {}, want at least 1", key, numel));
    return numel;
  }
  std::int64_t number(const char* key, std::int64_t otherwise) const { return has(key) ? number(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!root_.at(key).is_boolean()) fail(fmt::format("{}: want true or false", key));
    return root_.at(key).get<bool>();
  }
  bool positive(const char* key, double otherwise) const {
    if (!has(key)) return otherwise > 0;
    if (!root_.at(key).is_number()) fail(fmt::format("{}: want a number", key));
    return root_.at(key).get<double>() > 0;
  }

 private:
  const json& root_;
  std::string_view source_;
};

/// Defaults are those of transformers.GPT2Config.
Transformer read_gpt2(const Reader& read) {
  Transformer t;
  t.style = Transformer::Style::kGpt;
  t.layers = read.number("n_layer", 12);
  t.dim = read.number("n_embd", 768);
  t.heads = read.number("n_head", 12);
  t.mlp_dim = read.number("n_inner", 4 * t.dim);
  t.vocab = read.number("vocab_size", 50257);
  t.positions = read.number("n_positions", 1024);
  t.seq = t.positions;
  t.tied = read.flag("tie_word_embeddings", true);
  t.dropout = read.positive("resid_pdrop", 0.1);
  return t;
}

Transformer read_llama(const Reader& read, const std::string& type) {
  Transformer t;
  t.style = Transformer::Style::kLlama;
  t.layers = read.number("num_hidden_layers");
  t.dim = read.number("hidden_size");
  t.heads = read.number("num_attention_heads");
  t.kv_heads = read.number("num_key_value_heads", t.heads);
  t.head_dim = read.number("head_dim", t.dim / t.heads);
  t.mlp_dim = read.number("intermediate_size");
  t.vocab = read.number("vocab_size");
  t.seq = read.number("max_position_embeddings");
  t.tied = read.flag("tie_word_embeddings", false);
  t.qkv_bias = type == "qwen2";
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (read.flag(key, false)) read.fail(fmt::format("{}: true is not known to the plan", key));
  }
  return t;
}

}  // namespace

ModelShape from_hugging_face(std::string_view text, std::string_view source) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Reader read(root, source);
  if (root.is_discarded()) read.fail("is not JSON");
  if (!root.is_object()) read.fail("want an object {...}");
  const std::string type = read.has("model_type") && root.at("model_type").is_string()
                               ? root.at("model_type").get<std::string>()
                               : std::string();
  const bool llama = type == "llama" || type == "mistral" || type == "qwen2";
  if (!llama && type != "gpt2") {
    read.fail(
        fmt::format("model_type: got '{}', want gpt2, llama, mistral or qwen2; for others give the "
                    "number of parameters, or layers and width",
                    type));
  }
  try {
    return transformer(llama ? read_llama(read, type) : read_gpt2(read), type);
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    if (what.starts_with(source)) throw;
    read.fail(what);
  }
}

}  // namespace zero::plan
