#include "products/panels.h"

#include <ATen/Parallel.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "optim/kernels.h"

namespace zero::products {
namespace {

optim::StateFormat format_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? optim::StateFormat::kBFloat16 : optim::StateFormat::kFloat16;
}

constexpr std::int64_t kNarrowNbytes = 2;

/// Elements that a thread converts at least: less is not worth a second thread.
constexpr std::int64_t kGrainNumel = 1 << 15;

/// f(offset in `from`, offset in `to`, elements) for lines of `length` adjacent elements whose beginnings are so many
/// elements apart; for runs of lines without gaps at once.
template <class F>
void for_lines(std::int64_t lines, std::int64_t length, std::int64_t from_stride, std::int64_t to_stride, const F& f) {
  if (lines > 1 && from_stride == length && to_stride == length) {
    at::parallel_for(0, lines * length, kGrainNumel,
                     [&](std::int64_t begin, std::int64_t end) { f(begin, begin, end - begin); });
    return;
  }
  at::parallel_for(0, lines, std::max<std::int64_t>(1, kGrainNumel / length),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) f(i * from_stride, i * to_stride, length);
                   });
}

/// Not from libtorch's allocator: it stays from step to step, and is no activation.
struct Scratch {
  std::unique_ptr<float, decltype(&std::free)> memory{nullptr, &std::free};
  std::int64_t numel = 0;
};

}  // namespace

bool Matrix::fits(const at::Tensor& tensor) {
  return tensor.stride(0) == 1 || tensor.stride(1) == 1 || tensor.size(0) == 1 || tensor.size(1) == 1;
}

Matrix Matrix::of(const at::Tensor& tensor) {
  Matrix matrix{static_cast<const char*>(tensor.const_data_ptr()),
                tensor.scalar_type(),
                tensor.size(0),
                tensor.size(1),
                tensor.stride(0),
                tensor.stride(1)};
  // A row or a column alone has a stride that nothing uses: the other one is the matrix's.
  if (matrix.rows == 1 && matrix.column_stride != 1) matrix.row_stride = 1;
  return matrix;
}

float* scratch(Slot slot, std::int64_t numel) {
  thread_local std::array<Scratch, static_cast<std::size_t>(Slot::kCount)> slots;
  Scratch& own = slots[static_cast<std::size_t>(slot)];
  if (own.numel < numel) {
    own.numel = 0;
    own.memory.reset();
    constexpr std::int64_t kLine = 16;
    const std::int64_t lines = (numel + kLine - 1) / kLine;
    own.memory.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(lines) * 64)));
    if (!own.memory) throw std::bad_alloc();
    own.numel = lines * kLine;
  }
  return own.memory.get();
}

at::Tensor view_of(float* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::int64_t extent = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) extent += std::max<std::int64_t>(sizes[d] - 1, 0) * strides[d];
  // Below the dispatcher: a view that libtorch makes costs more than a small product.
  c10::Storage storage(c10::Storage::use_byte_size_t{}, static_cast<std::size_t>(extent) * sizeof(float),
                       at::DataPtr(data, at::kCPU));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void widen(at::ScalarType dtype, const void* from, float* to, std::int64_t numel) {
  optim::kernels().widen_state(format_of(dtype), from, to, numel);
}

void narrow(at::ScalarType dtype, const float* from, void* to, std::int64_t numel) {
  optim::kernels().narrow_state(format_of(dtype), from, to, numel);
}

at::Tensor widen_panel(const Matrix& from, std::int64_t row, std::int64_t rows, std::int64_t column,
                       std::int64_t columns, Slot slot) {
  float* const to = scratch(slot, rows * columns);
  const char* const first = from.data + kNarrowNbytes * (row * from.row_stride + column * from.column_stride);
  const bool by_rows = from.columns_are_adjacent();
  const std::int64_t lines = by_rows ? rows : columns, length = by_rows ? columns : rows;
  for_lines(lines, length, by_rows ? from.row_stride : from.column_stride, length,
            [&](std::int64_t at, std::int64_t into, std::int64_t numel) {
              widen(from.dtype, first + kNarrowNbytes * at, to + into, numel);
            });
  return by_rows ? view_of(to, {rows, columns}, {columns, 1}) : view_of(to, {rows, columns}, {1, rows});
}

void narrow_panel(const at::Tensor& from, char* to, at::ScalarType dtype, std::int64_t to_row_stride) {
  const std::int64_t columns = from.size(1);
  const float* const first = from.const_data_ptr<float>();
  for_lines(from.size(0), columns, columns, to_row_stride, [&](std::int64_t at, std::int64_t into, std::int64_t numel) {
    narrow(dtype, first + at, to + kNarrowNbytes * into, numel);
  });
}

at::Tensor widened_in(Slot slot, const at::Tensor& tensor) {
  float* const to = scratch(slot, tensor.numel());
  const at::Tensor dense = tensor.contiguous();
  const char* const from = static_cast<const char*>(dense.const_data_ptr());
  at::parallel_for(0, dense.numel(), kGrainNumel, [&](std::int64_t begin, std::int64_t end) {
    widen(dense.scalar_type(), from + kNarrowNbytes * begin, to + begin, end - begin);
  });
  return view_of(to, tensor.sizes(), c10::contiguous_strides(tensor.sizes()));
}

}  // namespace zero::products
