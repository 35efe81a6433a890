// The decoder of Llama and of what came of it. Modules and parameters are called as in transformers.
#include <ATen/Functions.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "models/decoder.h"
#include "models/families/family.h"
#include "models/families/llama.h"
#include "models/layers.h"
#include "models/rotary.h"
#include "zero/recompute.h"

namespace zero::models {

using at::Tensor;

namespace {

const FamilyTraits& traits_of(const CausalLMConfig& config) { return family_of(config).traits(); }

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const CausalLMConfig& of, std::size_t which)
      : config(of), layer(which), window(of.window_of(static_cast<std::int64_t>(which))) {
    const std::int64_t dim = config.dim, wide = config.heads * config.head_dim;
    const std::int64_t narrow = config.kv_heads * config.head_dim;
    q_proj = register_module("q_proj", std::make_shared<LinearImpl>(dim, wide, config.attention_bias));
    k_proj = register_module("k_proj", std::make_shared<LinearImpl>(dim, narrow, config.attention_bias));
    v_proj = register_module("v_proj", std::make_shared<LinearImpl>(dim, narrow, config.attention_bias));
    o_proj = register_module("o_proj", std::make_shared<LinearImpl>(wide, dim, config.output_bias));
    if (!traits_of(config).query_key_norms) return;
    q_norm = register_module("q_norm", std::make_shared<RmsNormImpl>(config.head_dim, config.norm_eps));
    k_norm = register_module("k_norm", std::make_shared<RmsNormImpl>(config.head_dim, config.norm_eps));
  }
  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin, const DocumentsPtr& documents,
                 KeyValueCache* cache) {
    const std::int64_t length = x.size(1);
    const auto by_head = [&](const Tensor& y, const std::shared_ptr<RmsNormImpl>& norm) {
      const Tensor heads = y.view({x.size(0), length, -1, config.head_dim});
      return (norm ? norm->forward(heads) : heads).transpose(1, 2);
    };
    const Tensor q = rotate(by_head(q_proj->forward(x), q_norm), cos, sin);
    Tensor k = rotate(by_head(k_proj->forward(x), k_norm), cos, sin);
    Tensor v = by_head(v_proj->forward(x), nullptr);
    if (cache) std::tie(k, v) = cache->append(layer, k, v);
    return o_proj->forward(attend(q, k, v, documents, window, is_training() ? config.attention_dropout : 0.0));
  }
  CausalLMConfig config;
  std::size_t layer;
  std::int64_t window;
  std::shared_ptr<LinearImpl> q_proj, k_proj, v_proj, o_proj;
  std::shared_ptr<RmsNormImpl> q_norm, k_norm;
};

struct GatedMlpImpl : torch::nn::Module {
  GatedMlpImpl(std::int64_t dim, std::int64_t inner, bool bias, const MlpNames& names) {
    gate = register_module(names.gate, std::make_shared<LinearImpl>(dim, inner, bias));
    up = register_module(names.up, std::make_shared<LinearImpl>(dim, inner, bias));
    down = register_module(names.down, std::make_shared<LinearImpl>(inner, dim, bias));
  }
  Tensor forward(const Tensor& x) { return down->forward(at::silu(gate->forward(x)) * up->forward(x)); }
  std::shared_ptr<LinearImpl> gate, up, down;
};

/// Each token goes to the experts that the router likes best for it.
struct RoutedMlpImpl : torch::nn::Module {
  explicit RoutedMlpImpl(const CausalLMConfig& config)
      : options(config.experts), rounds_weights(traits_of(config).rounds_expert_weights) {
    const MlpNames& names = traits_of(config).expert_names;
    gate = register_module("gate", std::make_shared<LinearImpl>(config.dim, options.count, false));
    const auto list = register_module("experts", std::make_shared<torch::nn::Module>());
    for (std::int64_t e = 0; e < options.count; ++e) {
      experts.push_back(list->register_module(
          std::to_string(e), std::make_shared<GatedMlpImpl>(config.dim, options.mlp_dim, false, names)));
    }
  }
  /// x [B, T, dim] -> that, and the router's logits [B * T, count].
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor tokens = x.reshape({-1, x.size(-1)});
    const Tensor logits = gate->forward(tokens);
    auto [weights, chosen] = logits.to(at::kFloat).softmax(-1).topk(options.per_token, -1);
    if (options.normalize) weights = weights / weights.sum(-1, true);
    if (rounds_weights) weights = weights.to(x.scalar_type());
    Tensor out = at::zeros_like(tokens);
    for (std::int64_t e = 0; e < options.count; ++e) {
      const Tensor where = at::nonzero(chosen.eq(e));  // [n, 2]: token, place among its experts
      if (where.size(0) == 0) continue;
      const Tensor token = where.select(1, 0);
      const Tensor result = experts[static_cast<std::size_t>(e)]->forward(tokens.index_select(0, token));
      const Tensor weight = weights.index({token, where.select(1, 1)}).unsqueeze(1);
      out = out.index_add(0, token, (result * weight).to(out.scalar_type()));
    }
    return {out.view(x.sizes()), logits};
  }
  Experts options;
  bool rounds_weights;
  std::shared_ptr<LinearImpl> gate;
  std::vector<std::shared_ptr<GatedMlpImpl>> experts;
};

