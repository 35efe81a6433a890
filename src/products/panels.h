#pragma once
// Panels of 16-bit matrices in fp32. A product whose operands are widened one cache-sized panel at a time costs little
// more than the product of fp32 matrices, and needs no fp32 copy of either operand.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace zero::products {

/// A matrix of bf16 or fp16 elements in memory, one of whose strides is 1. Strides in elements.
struct Matrix {
  const char* data = nullptr;
  at::ScalarType dtype = at::kBFloat16;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 0;

  /// `tensor`: 2-dimensional. True if one of its strides is 1; others are copied first.
  static bool fits(const at::Tensor& tensor);
  /// `tensor` must outlive the result.
  static Matrix of(const at::Tensor& tensor);
  bool columns_are_adjacent() const { return column_stride == 1 || columns == 1; }
};

/// Uninitialised fp32 memory of the calling thread, aligned to 64 bytes and reused from call to call. Valid until the
/// next call with the same `slot` in this thread. Throws std::bad_alloc.
enum class Slot : std::uint8_t { kLeft, kRight, kResult, kOther, kCount };
float* scratch(Slot slot, std::int64_t numel);

/// [sizes] of fp32 at `data`, which outlives it, with `strides`.
at::Tensor view_of(float* data, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Elements [row, row + rows) x [column, column + columns) of `from` in fp32, in scratch memory of `slot`. Its smaller
/// stride is in the same dimension as that of `from`. Runs in libtorch's threads.
at::Tensor widen_panel(const Matrix& from, std::int64_t row, std::int64_t rows, std::int64_t column,
                       std::int64_t columns, Slot slot);

/// Rounds the contiguous fp32 matrix `from` to nearest even into a matrix of as many rows and columns at `to`, whose
/// rows are `to_row_stride` elements apart. Runs in libtorch's threads.
void narrow_panel(const at::Tensor& from, char* to, at::ScalarType dtype, std::int64_t to_row_stride);

/// [numel] adjacent elements. In the calling thread.
void widen(at::ScalarType dtype, const void* from, float* to, std::int64_t numel);
void narrow(at::ScalarType dtype, const float* from, void* to, std::int64_t numel);

/// A contiguous fp32 copy of `tensor`, in the memory of `slot`. Runs in libtorch's threads.
at::Tensor widened_in(Slot slot, const at::Tensor& tensor);

/// A copy in fp32 in memory of its own, with the strides of `tensor`; undefined of an undefined one.
inline at::Tensor wide_copy(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(at::kFloat) : tensor; }
inline std::optional<at::Tensor> wide_copy(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(wide_copy(*tensor)) : tensor;
}

}  // namespace zero::products
