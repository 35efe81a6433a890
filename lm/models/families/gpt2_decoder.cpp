// GPT-2's decoder. Modules and parameters are called as in transformers.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "models/decoder.h"
#include "models/families/gpt2.h"
#include "models/layers.h"
#include "zero/errors.h"
#include "zero/recompute.h"

namespace zero::models {

using at::Tensor;

namespace {

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

}  // namespace

std::shared_ptr<DecoderImpl> make_gpt2_decoder(const CausalLMConfig& config) {
  return std::make_shared<Gpt2Impl>(config);
}

}  // namespace zero::models
