// A decoder of a family with a head on it.
#include "zero/lm/causal_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "models/decoder.h"
#include "models/families/family.h"
#include "models/layers.h"
#include "models/rotary.h"
#include "zero/errors.h"
#include "zero/init.h"
#include "zero/lm/lora.h"
#include "zero/lm/loss.h"

namespace zero::models {

using at::Tensor;

namespace {

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
  const ModelFamily& family = family_of(config);
  decoder_ = register_module(family.traits().decoder, family.make_decoder(config));
  if (!config.tied) head_ = register_module("lm_head", std::make_shared<LinearImpl>(config.dim, config.vocab, false));
  reset_parameters();
}

void CausalLMImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const double residual = config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.layers));
  const std::string_view branch_end = family_of(config).traits().branch_end;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    Tensor& parameter = item.value();
    if (parameter.dim() == 1) {
      parameter.fill_(name.ends_with(".weight") ? 1.0 : 0.0);  // only norms have 1-d weights
    } else {
      const bool ends_branch = !branch_end.empty() && name.ends_with(branch_end);
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
  const bool learns_positions = family_of(config).traits().learned_positions;
  shape.transformer = plan::Transformer{
      .style = learns_positions ? plan::Transformer::Style::kGpt : plan::Transformer::Style::kLlama,
      .layers = config.layers,
      .dim = config.dim,
      .heads = config.heads,
      .kv_heads = config.kv_heads,
      .head_dim = config.head_dim,
      .mlp_dim = config.experts.count > 0 ? config.experts.per_token * config.experts.mlp_dim : config.mlp_dim,
      .vocab = config.vocab,
      .seq = config.max_positions,
      .positions = learns_positions ? config.max_positions : 0,
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
