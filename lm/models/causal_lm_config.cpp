// config.json of Hugging Face: what has an effect is read, what is known to have none is passed over, and all else is
// refused by name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "zero/errors.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {
namespace {

using nlohmann::json;
using Family = CausalLMConfig::Family;

constexpr std::pair<Family, std::string_view> kFamilies[] = {
    {Family::kGpt2, "gpt2"},          {Family::kLlama, "llama"}, {Family::kMistral, "mistral"},
    {Family::kQwen2, "qwen2"},        {Family::kQwen3, "qwen3"}, {Family::kMixtral, "mixtral"},
    {Family::kQwen3Moe, "qwen3_moe"},
};

constexpr std::pair<Rope::Type, std::string_view> kRopeTypes[] = {
    {Rope::Type::kDefault, "default"}, {Rope::Type::kLinear, "linear"},     {Rope::Type::kDynamic, "dynamic"},
    {Rope::Type::kYarn, "yarn"},       {Rope::Type::kLongRope, "longrope"}, {Rope::Type::kLlama3, "llama3"},
};

/// Of tokens, generation, other tasks and bookkeeping: nothing that training looks at.
const std::set<std::string_view> kWithoutEffect = {
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cls_token_id",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
};

/// An object whose members are read by name; what nobody asked for is an error.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw ConfigError(fmt::format("{}: want a JSON object", where_));
  }

  bool has(const char* key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }
  /// There, and null.
  bool is_null(const char* key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    return found != object_.end() && found->is_null();
  }
  const json& at(const char* key) { return object_.at(key); }

  template <class T>
  T get(const char* key, T otherwise) {
    if (!has(key)) return otherwise;
    const json& value = object_.at(key);
    const bool fits = std::is_same_v<T, bool>          ? value.is_boolean()
                      : std::is_integral_v<T>          ? value.is_number_integer()
                      : std::is_floating_point_v<T>    ? value.is_number()
                      : std::is_same_v<T, std::string> ? value.is_string()
                                                       : value.is_array();
    if (!fits) refuse(key, "has another type");
    try {
      return value.get<T>();
    } catch (const json::exception&) {
      refuse(key, "has another type");
    }
  }
  template <class T>
  std::optional<T> find(const char* key) {
    return has(key) ? std::optional(get<T>(key, T())) : std::nullopt;
  }
  /// A key that is built for one value only.
  void require(const char* key, const json& only) {
    if (has(key) && object_.at(key) != only) refuse(key, fmt::format("only {} is built", only.dump()));
  }
  void pass_over(std::string_view key) { asked_.insert(std::string(key)); }

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: '{}' is {}: {}", where_, key, object_.at(key).dump(), why));
  }
  void check_all_known() const {
    for (const auto& [key, value] : object_.items()) {
      if (asked_.contains(key) || key.starts_with('_')) continue;  // _name_or_path and its like: where it came from
      throw ConfigError(
          fmt::format("{}: '{}' is not known: if it changes what the model computes, the model is not one "
                      "that is built here; if not, remove it",
                      where_, key));
    }
  }
  const std::string& where() const { return where_; }

 private:
  const json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> asked_;
};

