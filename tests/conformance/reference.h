#pragma once
// The ordered reduction once more, one element at a time and with no code of the library, and data for
// which the order of additions matters.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::testing {

/// Deterministic 64-bit mix (splitmix64).
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline float fp16_to_float(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31)
    return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

/// Rounds to nearest even by comparing with the two neighbours: slow and plain.
template <class ToFloat>
std::uint16_t round_by_search(float value, std::uint16_t infinity_bits, std::uint16_t nan_bits, ToFloat to_float) {
  if (std::isnan(value)) return nan_bits;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint16_t low = 0, high = infinity_bits;  // magnitudes are ordered like their bits
  while (high - low > 1) {
    const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(to_float(middle)) <= magnitude ? low : high) = middle;
  }
  const double below = to_float(low);
  // Beyond the largest finite value the next step counts as if the exponent went on.
  const double above =
      high == infinity_bits ? below + (below - static_cast<double>(to_float(low - 1))) : to_float(high);
  const double distance_below = magnitude - below, distance_above = above - magnitude;
  if (std::isinf(magnitude)) return sign | infinity_bits;
  const bool up = distance_above < distance_below || (distance_above == distance_below && (low & 1));
  return sign | (up ? high : low);
}

inline std::uint16_t float_to_bf16(float value) { return round_by_search(value, 0x7f80, 0x7fc0, bf16_to_float); }
inline std::uint16_t float_to_fp16(float value) {
  const std::uint16_t sign = std::isnan(value) && std::signbit(value) ? 0x8000 : 0;
  return sign | round_by_search(value, 0x7c00, 0x7e00, fp16_to_float);
}

/// A value between about 2^-12 and 2^12 of either sign, with a full mantissa.
inline double wild_value(std::uint64_t seed) {
  const std::uint64_t bits = mix(seed);
  const double mantissa = 1.0 + static_cast<double>(bits >> 12) * 0x1p-52;
  const int exponent = static_cast<int>(mix(seed ^ 0xabcdef) % 25) - 12;
  return (bits & 1 ? -1.0 : 1.0) * std::ldexp(mantissa, exponent);
}

/// `numel` elements of `dtype` for (rank, salt), as raw bytes.
inline std::vector<std::byte> wild_data(DType dtype, std::int64_t numel, int rank, std::uint64_t salt) {
  const std::size_t element = element_nbytes(dtype);
  std::vector<std::byte> data(static_cast<std::size_t>(numel) * element);
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::uint64_t seed = mix(salt * 1'000'003 + static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(i);
    std::byte* const at = data.data() + static_cast<std::size_t>(i) * element;
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
    switch (dtype) {
      case DType::kByte:
        put(static_cast<std::uint8_t>(mix(seed)));
        break;
      case DType::kFloat16:
        put(static_cast<std::uint16_t>(mix(seed) & 0xbfff));
        break;  // below 2, subnormals too
      case DType::kBFloat16:
        put(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(wild_value(seed))) >> 16));
        break;
      case DType::kFloat32:
        put(static_cast<float>(wild_value(seed)));
        break;
      case DType::kFloat64:
        put(wild_value(seed));
        break;
      case DType::kInt64:
        put(static_cast<std::int64_t>(mix(seed)));
        break;
    }
  }
  return data;
}

template <class T>
T element_at(const std::vector<std::byte>& data, std::int64_t index) {
  T value;
  std::memcpy(&value, data.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

inline float float_at(const std::vector<std::byte>& data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return fp16_to_float(element_at<std::uint16_t>(data, index));
    case DType::kBFloat16:
      return bf16_to_float(element_at<std::uint16_t>(data, index));
    default:
      return element_at<float>(data, index);
  }
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
      if constexpr (std::is_integral_v<T>)
        return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      return a + b;
    case ReduceOp::kMax:
      return b > a ? b : a;
    case ReduceOp::kMin:
      return b < a ? b : a;
  }
  return a;
}

/// base + in_0[begin + i] + in_1[begin + i] + ..., in that order. Without a base the first addend starts.
inline std::vector<std::byte> reduce_in_order(const std::vector<std::vector<std::byte>>& inputs, DType dtype,
                                              DType out_dtype, ReduceOp op, const std::vector<std::byte>* base,
                                              std::int64_t begin, std::int64_t numel) {
  std::vector<std::byte> out(static_cast<std::size_t>(numel) * element_nbytes(out_dtype));
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto put = [&](auto value) {
      std::memcpy(out.data() + static_cast<std::size_t>(i) * sizeof(value), &value, sizeof(value));
    };
    const auto fold = [&](auto start, auto read) {
      auto sum = start;
      for (std::size_t r = base ? 0 : 1; r < inputs.size(); ++r) sum = combine(op, sum, read(inputs[r]));
      return sum;
    };
    if (dtype == DType::kInt64) {
      const auto read = [&](const auto& data) { return element_at<std::int64_t>(data, begin + i); };
      put(fold(base ? element_at<std::int64_t>(*base, i) : read(inputs[0]), read));
    } else if (dtype == DType::kFloat64) {
      const auto read = [&](const auto& data) { return element_at<double>(data, begin + i); };
      put(fold(base ? element_at<double>(*base, i) : read(inputs[0]), read));
    } else {
      const auto read = [&](const auto& data) { return float_at(data, dtype, begin + i); };
      const float sum = fold(base ? element_at<float>(*base, i) : read(inputs[0]), read);
      if (out_dtype == DType::kBFloat16) put(float_to_bf16(sum));
      if (out_dtype == DType::kFloat16) put(float_to_fp16(sum));
      if (out_dtype == DType::kFloat32) put(sum);
    }
  }
  return out;
}

}  // namespace zero::testing
