#pragma once
// A hash of bits, for curves that must be the same.
#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>

namespace zero::testing {

/// `hash` with the elements of an fp32 tensor, in their order.
inline std::uint64_t hash_with(std::uint64_t hash, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const auto* values = flat.const_data_ptr<float>();  // of another dtype: an error, also where there are none
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    hash = (hash ^ std::bit_cast<std::uint32_t>(values[i])) * 1099511628211ull;
  return hash;
}
inline constexpr std::uint64_t kNoBits = 1469598103934665603ull;

}  // namespace zero::testing