std::string names_of_families() {
  std::vector<std::string_view> names;
  for (const auto& [family, name] : kFamilies) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Family family_of(Reader& in) {
  const auto name = in.get<std::string>("model_type", "");
  for (const auto& [family, known] : kFamilies) {
    if (name == known) return family;
  }
  throw ConfigError(
      fmt::format("{}: model_type is '{}', which is not built; there are {}", in.where(), name, names_of_families()));
}

/// `rope_scaling` of older files, `rope_parameters` of newer ones.
Rope read_rope(Reader& in, double default_theta) {
  Rope rope;
  rope.theta = in.get("rope_theta", default_theta);
  in.require("partial_rotary_factor", 1.0);
  in.require("rope_interleaved", false);
  const auto original = in.get<std::int64_t>("original_max_position_embeddings", 0);
  const bool is_new = in.has("rope_parameters") && !in.at("rope_parameters").empty();
  const bool is_old = in.has("rope_scaling") && !in.at("rope_scaling").empty();
  if (is_new && is_old && in.at("rope_parameters") != in.at("rope_scaling"))
    in.refuse("rope_scaling", "rope_parameters says something else; remove one of them");
  if (!is_new && !is_old) return rope;
  const char* const key = is_new ? "rope_parameters" : "rope_scaling";
  Reader part(in.at(key), fmt::format("{}: {}", in.where(), key));
  rope.theta = part.get("rope_theta", rope.theta);
  const auto old_name = part.get<std::string>("type", "default");
  const auto name = part.get<std::string>("rope_type", old_name);
  const auto* const known =
      std::ranges::find(kRopeTypes, std::string_view(name), [](const auto& t) { return t.second; });
  if (known == std::end(kRopeTypes)) {
    part.refuse(part.has("rope_type") ? "rope_type" : "type",
                "not built; there are default, linear, dynamic, yarn, longrope and llama3");
  }
  rope.type = known->first;
  part.require("partial_rotary_factor", 1.0);
  const auto inside = part.get<std::int64_t>("original_max_position_embeddings", 0);
  rope.original_max_positions = original > 0 ? original : inside;  // as transformers
  if (rope.type == Rope::Type::kDefault) {
    part.pass_over("factor");
    part.check_all_known();
    return rope;
  }
  if (rope.type != Rope::Type::kLongRope && !part.has("factor")) {
    throw ConfigError(fmt::format("{}: 'factor' is missing", part.where()));
  }
  rope.factor = part.get("factor", rope.type == Rope::Type::kLongRope ? 0.0 : 1.0);
  rope.attention_factor = part.find<double>("attention_factor");
  rope.beta_fast = part.get("beta_fast", rope.beta_fast);
  rope.beta_slow = part.get("beta_slow", rope.beta_slow);
  rope.mscale = part.find<double>("mscale");
  rope.mscale_all_dim = part.find<double>("mscale_all_dim");
  // As transformers, which takes these for numbers that are not given, and null for false.
  if (rope.beta_fast == 0) rope.beta_fast = Rope().beta_fast;
  if (rope.beta_slow == 0) rope.beta_slow = Rope().beta_slow;
  rope.truncate = part.get("truncate", !in.at(key).contains("truncate"));
  rope.low_freq_factor = part.get("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = part.get("high_freq_factor", rope.high_freq_factor);
  rope.long_factor = part.get("long_factor", rope.long_factor);
  rope.short_factor = part.get("short_factor", rope.short_factor);
  part.check_all_known();
  return rope;
}

/// By layer, of families that say for each which kind of attention it has.
std::vector<std::int64_t> read_windows(Reader& in, std::int64_t layers) {
  const bool uses = in.get("use_sliding_window", false);
  const auto window = in.get<std::int64_t>("sliding_window", in.is_null("sliding_window") ? 0 : 4096);
  const auto from = in.get<std::int64_t>("max_window_layers", 28);
  const auto types = in.get("layer_types", std::vector<std::string>());
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != layers) {
    in.refuse("layer_types", fmt::format("want one for each of {} layers", layers));
  }
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string type = !types.empty()                    ? types[static_cast<std::size_t>(i)]
                             : uses && window > 0 && i >= from ? "sliding_attention"
                                                               : "full_attention";
    if (type != "sliding_attention" && type != "full_attention")
      in.refuse("layer_types", "only full_attention and sliding_attention are built");
    if (type == "sliding_attention" && (!uses || window == 0))
      in.refuse("layer_types", "sliding_attention, where use_sliding_window is not true or there is no sliding_window");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  if (std::ranges::all_of(windows, [&](std::int64_t w) { return w == windows.front(); })) windows.resize(1);
  return windows;
}

void read_gpt2(Reader& in, CausalLMConfig& config) {
  config.vocab = in.get<std::int64_t>("vocab_size", 50'257);
  config.dim = in.get<std::int64_t>("n_embd", 768);
  config.layers = in.get<std::int64_t>("n_layer", 12);
  config.heads = config.kv_heads = in.get<std::int64_t>("n_head", 12);
  config.head_dim = config.heads > 0 ? config.dim / config.heads : 0;
  config.mlp_dim = in.get<std::int64_t>("n_inner", 4 * config.dim);
  config.max_positions = in.get<std::int64_t>("n_positions", 1024);
  config.norm_eps = in.get("layer_norm_epsilon", 1e-5);
  config.tied = in.get("tie_word_embeddings", true);
  config.attention_bias = config.output_bias = config.mlp_bias = true;
  config.embedding_dropout = in.get("embd_pdrop", 0.1);
  config.attention_dropout = in.get("attn_pdrop", 0.1);
  config.residual_dropout = in.get("resid_pdrop", 0.1);
  in.require("activation_function", "gelu_new");
  in.require("scale_attn_weights", true);
  in.require("scale_attn_by_inverse_layer_idx", false);
  in.require("reorder_and_upcast_attn", false);
}

void read_experts(Reader& in, CausalLMConfig& config) {
  Experts& experts = config.experts;
  if (config.family == Family::kMixtral) {
    experts.count = in.get<std::int64_t>("num_local_experts", 8);
    experts.per_token = in.get<std::int64_t>("num_experts_per_tok", 2);
    experts.mlp_dim = config.mlp_dim;
    in.require("router_jitter_noise", 0.0);
  } else {
    // transformers writes the one up to version 4 and the other from 5 on, and reads both.
    experts.count = in.get<std::int64_t>("num_experts", in.get<std::int64_t>("num_local_experts", 128));
    if (in.get<std::int64_t>("num_local_experts", experts.count) != experts.count)
      in.refuse("num_local_experts", fmt::format("num_experts is {}", experts.count));
    experts.per_token = in.get<std::int64_t>("num_experts_per_tok", 8);
    experts.mlp_dim = in.get<std::int64_t>("moe_intermediate_size", 768);
    experts.normalize = in.get("norm_topk_prob", false);
    const auto step = in.get<std::int64_t>("decoder_sparse_step", 1);
    if (step < 1) in.refuse("decoder_sparse_step", "want 1 or more");
    experts.dense_layers = in.get("mlp_only_layers", experts.dense_layers);
    for (std::int64_t i = 0; i < config.layers; ++i) {
      if ((i + 1) % step != 0) experts.dense_layers.push_back(i);
    }
    std::ranges::sort(experts.dense_layers);
    const auto rest = std::ranges::unique(experts.dense_layers);
    experts.dense_layers.erase(rest.begin(), rest.end());
  }
  const double factor = in.get("router_aux_loss_coef", 0.001);
  experts.loss_factor = in.get("output_router_logits", false) ? factor : 0;
}

void read_all_windows(Reader& in, CausalLMConfig& config) {
  switch (config.family) {
    case Family::kQwen2:
    case Family::kQwen3:
      config.windows = read_windows(in, config.layers);
      break;
    case Family::kQwen3Moe: {  // of all layers, whatever max_window_layers says
      const bool uses = in.get("use_sliding_window", false);
      const auto window = in.get<std::int64_t>("sliding_window", in.is_null("sliding_window") ? 0 : 4096);
      config.windows = {uses ? window : 0};
      for (const char* key : {"max_window_layers", "layer_types"}) in.pass_over(key);
      break;
    }
    case Family::kMistral:
      config.windows = {in.get<std::int64_t>("sliding_window", in.is_null("sliding_window") ? 0 : 4096)};
      break;
    case Family::kMixtral:
      config.windows = {in.get<std::int64_t>("sliding_window", 0)};
      break;
    default:
      break;
  }
}

/// What transformers takes for keys that a file does not have.
struct Defaults {
  std::int64_t vocab = 32'000, dim = 4096, layers = 32, kv_heads = 0, mlp_dim = 11'008, max_positions = 2048;
  double norm_eps = 1e-6, rope_theta = 10'000;
};

Defaults defaults_of(Family family) {
  switch (family) {
    case Family::kMistral:
      return {.kv_heads = 8, .mlp_dim = 14'336, .max_positions = 131'072};
    case Family::kMixtral:
      return {.kv_heads = 8, .mlp_dim = 14'336, .max_positions = 131'072, .norm_eps = 1e-5, .rope_theta = 1e6};
    case Family::kQwen2:
    case Family::kQwen3:
      return {.vocab = 151'936, .kv_heads = 32, .mlp_dim = 22'016, .max_positions = 32'768};
    case Family::kQwen3Moe:
      return {.vocab = 151'936, .dim = 2048, .layers = 24, .kv_heads = 4, .mlp_dim = 6144, .max_positions = 32'768};
    default:
      return {};
  }
}

void read_llama_family(Reader& in, CausalLMConfig& config) {
  const Family family = config.family;
  const Defaults defaults = defaults_of(family);
  config.vocab = in.get("vocab_size", defaults.vocab);
  config.dim = in.get("hidden_size", defaults.dim);
  config.layers = in.get("num_hidden_layers", defaults.layers);
  config.heads = in.get<std::int64_t>("num_attention_heads", 32);
  // null: as many as heads; not there at all: the family's number.
  const std::int64_t kv_heads =
      in.is_null("num_key_value_heads") || defaults.kv_heads == 0 ? config.heads : defaults.kv_heads;
  config.kv_heads = in.get("num_key_value_heads", kv_heads);
  const bool has_own_head_dim = family == Family::kQwen3;
  config.head_dim = in.get<std::int64_t>("head_dim", has_own_head_dim   ? 128
                                                     : config.heads > 0 ? config.dim / config.heads
                                                                        : 0);
  config.mlp_dim = in.get("intermediate_size", defaults.mlp_dim);
  config.max_positions = in.get("max_position_embeddings", defaults.max_positions);
  config.norm_eps = in.get("rms_norm_eps", defaults.norm_eps);
  config.tied = in.get("tie_word_embeddings", false);
  config.attention_dropout = in.get("attention_dropout", 0.0);
  in.require("hidden_act", "silu");
  config.rope = read_rope(in, defaults.rope_theta);
  const bool is_qwen3 = family == Family::kQwen3 || family == Family::kQwen3Moe;
  if (family == Family::kLlama || is_qwen3) {
    config.attention_bias = config.output_bias = in.get("attention_bias", false);
  }
  if (family == Family::kLlama) {
    config.mlp_bias = in.get("mlp_bias", false);
    in.require("pretraining_tp", 1);
  }
  if (family == Family::kQwen2) config.attention_bias = true;
  if (family == Family::kMixtral || family == Family::kQwen3Moe) read_experts(in, config);
  read_all_windows(in, config);
}

json parse(const std::string& text, const std::string& where) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", where, error.what()));
  }
}

json rope_json(const Rope& rope) {
  const auto* const name = std::ranges::find(kRopeTypes, rope.type, [](const auto& t) { return t.first; });
  json out = {{"rope_type", name->second}};
  if (rope.type != Rope::Type::kLongRope || rope.factor > 0) out["factor"] = rope.factor;
  if (rope.original_max_positions > 0) out["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.attention_factor) out["attention_factor"] = *rope.attention_factor;
  if (rope.type == Rope::Type::kYarn) {
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    if (rope.mscale) out["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) out["mscale_all_dim"] = *rope.mscale_all_dim;
    if (!rope.truncate) out["truncate"] = false;
  }
  if (rope.type == Rope::Type::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == Rope::Type::kLongRope) {
    out["long_factor"] = rope.long_factor;
    out["short_factor"] = rope.short_factor;
  }
  return out;
}

void write_gpt2(const CausalLMConfig& config, json& out) {
  out["architectures"] = {"GPT2LMHeadModel"};
  out["n_embd"] = config.dim;
  out["n_layer"] = config.layers;
  out["n_head"] = config.heads;
  out["n_inner"] = config.mlp_dim;
  out["n_positions"] = config.max_positions;
  out["layer_norm_epsilon"] = config.norm_eps;
  out["embd_pdrop"] = config.embedding_dropout;
  out["attn_pdrop"] = config.attention_dropout;
  out["resid_pdrop"] = config.residual_dropout;
  out["activation_function"] = "gelu_new";
}

void write_windows(const CausalLMConfig& config, json& out) {
  const auto widest = std::ranges::max(config.windows);
  out["use_sliding_window"] = widest > 0;
  out["sliding_window"] = widest > 0 ? json(widest) : json();
  if (config.family == Family::kQwen3Moe) return;
  json types = json::array();
  for (std::int64_t i = 0; i < config.layers; ++i)
    types.push_back(config.window_of(i) > 0 ? "sliding_attention" : "full_attention");
  out["layer_types"] = types;
}

void write_experts(const CausalLMConfig& config, json& out) {
  const Experts& experts = config.experts;
  out["num_experts_per_tok"] = experts.per_token;
  out["output_router_logits"] = experts.loss_factor > 0;
  if (experts.loss_factor > 0) out["router_aux_loss_coef"] = experts.loss_factor;
  if (config.family == Family::kMixtral) {
    out["num_local_experts"] = experts.count;
    return;
  }
  out["num_experts"] = experts.count;
  out["moe_intermediate_size"] = experts.mlp_dim;
  out["norm_topk_prob"] = experts.normalize;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = experts.dense_layers;
}

void write_llama_family(const CausalLMConfig& config, json& out) {
  static constexpr std::pair<Family, const char*> kClasses[] = {
      {Family::kLlama, "LlamaForCausalLM"},     {Family::kMistral, "MistralForCausalLM"},
      {Family::kQwen2, "Qwen2ForCausalLM"},     {Family::kQwen3, "Qwen3ForCausalLM"},
      {Family::kMixtral, "MixtralForCausalLM"}, {Family::kQwen3Moe, "Qwen3MoeForCausalLM"}};
  const Family family = config.family;
  const bool is_qwen3 = family == Family::kQwen3 || family == Family::kQwen3Moe;
  out["architectures"] = {std::ranges::find(kClasses, family, [](const auto& c) { return c.first; })->second};
  out["hidden_size"] = config.dim;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["intermediate_size"] = config.mlp_dim;
  out["max_position_embeddings"] = config.max_positions;
  out["rms_norm_eps"] = config.norm_eps;
  out["attention_dropout"] = config.attention_dropout;
  out["hidden_act"] = "silu";
  out.erase("rope_parameters");
  out["rope_theta"] = config.rope.theta;
  out["rope_scaling"] = config.rope.type == Rope::Type::kDefault ? json() : rope_json(config.rope);
  if (family == Family::kLlama || is_qwen3) out["attention_bias"] = config.attention_bias;
  if (family == Family::kLlama) out["mlp_bias"] = config.mlp_bias;
  if (family == Family::kQwen2 || is_qwen3) write_windows(config, out);
  if (family == Family::kMistral || family == Family::kMixtral)
    out["sliding_window"] = config.windows[0] > 0 ? json(config.windows[0]) : json();
  if (family == Family::kMixtral || family == Family::kQwen3Moe) write_experts(config, out);
}

/// As what config.json says; nothing else.
bool is_same_model(CausalLMConfig a, CausalLMConfig b) {
  for (CausalLMConfig* config : {&a, &b}) {
    config->recompute_every = config->loss_rows = 0;
    config->separator = -1;
    config->recompute_keep = KeptResults::kNone;
    config->source.clear();
  }
  return a == b;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw ConfigError(fmt::format("CausalLMConfig: {}", what));
}

}  // namespace

bool CausalLMConfig::has_experts(std::int64_t layer) const {
  return experts.count > 0 && std::ranges::find(experts.dense_layers, layer) == experts.dense_layers.end();
}

std::string_view family_name(Family family) {
  return std::ranges::find(kFamilies, family, [](const auto& f) { return f.first; })->second;
}

void check(const CausalLMConfig& c) {
  for (const auto& [name, value] : {std::pair("vocab", c.vocab),
                                    {"dim", c.dim},
                                    {"layers", c.layers},
                                    {"heads", c.heads},
                                    {"kv_heads", c.kv_heads},
                                    {"head_dim", c.head_dim},
                                    {"mlp_dim", c.mlp_dim},
                                    {"max_positions", c.max_positions}}) {
    require(value > 0, fmt::format("{} is {}, want 1 or more", name, value));
  }
  require(
      c.heads % c.kv_heads == 0,
      fmt::format("heads ({}) is not a multiple of kv_heads ({}): each of these serves as many", c.heads, c.kv_heads));
  require(c.separator < c.vocab, fmt::format("separator is {}, and the vocabulary has {}", c.separator, c.vocab));
  require(c.recompute_every >= 0, fmt::format("recompute_every is {}, want 0 or more", c.recompute_every));
  require(c.loss_rows >= 0, fmt::format("loss_rows is {}, want 0 or more", c.loss_rows));
  for (const double p : {c.embedding_dropout, c.attention_dropout, c.residual_dropout})
    require(p >= 0 && p < 1, fmt::format("a dropout is {}, want at least 0 and below 1", p));
  if (c.family == Family::kGpt2) {
    require(c.dim == c.heads * c.head_dim && c.heads == c.kv_heads,
            fmt::format("gpt2 with dim {}, {} heads and head_dim {}: want dim = heads * head_dim", c.dim, c.heads,
                        c.head_dim));
    return;
  }
  require(c.head_dim % 2 == 0, fmt::format("head_dim is {}: rotary embeddings turn pairs", c.head_dim));
  require(c.windows.size() == 1 || static_cast<std::int64_t>(c.windows.size()) == c.layers,
          fmt::format("{} windows for {} layers, want one or one each", c.windows.size(), c.layers));
  require(c.windows.size() == 1 || c.family == Family::kQwen2 || c.family == Family::kQwen3,
          fmt::format("{} has one window for all layers", family_name(c.family)));
  const auto pairs = static_cast<std::size_t>(c.head_dim / 2);
  require(c.rope.type != Rope::Type::kLongRope ||
              (c.rope.long_factor.size() == pairs && c.rope.short_factor.size() == pairs),
          fmt::format("longrope needs {} numbers in long_factor and in short_factor", pairs));
  require(c.rope.type == Rope::Type::kLongRope || c.rope.factor >= 1,
          fmt::format("the rope's factor is {}, want 1 or more", c.rope.factor));
  if (c.experts.count == 0) return;
  require(c.experts.per_token >= 1 && c.experts.per_token <= c.experts.count,
          fmt::format("{} experts a token, of {}", c.experts.per_token, c.experts.count));
  require(c.experts.mlp_dim > 0, "experts without an mlp_dim");
}

CausalLMConfig parse_config(const std::string& text, const std::string& where) {
  const json object = parse(text, where);
  Reader in(object, where);
  for (const std::string_view key : kWithoutEffect) in.pass_over(key);
  CausalLMConfig config;
  config.family = family_of(in);
  config.initializer_range = in.get("initializer_range", 0.02);
  in.require("add_cross_attention", false);
  if (in.has("quantization_config"))
    in.refuse("quantization_config", "only weights in floating point are trained here");
  config.family == Family::kGpt2 ? read_gpt2(in, config) : read_llama_family(in, config);
  in.check_all_known();
  config.source = text;
  try {
    check(config);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", where, error.what()));
  }
  return config;
}

CausalLMConfig read_config(const std::string& path) {
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored) ? path + "/config.json" : path;
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) throw IoError(fmt::format("'{}' cannot be read: {}", file, std::strerror(errno)));
  return parse_config(text.str(), file);
}

std::string to_json(const CausalLMConfig& config) {
  json out = json::object();
  if (!config.source.empty()) {
    if (is_same_model(parse_config(config.source), config)) return config.source;
    const json source = parse(config.source, "config.json");
    for (const auto& [key, value] : source.items()) {
      if (kWithoutEffect.contains(key)) out[key] = value;
    }
  }
  out["model_type"] = family_name(config.family);
  out["vocab_size"] = config.vocab;
  out["tie_word_embeddings"] = config.tied;
  out["initializer_range"] = config.initializer_range;
  config.family == Family::kGpt2 ? write_gpt2(config, out) : write_llama_family(config, out);
  return out.dump(2) + "\n";
}

}  // namespace zero::models
