// The CPU's fused attention, a few heads at a time.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "products/panels.h"
#include "products/registry.h"

namespace zero::products {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// Samples [sample, sample + samples) and heads [head, head + heads) of tensors [samples, heads, ...].
struct Part {
  std::int64_t sample, samples, head, heads;

  Tensor of(const Tensor& tensor) const { return tensor.narrow(0, sample, samples).narrow(1, head, heads); }
  Tensor widened(const Tensor& tensor) const { return wide_copy(of(tensor)); }

  /// Of a mask, which may have one sample or head for all, or neither dimension.
  OptionalTensor widened(const OptionalTensor& mask) const {
    if (!mask || !mask->defined()) return mask;
    Tensor part = *mask;
    if (part.dim() == 4 && part.size(0) > 1) part = part.narrow(0, sample, samples);
    if (part.dim() == 4 && part.size(1) > 1) part = part.narrow(1, head, heads);
    return part.to(at::kFloat);
  }
};

/// f(part) for parts of all of `query` of so few elements that their fp32 copies stay near the processor, and so many
/// heads that every thread has some. Queries that share heads of keys stay together.
template <class F>
void for_parts(const Tensor& query, const Tensor& key, const F& f) {
  const std::int64_t samples = query.size(0), heads = query.size(1);
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const std::int64_t head_numel = (query.size(2) + key.size(2)) * query.size(3);
  constexpr std::int64_t kPartNumel = 1 << 18;
  const std::int64_t most_heads =
      std::max<std::int64_t>(threads, kPartNumel * threads / std::max<std::int64_t>(head_numel, 1));
  if (most_heads >= heads || key.size(1) != heads) {
    const std::int64_t step = std::max<std::int64_t>(1, most_heads / heads);
    for (std::int64_t sample = 0; sample < samples; sample += step)
      f(Part{sample, std::min(step, samples - sample), 0, heads});
    return;
  }
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    for (std::int64_t head = 0; head < heads; head += most_heads)
      f(Part{sample, 1, head, std::min(most_heads, heads - head)});
  }
}

/// Of the sizes of `like`, [samples, heads, length, ...], with the heads of a position adjacent: what libtorch's kernel
/// makes of gradients.
Tensor empty_heads(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

bool takes_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  return is_taken(query) && query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type() &&
         query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.size(0) == key.size(0) &&
         query.size(0) == value.size(0) && key.size(1) == value.size(1) && query.size(3) == value.size(3) &&
         query.numel() > 0 && key.numel() > 0;
}

/// Its parts have their heads; those of keys as well.
Part of_keys(const Part& part, const Tensor& query, const Tensor& key) {
  return key.size(1) == query.size(1) ? part : Part{part.sample, part.samples, 0, key.size(1)};
}

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p,
                                     bool is_causal, const OptionalTensor& mask, std::optional<double> scale) {
  if (!takes_attention(query, key, value)) {
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, mask, scale);
  }
  Tensor out = at::empty_like(query);
  Tensor logsumexp =
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat)).transpose(1, 2);
  for_parts(query, key, [&](const Part& part) {
    const Part keys = of_keys(part, query, key);
    const auto [wide, sums] = at::cpu::_scaled_dot_product_flash_attention_for_cpu(
        part.widened(query), keys.widened(key), keys.widened(value), dropout_p, is_causal, part.widened(mask), scale);
    part.of(out).copy_(wide);
    part.of(logsumexp).copy_(sums);
  });
  return {out, logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                      const Tensor& value, const Tensor& out, const Tensor& logsumexp,
                                                      double dropout_p, bool is_causal, const OptionalTensor& mask,
                                                      std::optional<double> scale) {
  if (!takes_attention(query, key, value) || grad.scalar_type() != query.scalar_type()) {
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, out, logsumexp,
                                                                         dropout_p, is_causal, mask, scale);
  }
  Tensor grad_query = empty_heads(query), grad_key = empty_heads(key), grad_value = empty_heads(value);
  for_parts(query, key, [&](const Part& part) {
    const Part keys = of_keys(part, query, key);
    const auto [for_query, for_key, for_value] = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
        part.widened(grad), part.widened(query), keys.widened(key), keys.widened(value), part.widened(out),
        part.of(logsumexp), dropout_p, is_causal, part.widened(mask), scale);
    part.of(grad_query).copy_(for_query);
    keys.of(grad_key).copy_(for_key);
    keys.of(grad_value).copy_(for_value);
  });
  return {grad_query, grad_key, grad_value};
}

}  // namespace

void register_attention(torch::Library& cpu) {
  cpu.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  cpu.impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(attention_backward));
}

}  // namespace zero::products
