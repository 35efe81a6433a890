#pragma once
// What the decoders of all families have in common.
#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/documents.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

/// From tokens to hidden states, after the last norm.
class DecoderImpl : public torch::nn::Module {
 public:
  /// tokens [B, T] -> [B, T, dim]; adds the router's logits [B * T, experts] of each layer that has one. `cache`: of
  /// the positions before, and takes these up; nullptr: there are none, and nobody wants them.
  virtual at::Tensor forward(const at::Tensor& tokens, std::vector<at::Tensor>& router_logits,
                             KeyValueCache* cache) = 0;
  /// Of tokens, [vocab, dim].
  virtual const at::Tensor& embedding() const = 0;
};

using DocumentsPtr = std::shared_ptr<const Documents>;

inline at::Tensor drop(const at::Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

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

inline bool runs_again(const torch::nn::Module& module, const CausalLMConfig& config, std::size_t layer) {
  return module.is_training() && config.recompute_every > 0 &&
         layer % static_cast<std::size_t>(config.recompute_every) == 0;
}

/// Attention of positions to themselves and what is before them, within documents; null: a sequence is one. `window`:
/// how many positions each sees, 0: all. q [B, heads, T, head_dim]; k, v [B, kv_heads, length, head_dim], whose last T
/// positions are those of q. -> [B, T, heads * head_dim].
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DocumentsPtr& documents,
                  std::int64_t window, double dropout);

}  // namespace zero::models
