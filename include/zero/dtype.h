#pragma once
// Element types of shards, buckets and collectives. Independent of libtorch.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero {

enum class DType : std::uint8_t { kByte, kFloat16, kBFloat16, kFloat32, kFloat64, kInt64 };

/// Size of one element in bytes.
constexpr std::size_t element_nbytes(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return "byte";
    case DType::kFloat16:
      return "fp16";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat64:
      return "fp64";
    case DType::kInt64:
      return "int64";
  }
  return "?";
}

}  // namespace zero
