#pragma once
// Rotary position embeddings with Hugging Face's scalings (modeling_rope_utils.py of transformers, in its arithmetic).
#include <ATen/core/Tensor.h>

#include <utility>

#include "zero/causal_lm.h"

namespace zero::models {

/// cos and sin by which positions [0, length) turn pairs of a head's elements, [length, head_dim] in the dtype and on
/// the device of `options`. Of "dynamic" and "longrope" they depend on `length`. Local.
std::pair<at::Tensor, at::Tensor> rotary_angles(const CausalLMConfig& config, std::int64_t length,
                                                const at::TensorOptions& options);
/// x [B, heads, T, head_dim], turned.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace zero::models
