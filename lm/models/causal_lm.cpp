// The decoders of causal_lm.h. Modules and parameters are called as in transformers.
#include "zero/lm/causal_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "models/documents.h"
#include "models/layers.h"
#include "models/rotary.h"
#include "zero/errors.h"
#include "zero/init.h"
#include "zero/lm/lora.h"
#include "zero/lm/loss.h"
#include "zero/recompute.h"

namespace zero::models {

using at::Tensor;
using Family = CausalLMConfig::Family;

/// From tokens to hidden states, after the last norm.
class DecoderImpl : public torch::nn::Module {
 public:
  /// tokens [B, T] -> [B, T, dim]; adds the router's logits [B * T, experts] of each layer that has one. `cache`: of
  /// the positions before, and takes these up; nullptr: there are none, and nobody wants them.
  virtual Tensor forward(const Tensor& tokens, std::vector<Tensor>& router_logits, KeyValueCache* cache) = 0;
  /// Of tokens, [vocab, dim].
  virtual const Tensor& embedding() const = 0;
};

namespace {

using DocumentsPtr = std::shared_ptr<const Documents>;

Tensor drop(const Tensor& x, double p, bool training) { return p > 0 && training ? at::dropout(x, p, true) : x; }

/// Registers the blocks as "<name>.0", "<name>.1" and so on.
template <class Block>
std::vector<std::shared_ptr<Block>> add_layers(torch::nn::Module& parent, const char* name,
                                               const CausalLMConfig& config) {
  std::vector<std::shared_ptr<Block>> blocks;
  const auto list = parent.register_module(name, std::make_shared<torch::nn::Module>());
  for (std::size_t i = 0; i < static_cast<std::size_t>(config.layers); ++i)
    blocks.push_back(list->register_module(std::to_string(i), std::make_shared<Block>(config, i)));
  return blocks;
}

bool runs_again(const torch::nn::Module& module, const CausalLMConfig& config, std::size_t layer) {
  return module.is_training() && config.recompute_every > 0 &&
         layer % static_cast<std::size_t>(config.recompute_every) == 0;
}

/// Attention of positions to themselves and what is before them; `window`: how many of them, 0: all. q [B, heads, T,
/// head_dim]; k, v [B, kv_heads, length, head_dim], whose last T positions are those of q. -> [B, T, heads * head_dim].
Tensor attend(const Tensor& q, Tensor k, Tensor v, std::int64_t window, double dropout) {
  const std::int64_t count = q.size(2), length = k.size(2), before = length - count;
  std::optional<Tensor> mask;  // true where a position sees another one
  bool is_causal = before == 0;
  if (count == 1) {  // sees whatever is in its window
    const std::int64_t seen = window == 0 ? length : std::min(window, length);
    k = k.narrow(2, length - seen, seen), v = v.narrow(2, length - seen, seen);
    is_causal = false;
  } else if (before > 0 || (window > 0 && length > window)) {
    const at::NoGradGuard no_grad;
    const at::TensorOptions on(q.device());
    const Tensor back = at::arange(before, length, on).unsqueeze(1) - at::arange(length, on).unsqueeze(0);
    mask = back.ge(0);
    if (window > 0) mask = mask->logical_and(back.lt(window));
    is_causal = false;
  }
  const Tensor y = at::scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, /*scale=*/std::nullopt,
                                                    /*enable_gqa=*/q.size(1) != k.size(1));
  return y.transpose(1, 2).reshape({q.size(0), count, -1});
}

/// The same by document; null: a sequence is one.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const DocumentsPtr& documents, std::int64_t window,
              double dropout) {
  if (!documents) return attend(q, k, v, window, dropout);
  return documents->attend(q, k, v, [&](const Tensor& of_q, const Tensor& of_k, const Tensor& of_v) {
    return attend(of_q, of_k, of_v, window, dropout);
  });
}

// ---- GPT-2

/// A linear map with the weight as GPT-2's files have it.
struct Conv1DImpl : AdaptableImpl {
  Conv1DImpl(std::int64_t in_in, std::int64_t out_in)
      : AdaptableImpl(in_in, out_in),
        weight(register_parameter("weight", at::empty({in, out}))),
        bias(register_parameter("bias", at::zeros({out}))) {}
  Tensor forward(const Tensor& x) {
    auto sizes = x.sizes().vec();
    const Tensor flat = at::addmm(bias, x.reshape({-1, sizes.back()}), weight);
    sizes.back() = weight.size(1);
    return adapted(x, flat.view(sizes));
  }
  Tensor weight;  // [in, out]
  Tensor bias;    // [out]
};