struct LlamaBlockImpl : torch::nn::Module {
  LlamaBlockImpl(const CausalLMConfig& config, std::size_t layer) {
    self_attn = register_module("self_attn", std::make_shared<AttentionImpl>(config, layer));
    if (config.has_experts(static_cast<std::int64_t>(layer))) {
      routed = register_module(traits_of(config).routed_mlp, std::make_shared<RoutedMlpImpl>(config));
    } else {
      mlp = register_module("mlp",
                            std::make_shared<GatedMlpImpl>(config.dim, config.mlp_dim, config.mlp_bias, MlpNames{}));
    }
    input_layernorm = register_module("input_layernorm", std::make_shared<RmsNormImpl>(config.dim, config.norm_eps));
    post_attention_layernorm =
        register_module("post_attention_layernorm", std::make_shared<RmsNormImpl>(config.dim, config.norm_eps));
  }
  std::pair<Tensor, std::optional<Tensor>> forward(const Tensor& x, const Tensor& cos, const Tensor& sin,
                                                   const DocumentsPtr& documents, KeyValueCache* cache = nullptr) {
    const Tensor attended = x + self_attn->forward(input_layernorm->forward(x), cos, sin, documents, cache);
    const Tensor normed = post_attention_layernorm->forward(attended);
    if (mlp) return {attended + mlp->forward(normed), std::nullopt};
    auto [out, logits] = routed->forward(normed);
    // A part with one result has the same bits computed again.
    return {attended + out, routed->options.loss_factor > 0 ? std::optional(logits) : std::nullopt};
  }
  std::shared_ptr<AttentionImpl> self_attn;
  std::shared_ptr<GatedMlpImpl> mlp;      // or
  std::shared_ptr<RoutedMlpImpl> routed;  // one of them
  std::shared_ptr<RmsNormImpl> input_layernorm, post_attention_layernorm;
};

class LlamaImpl final : public DecoderImpl {
 public:
  explicit LlamaImpl(const CausalLMConfig& config) : config_(config), again_{.keep = config.recompute_keep} {
    embed_tokens_ = register_module("embed_tokens", std::make_shared<EmbeddingImpl>(config.vocab, config.dim));
    layers_ = add_layers<LlamaBlockImpl>(*this, "layers", config);
    norm_ = register_module("norm", std::make_shared<RmsNormImpl>(config.dim, config.norm_eps));
  }
  Tensor forward(const Tensor& tokens, std::vector<Tensor>& router_logits, KeyValueCache* cache) override {
    Tensor x = embed_tokens_->forward(tokens);
    const std::int64_t before = cache ? cache->length() : 0;
    const DocumentsPtr documents = cache ? nullptr : Documents::of(tokens, config_.separator);
    auto [cos, sin] =
        rotary_angles(config_, before, documents ? documents->longest() : before + tokens.size(1), x.options());
    if (documents) {  // [B, 1, T, head_dim], as all heads turn alike
      cos = cos.index({documents->positions()}).unsqueeze(1);
      sin = sin.index({documents->positions()}).unsqueeze(1);
    }
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      auto [out, logits] = runs_again(*this, config_, i) ? recompute_with(again_, layers_[i], x, cos, sin, documents)
                                                         : layers_[i]->forward(x, cos, sin, documents, cache);
      x = std::move(out);
      if (logits) router_logits.push_back(std::move(*logits));
    }
    return norm_->forward(x);
  }
  const Tensor& embedding() const override { return embed_tokens_->weight; }

 private:
  const CausalLMConfig config_;
  const RecomputeOptions again_;
  std::shared_ptr<EmbeddingImpl> embed_tokens_;
  std::vector<std::shared_ptr<LlamaBlockImpl>> layers_;
  std::shared_ptr<RmsNormImpl> norm_;
};

}  // namespace

std::shared_ptr<DecoderImpl> make_llama_decoder(const CausalLMConfig& config) {
  return std::make_shared<LlamaImpl>(config);
}

}  // namespace zero::models
