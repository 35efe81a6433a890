#pragma once
// Rotary position embeddings with Hugging Face's scalings (modeling_rope_utils.py of transformers, in its arithmetic).
#include <ATen/core/Tensor.h>

#include <utility>

#include "zero/lm/causal_lm.h"

namespace zero::models {

/// cos and sin by which positions [first, length) turn pairs of a head's elements, [length - first, head_dim] in the
/// dtype and on the device of `options`. Local.
std::pair<at::Tensor, at::Tensor> rotary_angles(const CausalLMConfig& config, std::int64_t first, std::int64_t length,
                                                const at::TensorOptions& options);
/// Whether positions turn in texts of both lengths by the same angles.
bool turn_alike(const CausalLMConfig& config, std::int64_t length, std::int64_t other);
/// x [B, heads, T, head_dim], turned.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace zero::models
