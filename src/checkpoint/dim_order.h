#pragma once
// Tensors whose elements lie in another order than their shape says.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::checkpoint {

/// Copies elements of `element` bytes that lie in `dim_order` (dimensions from the slowest to the fastest) at
/// `from` to row-major order at `to`. The buffers do not overlap.
void to_row_major(const std::byte* from, std::byte* to, const std::vector<std::int64_t>& shape,
                  const std::vector<int>& dim_order, std::size_t element);

/// The dimensions from the slowest to the fastest of a dense tensor with these strides; empty when that is
/// row-major.
std::vector<int> dim_order_of(const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& strides);

}  // namespace zero::checkpoint
