#pragma once
// The order in which a tensor's elements lie in a checkpoint: box after box, and in each box by dim_order. What a rank
// saves is a run of elements in this order, whatever the tensor is split over.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::checkpoint {

/// A part of a tensor: begin and end along each dimension.
using Box = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::vector<std::int64_t> shape_of(const Box& box);
std::int64_t numel_of(const Box& box);

struct ElementOrder {
  /// Together the whole tensor, without overlap, none of them empty. Empty: one box, the whole.
  std::vector<Box> boxes;
  /// Dimensions from the slowest to the fastest. Empty: row-major.
  std::vector<int> dim_order;

  bool is_row_major() const { return boxes.size() <= 1 && dim_order.empty(); }
  bool operator==(const ElementOrder&) const = default;
};

/// Most boxes of a tensor: so that readers of hostile files compare them in no time.
inline constexpr std::size_t kMostBoxes = 1024;

/// What is wrong with the order for a tensor of `shape`; empty: nothing.
std::string problem_with(const ElementOrder& order, const std::vector<std::int64_t>& shape);

/// Copies the elements of a tensor of `shape`, `element` bytes each, from `order` at `from` to row-major order at
/// `to`. The buffers do not overlap.
void to_row_major(const std::byte* from, std::byte* to, const std::vector<std::int64_t>& shape,
                  const ElementOrder& order, std::size_t element);

/// True when the elements of a dense tensor of this shape lie in one order only, whatever its strides.
bool has_one_order(const std::vector<std::int64_t>& shape);

/// The dimensions from the slowest to the fastest of a dense tensor with these strides; empty when that is
/// row-major.
std::vector<int> dim_order_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides);

}  // namespace zero::checkpoint
