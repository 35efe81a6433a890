#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "models/documents.h"
#include "models/layers.h"
#include "zero/errors.h"
#include "zero/lm/loss.h"
#include "zero/lm/models.h"
#include "zero/recompute.h"

namespace zero {
namespace {

void check_options(const GPTOptions& o) {
  if (o.layers < 1 || o.dim < 1 || o.heads < 1 || o.vocab < 1 || o.seq < 1) {
    throw ConfigError(fmt::format("GPT: got layers {}, dim {}, heads {}, vocab {}, seq {}; want all positive", o.layers,
                                  o.dim, o.heads, o.vocab, o.seq));
  }
  if (o.dim % o.heads != 0) {
    throw ConfigError(fmt::format("GPT: dim {} is not a multiple of heads {}; change one of them", o.dim, o.heads));
  }
  if (o.separator >= o.vocab)
    throw ConfigError(fmt::format("GPT: separator: got {}, and the vocabulary has {}", o.separator, o.vocab));
  if (o.recompute_every < 0) {
    throw ConfigError(fmt::format("GPT: recompute_every: got {}, want 0 or more", o.recompute_every));
  }
  if (!(o.dropout >= 0 && o.dropout < 1)) {
    throw ConfigError(fmt::format("GPT: dropout: got {}, want at least 0 and below 1", o.dropout));
  }
}

at::Tensor drop(const at::Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

}  // namespace

struct GPTBlockImpl : torch::nn::Module {
  explicit GPTBlockImpl(const GPTOptions& options) : heads(options.heads), dropout(options.dropout) {
    const std::int64_t d = options.dim;
    ln1 = register_module("ln1", std::make_shared<LayerNormImpl>(d));
    qkv = register_module("qkv", std::make_shared<LinearImpl>(d, 3 * d, true));
    proj = register_module("proj", std::make_shared<LinearImpl>(d, d, true));
    ln2 = register_module("ln2", std::make_shared<LayerNormImpl>(d));
    fc = register_module("fc", std::make_shared<LinearImpl>(d, 4 * d, true));
    out = register_module("out", std::make_shared<LinearImpl>(4 * d, d, true));
  }

  /// x [B, T, dim] -> [B, T, dim].
  at::Tensor forward(const at::Tensor& x, const std::shared_ptr<const models::Documents>& documents) {
    const at::Tensor attended = x + drop(proj->forward(attention(ln1->forward(x), documents)), dropout, is_training());
    const at::Tensor hidden = at::gelu(fc->forward(ln2->forward(attended)), "tanh");
    return attended + drop(out->forward(hidden), dropout, is_training());
  }

  at::Tensor attention(const at::Tensor& x, const std::shared_ptr<const models::Documents>& documents) {
    const std::int64_t batch = x.size(0), length = x.size(1), dim = x.size(2);
    const auto by_head = [&](const at::Tensor& part) {
      return part.view({batch, length, heads, dim / heads}).transpose(1, 2);
    };
    const std::vector<at::Tensor> parts = qkv->forward(x).split(dim, 2);
    const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      const at::Tensor y = at::scaled_dot_product_attention(q, k, v, std::nullopt, is_training() ? dropout : 0.0,
                                                            /*is_causal=*/true);
      return y.transpose(1, 2).reshape({q.size(0), q.size(2), dim});
    };
    const at::Tensor q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);
    return documents ? documents->attend(q, k, v, attend) : attend(q, k, v);
  }

  std::int64_t heads;
  double dropout;
  std::shared_ptr<LayerNormImpl> ln1, ln2;
  std::shared_ptr<LinearImpl> qkv, proj, fc, out;
};

GPTImpl::GPTImpl(const GPTOptions& options_in) : options(options_in) {
  check_options(options);
  wte_ = register_module("wte", std::make_shared<EmbeddingImpl>(options.vocab, options.dim));
  wpe_ = register_module("wpe", std::make_shared<EmbeddingImpl>(options.seq, options.dim));
  const auto list = register_module("h", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(list->register_module(std::to_string(i), std::make_shared<GPTBlockImpl>(options)));
  }
  lnf_ = register_module("lnf", std::make_shared<LayerNormImpl>(options.dim));
  if (!options.tied) {
    head_ = register_module("head", std::make_shared<LinearImpl>(options.dim, options.vocab, false));
  }
  reset_parameters();
}

void GPTImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 1) {
      parameter.fill_(name.ends_with(".weight") ? 1.0 : 0.0);  // only layer norms have 1-d weights
    } else {
      const bool ends_branch = name.ends_with(".proj.weight") || name.ends_with(".out.weight");
      parameter.normal_(0.0, ends_branch ? residual : 0.02, at::detail::getDefaultCPUGenerator());
    }
  }
}

at::Tensor GPTImpl::hidden(const at::Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) < 1 || tokens.size(1) > options.seq) {
    throw ModelError(fmt::format(
        "GPT: got tokens of {} dimensions, dtype {} and length {}; want [B, T] of int64 with "
        "1 <= T <= {}",
        tokens.dim(), c10::toString(tokens.scalar_type()), tokens.dim() > 0 ? tokens.size(-1) : 0, options.seq));
  }
  const auto documents = models::Documents::of(tokens, options.separator);
  const at::Tensor positions = documents ? documents->positions() : at::arange(tokens.size(1), tokens.options());
  const at::Tensor places = wpe_->forward(positions);  // first: what an expression leaves open is settled here
  at::Tensor x = drop(wte_->forward(tokens) + places, options.dropout, is_training());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const bool again = options.recompute_every > 0 && i % static_cast<std::size_t>(options.recompute_every) == 0;
    x = again && is_training() ? recompute_with({.keep = options.recompute_keep}, blocks_[i], x, documents)
                               : blocks_[i]->forward(x, documents);
  }
  return lnf_->forward(x);
}

const at::Tensor& GPTImpl::head_weight() const { return head_ ? head_->weight : wte_->weight; }

at::Tensor GPTImpl::forward(const at::Tensor& tokens) { return at::linear(hidden(tokens), head_weight()); }

at::Tensor GPTImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, double divisor) {
  if (!targets.sizes().equals(tokens.sizes())) {
    throw ModelError(
        fmt::format("GPT: got {} tokens and {} targets; want the same shape", tokens.numel(), targets.numel()));
  }
  return linear_cross_entropy(hidden(tokens), head_weight(), targets, {.divisor = divisor});
}

}  // namespace zero
