#pragma once
// bf16 and fp16 as bits, widened exactly and narrowed with one rounding, to nearest even (NaN becomes the
// quiet NaN, as in PyTorch). Without branches and without subnormal fp32 arithmetic, so that the
// conversions become vector code and do not depend on the flush-to-zero mode.
#include <cstdint>

#include "base/device_code.h"

namespace zero::base {

#define ZERO_INLINE [[gnu::always_inline]] ZERO_DEVICE inline

struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

ZERO_INLINE float widen(float value) { return value; }
ZERO_INLINE double widen(double value) { return value; }
ZERO_INLINE std::int64_t widen(std::int64_t value) { return value; }
ZERO_INLINE float widen(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}
ZERO_INLINE float widen(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  const std::uint32_t normal = ((exponent + 112) << 23) | (mantissa << 13);
  const std::uint32_t special = 0x7f800000u | (mantissa << 13);
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(mantissa)) * 0x1p-24f;
  std::uint32_t bits = exponent == 0 ? __builtin_bit_cast(std::uint32_t, subnormal) : normal;
  bits = exponent == 31 ? special : bits;
  return __builtin_bit_cast(float, bits | sign);
}

ZERO_INLINE void narrow(float value, float& out) { out = value; }
ZERO_INLINE void narrow(double value, double& out) { out = value; }
ZERO_INLINE void narrow(std::int64_t value, std::int64_t& out) { out = value; }
ZERO_INLINE void narrow(float value, BFloat16& out) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
/// A bf16 parameter from its fp32 master: to nearest, ties away from zero, as optim/kernels.h says.
ZERO_INLINE BFloat16 round_parameter(float master) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, master);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? 0x7fc0u : (bits + 0x8000u) >> 16)};
}
ZERO_INLINE void narrow(float value, Float16& out) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 leaves one fp16 subnormal step as the last bit of the sum: the adder rounds for us.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
  const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000u;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  out.bits = static_cast<std::uint16_t>(result | sign);
}

#undef ZERO_INLINE

}  // namespace zero::base
