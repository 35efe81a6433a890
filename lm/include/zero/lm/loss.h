#pragma once
// Losses that do not hold what they do not need.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zero {

struct LinearCrossEntropyOptions {
  /// Rows whose logits exist at a time; 0: as many as kLogitsNbytes hold.
  std::int64_t rows = 0;
  std::int64_t ignore_index = -100;  ///< targets that do not count
  /// Divides the sum of the losses; 0: the number of targets that count. Where micro-batches have different numbers of
  /// them, a divisor that all share makes every target count the same.
  double divisor = 0;
};

/// Of the fp32 logits that exist at a time.
inline constexpr std::int64_t kLogitsNbytes = std::int64_t{64} << 20;

/// Rows of `vocab` logits that linear_cross_entropy() computes at a time.
std::int64_t rows_at_a_time(std::int64_t vocab, const LinearCrossEntropyOptions& options = {});

/// Mean cross entropy, in nats per target that counts (or over `divisor`), of hidden * weight^T: what
///   cross_entropy(linear(hidden, weight).to(fp32).flatten(0, -2), targets.flatten())
/// gives, with the logits of some rows at a time only, in forward and backward. Where all rows fit at once it is these
/// operators, bit for bit. Else gradients are computed in the forward, a part of the rows at a time, and kept:
/// `hidden`'s in its dtype, the weight's in fp32, to which the parts' products are added; they are scaled in backward,
/// so that small gradients of fp16 are not lost. Gradients of gradients are refused (ModelError).
///
/// hidden [..., D] and weight [V, D] of the same floating-point dtype, targets [...] int64 in [0, V) or ignore_index.
/// Scalar, fp32; NaN where no target counts, as cross_entropy's (0 with a divisor). Throws ModelError for other shapes
/// and dtypes. Local; *collective* as any use of `weight` where that is a parameter of an engine.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace zero
