#include "models/families/llama.h"

#include <fmt/format.h>

#include "models/rope_config.h"

namespace zero::models {

void LlamaLikeFamily::read(ConfigReader& in, CausalLMConfig& config) const {
  config.vocab = in.get("vocab_size", defaults_.vocab);
  config.dim = in.get("hidden_size", defaults_.dim);
  config.layers = in.get("num_hidden_layers", defaults_.layers);
  config.heads = in.get<std::int64_t>("num_attention_heads", 32);
  // null: as many as heads; not there at all: the family's number.
  const std::int64_t kv_heads =
      in.is_null("num_key_value_heads") || defaults_.kv_heads == 0 ? config.heads : defaults_.kv_heads;
  config.kv_heads = in.get("num_key_value_heads", kv_heads);
  const std::int64_t head_dim = defaults_.head_dim > 0 ? defaults_.head_dim
                                : config.heads > 0     ? config.dim / config.heads
                                                       : 0;
  config.head_dim = in.get("head_dim", head_dim);
  config.mlp_dim = in.get("intermediate_size", defaults_.mlp_dim);
  config.max_positions = in.get("max_position_embeddings", defaults_.max_positions);
  config.norm_eps = in.get("rms_norm_eps", defaults_.norm_eps);
  config.tied = in.get("tie_word_embeddings", false);
  config.attention_dropout = in.get("attention_dropout", 0.0);
  in.require("hidden_act", "silu");
  config.rope = read_rope(in, defaults_.rope_theta);
}

void LlamaLikeFamily::write(const CausalLMConfig& config, nlohmann::json& out) const {
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
  out["rope_scaling"] = config.rope.type == Rope::Type::kDefault ? nlohmann::json() : rope_json(config.rope);
}

void LlamaLikeFamily::check(const CausalLMConfig& c) const {
  require_config(c.head_dim % 2 == 0, fmt::format("head_dim is {}: rotary embeddings turn pairs", c.head_dim));
  require_config(c.windows.size() == 1 || static_cast<std::int64_t>(c.windows.size()) == c.layers,
                 fmt::format("{} windows for {} layers, want one or one each", c.windows.size(), c.layers));
  require_config(c.windows.size() == 1 || traits().windows_by_layer,
                 fmt::format("{} has one window for all layers", traits().model_type));
  const auto pairs = static_cast<std::size_t>(c.head_dim / 2);
  require_config(c.rope.type != Rope::Type::kLongRope ||
                     (c.rope.long_factor.size() == pairs && c.rope.short_factor.size() == pairs),
                 fmt::format("longrope needs {} numbers in long_factor and in short_factor", pairs));
  require_config(c.rope.type == Rope::Type::kLongRope || c.rope.factor >= 1,
                 fmt::format("the rope's factor is {}, want 1 or more", c.rope.factor));
  if (c.experts.count == 0) return;
  require_config(c.experts.per_token >= 1 && c.experts.per_token <= c.experts.count,
                 fmt::format("{} experts a token, of {}", c.experts.per_token, c.experts.count));
  require_config(c.experts.mlp_dim > 0, "experts without an mlp_dim");
}

std::shared_ptr<DecoderImpl> LlamaLikeFamily::make_decoder(const CausalLMConfig& config) const {
  return make_llama_decoder(config);
}

namespace {

class LlamaFamily final : public LlamaLikeFamily {
 public:
  LlamaFamily() : LlamaLikeFamily({.model_type = "llama", .architecture = "LlamaForCausalLM"}, {}) {}
  void read(ConfigReader& in, CausalLMConfig& config) const override {
    LlamaLikeFamily::read(in, config);
    config.attention_bias = config.output_bias = in.get("attention_bias", false);
    config.mlp_bias = in.get("mlp_bias", false);
    in.require("pretraining_tp", 1);
  }
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
    LlamaLikeFamily::write(config, out);
    out["attention_bias"] = config.attention_bias;
    out["mlp_bias"] = config.mlp_bias;
  }
};

}  // namespace

const ModelFamily& llama_family() {
  static const LlamaFamily family;
  return family;
}

}  // namespace zero::models
