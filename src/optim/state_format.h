#pragma once
// How the elements of an optimizer's states lie in memory, and those of gradients and parameters that are sent in
// fewer bits. Updates compute in fp32; what is kept in less is widened before and narrowed after them
// (optim/staged_update.h). No libtorch.
//
// The 8-bit formats are block-wise dynamic quantisation (Dettmers et al., 8-bit Optimizers via Block-wise
// Quantization, 2022) with blocks that no parameter, shard or bucket cuts. A block of 64 elements is its
// largest magnitude, fp32, and 64 codes; a code stands for a fraction of that largest one. Fractions lie in
// seven decades, 1e-6 to 1, and each decade has twice the evenly spaced ones of the decade below. The largest
// element is always exact, so narrowing what was widened gives the same bytes.
//
// kLinear4 has the same blocks: the largest magnitude and 32 bytes. Byte i has the code of element i in its lower half
// and that of element i + 32 in its upper one; a code is a sign and a magnitude in sevenths of the largest one.
#include <cstdint>

#include "zero/dtype.h"

namespace zero::optim {

enum class StateFormat : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kDynamic8,          ///< signed: 127 fractions; an error of at most 0.71 % of the block's largest element
  kDynamic8Unsigned,  ///< 254 fractions, 0.36 %; what is above zero stays above zero
  kLinear4,           ///< signed: 7 fractions; an error of at most 7.2 % of the block's largest element. Not of states
};

/// Of kFloat32, kBFloat16, kFloat16.
constexpr StateFormat format_of(DType dtype) {
  return dtype == DType::kBFloat16  ? StateFormat::kBFloat16
         : dtype == DType::kFloat16 ? StateFormat::kFloat16
                                    : StateFormat::kFloat32;
}

/// The other way; not of quantised formats.
constexpr DType dtype_of(StateFormat format) {
  return format == StateFormat::kBFloat16  ? DType::kBFloat16
         : format == StateFormat::kFloat16 ? DType::kFloat16
                                           : DType::kFloat32;
}

inline constexpr std::int64_t kQuantizedBlockNumel = 64;

constexpr bool is_quantized(StateFormat format) { return format >= StateFormat::kDynamic8; }

/// Elements that lie together, and their bytes.
constexpr std::int64_t block_numel(StateFormat format) { return is_quantized(format) ? kQuantizedBlockNumel : 1; }
constexpr std::int64_t block_nbytes(StateFormat format) {
  switch (format) {
    case StateFormat::kFloat32:
      return 4;
    case StateFormat::kBFloat16:
    case StateFormat::kFloat16:
      return 2;
    case StateFormat::kDynamic8:
    case StateFormat::kDynamic8Unsigned:
      return kQuantizedBlockNumel + static_cast<std::int64_t>(sizeof(float));
    case StateFormat::kLinear4:
      return kQuantizedBlockNumel / 2 + static_cast<std::int64_t>(sizeof(float));
  }
  return 0;
}

/// Of [numel] elements, whole blocks.
constexpr std::int64_t nbytes_of(StateFormat format, std::int64_t numel) {
  return numel / block_numel(format) * block_nbytes(format);
}

}  // namespace zero::optim