struct Gpt2AttentionImpl : torch::nn::Module {
  Gpt2AttentionImpl(const CausalLMConfig& of, std::int64_t which) : config(of), layer(which) {
    c_attn = register_module("c_attn", std::make_shared<Conv1DImpl>(of.dim, 3 * of.dim));
    c_proj = register_module("c_proj", std::make_shared<Conv1DImpl>(of.dim, of.dim));
  }
  Tensor forward(const Tensor& x, const DocumentsPtr& documents, KeyValueCache* cache) {
    const auto by_head = [&](const Tensor& part) {
      return part.view({x.size(0), x.size(1), config.heads, config.head_dim}).transpose(1, 2);
    };
    const std::vector<Tensor> parts = c_attn->forward(x).split(config.dim, 2);
    const Tensor q = by_head(parts[0]);
    Tensor k = by_head(parts[1]), v = by_head(parts[2]);
    if (cache) std::tie(k, v) = cache->append(layer, k, v);
    const Tensor y = attend(q, k, v, documents, /*window=*/0, is_training() ? config.attention_dropout : 0.0);
    return drop(c_proj->forward(y), config.residual_dropout, is_training());
  }
  CausalLMConfig config;
  std::size_t layer;
  std::shared_ptr<Conv1DImpl> c_attn, c_proj;
};

struct Gpt2MlpImpl : torch::nn::Module {
  explicit Gpt2MlpImpl(const CausalLMConfig& config) : dropout(config.residual_dropout) {
    c_fc = register_module("c_fc", std::make_shared<Conv1DImpl>(config.dim, config.mlp_dim));
    c_proj = register_module("c_proj", std::make_shared<Conv1DImpl>(config.mlp_dim, config.dim));
  }
  Tensor forward(const Tensor& x) {
    return drop(c_proj->forward(at::gelu(c_fc->forward(x), "tanh")), dropout, is_training());
  }
  double dropout;
  std::shared_ptr<Conv1DImpl> c_fc, c_proj;
};

struct Gpt2BlockImpl : torch::nn::Module {
  Gpt2BlockImpl(const CausalLMConfig& config, std::size_t layer) {
    ln_1 = register_module("ln_1", std::make_shared<LayerNormImpl>(config.dim, config.norm_eps));
    attn = register_module("attn", std::make_shared<Gpt2AttentionImpl>(config, layer));
    ln_2 = register_module("ln_2", std::make_shared<LayerNormImpl>(config.dim, config.norm_eps));
    mlp = register_module("mlp", std::make_shared<Gpt2MlpImpl>(config));
  }
  Tensor forward(const Tensor& x, const DocumentsPtr& documents, KeyValueCache* cache = nullptr) {
    const Tensor attended = x + attn->forward(ln_1->forward(x), documents, cache);
    return attended + mlp->forward(ln_2->forward(attended));
  }
  std::shared_ptr<LayerNormImpl> ln_1, ln_2;
  std::shared_ptr<Gpt2AttentionImpl> attn;
  std::shared_ptr<Gpt2MlpImpl> mlp;
};

class Gpt2Impl final : public DecoderImpl {
 public:
  explicit Gpt2Impl(const CausalLMConfig& config) : config_(config), again_{.keep = config.recompute_keep} {
    wte_ = register_module("wte", std::make_shared<EmbeddingImpl>(config.vocab, config.dim));
    wpe_ = register_module("wpe", std::make_shared<EmbeddingImpl>(config.max_positions, config.dim));
    blocks_ = add_layers<Gpt2BlockImpl>(*this, "h", config);
    ln_f_ = register_module("ln_f", std::make_shared<LayerNormImpl>(config.dim, config.norm_eps));
  }
  Tensor forward(const Tensor& tokens, std::vector<Tensor>&, KeyValueCache* cache) override {
    const std::int64_t before = cache ? cache->length() : 0, length = before + tokens.size(1);
    if (length > config_.max_positions) {
      throw ModelError(fmt::format("CausalLM: {} tokens in a row; this model has learnt {} positions", length,
                                   config_.max_positions));
    }
    const DocumentsPtr documents = cache ? nullptr : Documents::of(tokens, config_.separator);
    const Tensor places =
        wpe_->forward(documents ? documents->positions() : at::arange(before, length, tokens.options()));
    Tensor x = drop(wte_->forward(tokens) + places, config_.embedding_dropout, is_training());
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      x = runs_again(*this, config_, i) ? recompute_with(again_, blocks_[i], x, documents)
                                        : blocks_[i]->forward(x, documents, cache);
    return ln_f_->forward(x);
  }
  const Tensor& embedding() const override { return wte_->weight; }

