// config.json of Hugging Face: what has an effect is read, what is known to have none is passed over, and all else is
// refused by name.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "models/config_reader.h"
#include "models/families/family.h"
#include "zero/errors.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {
namespace {

using nlohmann::json;

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

json parse(const std::string& text, const std::string& where) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", where, error.what()));
  }
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

}  // namespace

bool CausalLMConfig::has_experts(std::int64_t layer) const {
  return experts.count > 0 && std::ranges::find(experts.dense_layers, layer) == experts.dense_layers.end();
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
    require_config(value > 0, fmt::format("{} is {}, want 1 or more", name, value));
  }
  require_config(
      c.heads % c.kv_heads == 0,
      fmt::format("heads ({}) is not a multiple of kv_heads ({}): each of these serves as many", c.heads, c.kv_heads));
  require_config(c.separator < c.vocab,
                 fmt::format("separator is {}, and the vocabulary has {}", c.separator, c.vocab));
  require_config(c.recompute_every >= 0, fmt::format("recompute_every is {}, want 0 or more", c.recompute_every));
  require_config(c.loss_rows >= 0, fmt::format("loss_rows is {}, want 0 or more", c.loss_rows));
  for (const double p : {c.embedding_dropout, c.attention_dropout, c.residual_dropout})
    require_config(p >= 0 && p < 1, fmt::format("a dropout is {}, want at least 0 and below 1", p));
  family_of(c).check(c);
}

CausalLMConfig parse_config(const std::string& text, const std::string& where) {
  const json object = parse(text, where);
  ConfigReader in(object, where);
  for (const std::string_view key : kWithoutEffect) in.pass_over(key);
  CausalLMConfig config;
  config.family = read_family(in);
  config.initializer_range = in.get("initializer_range", 0.02);
  in.require("add_cross_attention", false);
  if (in.has("quantization_config"))
    in.refuse("quantization_config", "only weights in floating point are trained here");
  family_of(config).read(in, config);
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
  out["model_type"] = family_of(config).traits().model_type;
  out["architectures"] = {family_of(config).traits().architecture};
  out["vocab_size"] = config.vocab;
  out["tie_word_embeddings"] = config.tied;
  out["initializer_range"] = config.initializer_range;
  family_of(config).write(config, out);
  return out.dump(2) + "\n";
}

}  // namespace zero::models
