#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <optional>

#include "models/decoder.h"

namespace zero::models {

using at::Tensor;

namespace {

/// Attention of positions to themselves and what is before them; `window`: how many of them, 0: all. q [B, heads, T,
/// head_dim]; k, v [B, kv_heads, length, head_dim], whose last T positions are those of q. -> [B, T, heads * head_dim].
Tensor attend_all(const Tensor& q, Tensor k, Tensor v, std::int64_t window, double dropout) {
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

}  // namespace

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const DocumentsPtr& documents, std::int64_t window,
              double dropout) {
  if (!documents) return attend_all(q, k, v, window, dropout);
  return documents->attend(q, k, v, [&](const Tensor& of_q, const Tensor& of_k, const Tensor& of_v) {
    return attend_all(of_q, of_k, of_v, window, dropout);
  });
}

}  // namespace zero::models