 private:
  const CausalLMConfig config_;
  const RecomputeOptions again_;
  std::shared_ptr<EmbeddingImpl> wte_, wpe_;
  std::vector<std::shared_ptr<Gpt2BlockImpl>> blocks_;
  std::shared_ptr<LayerNormImpl> ln_f_;
};

// ---- Llama and what came of it

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const CausalLMConfig& of, std::size_t which)
      : config(of), layer(which), window(of.window_of(static_cast<std::int64_t>(which))) {
    const std::int64_t dim = config.dim, wide = config.heads * config.head_dim;
    const std::int64_t narrow = config.kv_heads * config.head_dim;
    q_proj = register_module("q_proj", std::make_shared<LinearImpl>(dim, wide, config.attention_bias));
    k_proj = register_module("k_proj", std::make_shared<LinearImpl>(dim, narrow, config.attention_bias));
    v_proj = register_module("v_proj", std::make_shared<LinearImpl>(dim, narrow, config.attention_bias));
    o_proj = register_module("o_proj", std::make_shared<LinearImpl>(wide, dim, config.output_bias));
    if (config.family != Family::kQwen3 && config.family != Family::kQwen3Moe) return;
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
  struct Names {
    const char *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
  };
  GatedMlpImpl(std::int64_t dim, std::int64_t inner, bool bias, const Names& names) {
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
      : options(config.experts), rounds_weights(config.family == Family::kQwen3Moe) {
    using Names = GatedMlpImpl::Names;
    const Names names = config.family == Family::kMixtral ? Names{"w1", "w3", "w2"} : Names{};
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
      const char* const name = config.family == Family::kMixtral ? "block_sparse_moe" : "mlp";
      routed = register_module(name, std::make_shared<RoutedMlpImpl>(config));
    } else {
      mlp = register_module(
          "mlp", std::make_shared<GatedMlpImpl>(config.dim, config.mlp_dim, config.mlp_bias, GatedMlpImpl::Names{}));
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

/// As the Switch Transformer's (arXiv 2101.03961, equations 4 to 6), over the tokens of all layers.
Tensor load_balancing_loss(const std::vector<Tensor>& router_logits, const Experts& options) {
  Tensor counts, chances;
  std::int64_t rows = 0;
  for (const Tensor& logits : router_logits) {
    const Tensor chance = logits.softmax(-1);
    const Tensor chosen = std::get<1>(chance.detach().topk(options.per_token, -1));
    const Tensor count = at::bincount(chosen.flatten(), {}, options.count).to(at::kFloat);
    const Tensor sum = chance.to(at::kFloat).sum(0);
    counts = counts.defined() ? counts + count : count;
    chances = chances.defined() ? chances + sum : sum;
    rows += logits.size(0);
  }
  const auto all = static_cast<double>(rows);
  return at::sum(counts / all * (chances / all)) * static_cast<double>(options.count);
}

}  // namespace

CausalLMImpl::CausalLMImpl(const CausalLMConfig& config_in) : config(config_in) {
  models::check(config);
  if (config.family == Family::kGpt2) {
    decoder_ = register_module("transformer", std::make_shared<Gpt2Impl>(config));
  } else {
    decoder_ = register_module("model", std::make_shared<LlamaImpl>(config));
  }
  if (!config.tied) head_ = register_module("lm_head", std::make_shared<LinearImpl>(config.dim, config.vocab, false));
  reset_parameters();
}

void CausalLMImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const double residual = config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.layers));
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    Tensor& parameter = item.value();
    if (parameter.dim() == 1) {
      parameter.fill_(name.ends_with(".weight") ? 1.0 : 0.0);  // only norms have 1-d weights
    } else {
      const bool ends_branch = config.family == Family::kGpt2 && name.ends_with(".c_proj.weight");
      parameter.normal_(0.0, ends_branch ? residual : config.initializer_range, at::detail::getDefaultCPUGenerator());
    }
  }
}

const Tensor& CausalLMImpl::head_weight() const {
  return head_ ? static_cast<LinearImpl&>(*head_).weight : decoder_->embedding();
}

