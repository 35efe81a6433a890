#include "models/rotary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zero::models {
namespace {

using at::Tensor;

struct Frequencies {
  Tensor values;         ///< [head_dim / 2] fp32
  double magnitude = 1;  ///< of cos and sin
};

/// 2i / dim for i in [0, dim / 2).
Tensor exponents(std::int64_t dim) { return at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim); }

Tensor plain(double theta, std::int64_t dim) { return at::pow(theta, exponents(dim)).reciprocal(); }

std::int64_t original_length(const CausalLMConfig& c) {
  return c.rope.original_max_positions > 0 ? c.rope.original_max_positions : c.max_positions;
}

/// The base grows with the sequence (NTK-aware scaling).
Frequencies dynamic(const CausalLMConfig& c, std::int64_t length) {
  const auto most = static_cast<double>(c.max_positions), dim = static_cast<double>(c.head_dim);
  const double seen = std::max(static_cast<double>(length), most);
  const double growth = c.rope.factor * seen / most - (c.rope.factor - 1);
  return {plain(c.rope.theta * std::pow(growth, dim / (dim - 2)), c.head_dim)};
}

/// Fast turns stay, slow ones are stretched, with a ramp between (arXiv 2309.00071).
Frequencies yarn(const CausalLMConfig& c) {
  const Rope& rope = c.rope;
  const auto dim = static_cast<double>(c.head_dim), length = static_cast<double>(original_length(c));
  const auto dim_of_rotations = [&](double rotations) {
    return dim * std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = dim_of_rotations(rope.beta_fast), high = dim_of_rotations(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const Tensor ramp = ((at::arange(c.head_dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const Tensor kept = 1 - ramp;
  const Tensor wavelengths = at::pow(rope.theta, exponents(c.head_dim));
  const Tensor stretched = (wavelengths * rope.factor).reciprocal();
  const auto scale_of = [&](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  const bool both = rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0;
  const double magnitude = both ? scale_of(*rope.mscale) / scale_of(*rope.mscale_all_dim) : scale_of(1);
  return {stretched * (1 - kept) + wavelengths.reciprocal() * kept, rope.attention_factor.value_or(magnitude)};
}

/// A factor for each pair, other ones beyond the length of pretraining (arXiv 2402.13753).
Frequencies long_rope(const CausalLMConfig& c, std::int64_t length) {
  const Rope& rope = c.rope;
  const auto original = static_cast<double>(original_length(c));
  const double factor = rope.factor > 0 ? rope.factor : static_cast<double>(c.max_positions) / original;
  const double magnitude = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  const auto& factors = static_cast<double>(length) > original ? rope.long_factor : rope.short_factor;
  const Tensor stretch = at::tensor(factors, at::kDouble).to(at::kFloat);
  return {(stretch * at::pow(rope.theta, exponents(c.head_dim))).reciprocal(),
          rope.attention_factor.value_or(magnitude)};
}

/// As Llama 3.1: slow turns are stretched, those between interpolated.
Frequencies llama3(const CausalLMConfig& c) {
  const Rope& rope = c.rope;
  const auto length = static_cast<double>(original_length(c));
  const Tensor before = plain(rope.theta, c.head_dim);
  const Tensor wavelengths = 2 * std::numbers::pi / before;
  const Tensor is_slow = wavelengths > length / rope.low_freq_factor;
  const Tensor is_fast = wavelengths < length / rope.high_freq_factor;
  const Tensor stretched = at::where(is_slow, before / rope.factor, before);
  const Tensor smooth = (length / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const Tensor between = (1 - smooth) * stretched / rope.factor + smooth * stretched;
  return {at::where(is_slow.logical_or(is_fast), stretched, between)};
}

Frequencies frequencies(const CausalLMConfig& c, std::int64_t length) {
  switch (c.rope.type) {
    case Rope::Type::kLinear:
      return {plain(c.rope.theta, c.head_dim) / c.rope.factor};
    case Rope::Type::kDynamic:
      return dynamic(c, length);
    case Rope::Type::kYarn:
      return yarn(c);
    case Rope::Type::kLongRope:
      return long_rope(c, length);
    case Rope::Type::kLlama3:
      return llama3(c);
    case Rope::Type::kDefault:
      break;
  }
  return {plain(c.rope.theta, c.head_dim)};
}

}  // namespace

bool turn_alike(const CausalLMConfig& config, std::int64_t length, std::int64_t other) {
  if (config.rope.type == Rope::Type::kDynamic)
    return std::max(length, config.max_positions) == std::max(other, config.max_positions);
  if (config.rope.type != Rope::Type::kLongRope) return true;
  return (length > original_length(config)) == (other > original_length(config));
}

std::pair<Tensor, Tensor> rotary_angles(const CausalLMConfig& config, std::int64_t first, std::int64_t length,
                                        const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  const Frequencies of = frequencies(config, length);
  const Tensor once = at::arange(first, length, at::kFloat).unsqueeze(1) * of.values.unsqueeze(0);
  const Tensor angles = at::cat({once, once}, 1);
  return {(angles.cos() * of.magnitude).to(options), (angles.sin() * of.magnitude).to(options)};
}

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const std::vector<Tensor> halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

}  // namespace zero::models
