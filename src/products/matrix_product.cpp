#include "products/matrix_product.h"

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "products/panels.h"

namespace zero::products {
namespace {

/// Edge of a panel: 1 MB in fp32, so that the three of a product stay in a core's share of the cache. With more threads
/// each has a part of the panel, which therefore grows.
std::int64_t panel_edge() {
  constexpr std::int64_t kEdge = 512, kMostEdge = 2048;
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  std::int64_t edge = kEdge;
  while (edge < kMostEdge && edge * edge < kEdge * kEdge * threads) edge *= 2;
  return edge;
}

at::Tensor with_adjacent(const at::Tensor& tensor) { return Matrix::fits(tensor) ? tensor : tensor.contiguous(); }

/// One operand's panel, widened again only when another one is asked for.
class Panel {
 public:
  Panel(const Matrix& matrix, Slot slot) : matrix_(matrix), slot_(slot) {}

  const at::Tensor& at(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    if (!panel_.defined() || row != row_ || column != column_) {
      panel_ = widen_panel(matrix_, row, rows, column, columns, slot_);
      row_ = row;
      column_ = column;
    }
    return panel_;
  }

 private:
  Matrix matrix_;
  Slot slot_;
  at::Tensor panel_;
  std::int64_t row_ = 0, column_ = 0;
};

/// The result's panel in fp32, with the addend in it.
at::Tensor begin_result(const Addend& addend, const Matrix& added, std::int64_t row, std::int64_t rows,
                        std::int64_t column, std::int64_t columns) {
  if (addend.none()) return view_of(scratch(Slot::kResult, rows * columns), {rows, columns}, {columns, 1});
  at::Tensor result = widen_panel(added, row, rows, column, columns, Slot::kResult);
  if (addend.beta != 1) result.mul_(addend.beta);
  return result;
}

}  // namespace

void multiply(const at::Tensor& a, const at::Tensor& b, const Addend& addend, float alpha, const at::Tensor& out) {
  const at::Tensor left_tensor = with_adjacent(a), right_tensor = with_adjacent(b);
  at::Tensor added_tensor = addend.none() ? at::Tensor() : addend.tensor;
  // Rows of the result are adjacent, so those of what is added to it have to be, too.
  if (added_tensor.defined() && added_tensor.stride(1) != 1) added_tensor = added_tensor.contiguous();
  const Matrix added = added_tensor.defined() ? Matrix::of(added_tensor) : Matrix{};
  Panel left(Matrix::of(left_tensor), Slot::kLeft), right(Matrix::of(right_tensor), Slot::kRight);
  const std::int64_t rows = a.size(0), columns = b.size(1), depth = a.size(1), edge = panel_edge();
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  for (std::int64_t row = 0; row < rows; row += edge) {
    const std::int64_t height = std::min(edge, rows - row);
    for (std::int64_t column = 0; column < columns; column += edge) {
      const std::int64_t width = std::min(edge, columns - column);
      at::Tensor result = begin_result(addend, added, row, height, column, width);
      for (std::int64_t k = 0; k < depth; k += edge) {
        const std::int64_t length = std::min(edge, depth - k);
        at::cpu::addmm_outf(result, left.at(row, height, k, length), right.at(k, length, column, width),
                            k == 0 && addend.none() ? 0 : 1, alpha, result);
      }
      narrow_panel(result, to + out.element_size() * (row * columns + column), out.scalar_type(), columns);
    }
  }
}

namespace {

/// Matrices [B, R, C] that a product takes a few at a time.
class Batch {
 public:
  Batch(const at::Tensor& tensor, Slot slot)
      : tensor_(tensor.stride(1) == 1 || tensor.stride(2) == 1 ? tensor : tensor.contiguous()),
        slot_(slot),
        rows_(tensor.size(1)),
        columns_(tensor.size(2)),
        by_rows_(tensor_.stride(2) == 1) {}

  /// [count, R, C] in fp32: those from `first` on.
  at::Tensor widen_from(std::int64_t first, std::int64_t count) const {
    const std::int64_t numel = rows_ * columns_, lines = by_rows_ ? rows_ : columns_, length = numel / lines;
    const std::int64_t stride = by_rows_ ? tensor_.stride(1) : tensor_.stride(2), nbytes = tensor_.element_size();
    float* const to = scratch(slot_, count * numel);
    const char* const from = static_cast<const char*>(tensor_.const_data_ptr()) + nbytes * first * tensor_.stride(0);
    at::parallel_for(0, count, std::max<std::int64_t>(1, 32768 / numel), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t line = 0; line < lines; ++line) {
          widen(tensor_.scalar_type(), from + nbytes * (i * tensor_.stride(0) + line * stride),
                to + i * numel + line * length, length);
        }
      }
    });
    if (by_rows_) return view_of(to, {count, rows_, columns_}, {numel, columns_, 1});
    return view_of(to, {count, rows_, columns_}, {numel, 1, rows_});
  }

 private:
  at::Tensor tensor_;
  Slot slot_;
  std::int64_t rows_, columns_;
  bool by_rows_;
};

}  // namespace

void multiply_batch(const at::Tensor& a, const at::Tensor& b, const Addend& addend, float alpha,
                    const at::Tensor& out) {
  const std::int64_t count = a.size(0), rows = a.size(1), depth = a.size(2), columns = b.size(2), edge = panel_edge();
  const std::int64_t most_numel = edge * edge, largest = std::max({rows * depth, depth * columns, rows * columns});
  if (largest > most_numel || count == 1) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Addend of_one{addend.none() ? at::Tensor() : addend.tensor.select(0, i), addend.beta};
      multiply(a.select(0, i), b.select(0, i), of_one, alpha, out.select(0, i));
    }
    return;
  }
  const Batch left(a, Slot::kLeft), right(b, Slot::kRight);
  const std::int64_t most = std::max<std::int64_t>(1, most_numel / largest), numel = rows * columns;
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t some = std::min(most, count - first);
    at::Tensor result;
    if (addend.none()) {
      result = view_of(scratch(Slot::kResult, some * numel), {some, rows, columns}, {numel, columns, 1});
    } else {
      result = widened_in(Slot::kResult, addend.tensor.narrow(0, first, some));
      if (addend.beta != 1) result.mul_(addend.beta);
    }
    at::cpu::baddbmm_outf(result, left.widen_from(first, some), right.widen_from(first, some), addend.none() ? 0 : 1,
                          alpha, result);
    narrow_panel(view_of(result.mutable_data_ptr<float>(), {some * rows, columns}, {columns, 1}),
                 to + out.element_size() * first * numel, out.scalar_type(), columns);
  }
}

}  // namespace zero::products