void CausalLMImpl::check(const Tensor& tokens) const {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) < 1) {
    throw ModelError(fmt::format("CausalLM: got tokens of {} dimensions and dtype {}; want [B, T] of int64 with T >= 1",
                                 tokens.dim(), c10::toString(tokens.scalar_type())));
  }
}

Tensor CausalLMImpl::forward(const Tensor& tokens) {
  check(tokens);
  std::vector<Tensor> router_logits;
  return at::linear(decoder_->forward(tokens, router_logits, nullptr), head_weight());
}

Tensor CausalLMImpl::next_logits(const Tensor& tokens, KeyValueCache& cache) {
  check(tokens);
  if (tokens.is_cpu()) {
    const auto [least, largest] = at::aminmax(tokens);
    if (least.item<std::int64_t>() < 0 || largest.item<std::int64_t>() >= config.vocab) {
      throw ModelError(fmt::format("CausalLM: got tokens from {} to {}; the vocabulary has {}",
                                   least.item<std::int64_t>(), largest.item<std::int64_t>(), config.vocab));
    }
  }
  if (is_training()) throw ModelError("CausalLM: next_logits() in training mode, where dropout acts; call eval()");
  const at::NoGradGuard no_grad;
  if (cache.length() > 0 && !turn_alike(config, cache.length(), cache.length() + tokens.size(1))) {
    // What layers have made of the text so far is of other angles.
    KeyValueCache again;
    const Tensor logits = next_logits(cache.with(tokens), again);
    cache = again;
    return logits;
  }
  std::vector<Tensor> router_logits;
  const Tensor hidden = decoder_->forward(tokens, router_logits, &cache);
  cache.advance(tokens);
  return at::linear(hidden.select(1, -1), head_weight());
}

Tensor CausalLMImpl::loss(const Tensor& tokens, const Tensor& targets, double divisor) {
  check(tokens);
  if (!targets.sizes().equals(tokens.sizes())) {
    throw ModelError(
        fmt::format("CausalLM: got {} tokens and {} targets; want the same shape", tokens.numel(), targets.numel()));
  }
  std::vector<Tensor> router_logits;
  const Tensor hidden = decoder_->forward(tokens, router_logits, nullptr);
  Tensor loss = linear_cross_entropy(hidden, head_weight(), targets, {.rows = config.loss_rows, .divisor = divisor});
  if (config.experts.loss_factor == 0 || router_logits.empty() || !is_training()) return loss;
  return loss + config.experts.loss_factor * load_balancing_loss(router_logits, config.experts);
}

namespace {

plan::ModelShape shape_of_model(CausalLM& model, const std::string& name) {
  const CausalLMConfig& config = model->config;
  plan::ModelShape shape = plan::shape_of(ModelView::of(model.ptr()), name);
  const bool is_gpt2 = config.family == Family::kGpt2;
  shape.transformer = plan::Transformer{
      .style = is_gpt2 ? plan::Transformer::Style::kGpt : plan::Transformer::Style::kLlama,
      .layers = config.layers,
      .dim = config.dim,
      .heads = config.heads,
      .kv_heads = config.kv_heads,
      .head_dim = config.head_dim,
      .mlp_dim = config.experts.count > 0 ? config.experts.per_token * config.experts.mlp_dim : config.mlp_dim,
      .vocab = config.vocab,
      .seq = config.max_positions,
      .positions = is_gpt2 ? config.max_positions : 0,
      .tied = config.tied,
      .qkv_bias = config.attention_bias,
      .dropout = config.residual_dropout > 0,
      .fused_attention = config.attention_dropout == 0,  // libtorch's fused kernel for the CPU knows no dropout
      .checkpointing = config.recompute_every > 0,
      .checkpoint_every = std::max<std::int64_t>(1, config.recompute_every),
      .kept = config.recompute_keep,
      .separate_documents = config.separator >= 0,
      .loss_rows = rows_at_a_time(config.vocab, {.rows = config.loss_rows})};
  shape.deferred_init = true;
  return shape;
}

}  // namespace

plan::ModelShape shape_of(const CausalLMConfig& config, const std::string& name) {
  CausalLM model = deferred_init([&] { return CausalLM(config); }, {.without_values = true});
  return shape_of_model(model, name);
}

plan::ModelShape shape_of(const CausalLMConfig& config, const LoraOptions& lora, const std::string& name) {
  CausalLM model = deferred_init([&] { return CausalLM(config); }, {.without_values = true});
  add_lora(model, lora);
  return shape_of_model(model, name);
}

}  // namespace zero::models
