#include "models/families/gpt2.h"

#include <fmt/format.h>

namespace zero::models {
namespace {

class Gpt2Family final : public ModelFamily {
 public:
  const FamilyTraits& traits() const override { return traits_; }
  void read(ConfigReader& in, CausalLMConfig& config) const override {
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
  void write(const CausalLMConfig& config, nlohmann::json& out) const override {
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
  void check(const CausalLMConfig& c) const override {
    require_config(c.dim == c.heads * c.head_dim && c.heads == c.kv_heads,
                   fmt::format("gpt2 with dim {}, {} heads and head_dim {}: want dim = heads * head_dim", c.dim,
                               c.heads, c.head_dim));
  }
  std::shared_ptr<DecoderImpl> make_decoder(const CausalLMConfig& config) const override {
    return make_gpt2_decoder(config);
  }

 private:
  const FamilyTraits traits_{.model_type = "gpt2",
                             .architecture = "GPT2LMHeadModel",
                             .decoder = "transformer",
                             .embedding = "transformer.wte.weight",
                             .lora_targets = {"c_attn"},
                             .branch_end = ".c_proj.weight",
                             .learned_positions = true,
                             .transposed_linear = true};
};

}  // namespace

const ModelFamily& gpt2_family() {
  static const Gpt2Family family;
  return family;
}

}  // namespace zero::models
