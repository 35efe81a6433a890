#include "checkpoint/element_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace zero::checkpoint {
namespace {

/// Row-major strides of a tensor of `shape`.
std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t next = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = next;
    next *= shape[d];
  }
  return strides;
}

/// Copies a box, whose elements lie in `dim_order` at `from`, to its place in the whole tensor, `to`.
void place(const std::byte* from, std::byte* to, const Box& box, const std::vector<std::int64_t>& whole_strides,
           const std::vector<int>& dim_order, std::size_t element) {
  const std::size_t dims = box.size();
  const auto shape = shape_of(box);
  std::vector<std::int64_t> stride(dims);  // of `from`, in elements, by dimension
  std::int64_t next = 1;
  for (std::size_t i = dims; i-- > 0;) {
    stride[dim_order[i]] = next;
    next *= shape[dim_order[i]];
  }
  // As many elements at once as lie side by side in both.
  const bool has_rows = dims > 0 && stride[dims - 1] == 1;
  const std::int64_t row = has_rows ? shape[dims - 1] : 1;
  const std::size_t outer = has_rows ? dims - 1 : dims;
  std::int64_t source = 0, target = 0;
  for (std::size_t d = 0; d < dims; ++d) target += box[d].first * whole_strides[d];
  std::vector<std::int64_t> index(dims, 0);
  for (std::int64_t done = 0; done < next; done += row) {
    std::memcpy(to + static_cast<std::size_t>(target) * element, from + static_cast<std::size_t>(source) * element,
                static_cast<std::size_t>(row) * element);
    for (std::size_t d = outer; d-- > 0;) {
      source += stride[d];
      target += whole_strides[d];
      if (++index[d] < shape[d]) break;
      source -= stride[d] * shape[d];
      target -= whole_strides[d] * shape[d];
      index[d] = 0;
    }
  }
}

Box whole_of(const std::vector<std::int64_t>& shape) {
  Box box;
  for (const std::int64_t size : shape) box.emplace_back(0, size);
  return box;
}

bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (a[d].second <= b[d].first || b[d].second <= a[d].first) return false;
  }
  return true;
}

std::string problem_with_boxes(const std::vector<Box>& boxes, const std::vector<std::int64_t>& shape) {
  if (boxes.size() > kMostBoxes) return fmt::format("has {} boxes, at most {} are read", boxes.size(), kMostBoxes);
  std::int64_t left = numel_of(whole_of(shape));
  for (const Box& box : boxes) {
    if (box.size() != shape.size()) return "has a box of another number of dimensions";
    for (std::size_t d = 0; d < box.size(); ++d) {
      if (box[d].first < 0 || box[d].first >= box[d].second || box[d].second > shape[d])
        return fmt::format("has a box that is empty or not inside it along dimension {}", d);
    }
    left -= numel_of(box);
    if (left < 0) break;
  }
  if (left != 0) return "has boxes that do not cover it once";
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(boxes[i], boxes[j])) return fmt::format("has boxes {} and {} that overlap", j, i);
    }
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> shape_of(const Box& box) {
  std::vector<std::int64_t> shape;
  for (const auto& [begin, end] : box) shape.push_back(end - begin);
  return shape;
}

std::int64_t numel_of(const Box& box) {
  std::int64_t numel = 1;
  for (const auto& [begin, end] : box) numel *= end - begin;
  return numel;
}

std::string problem_with(const ElementOrder& order, const std::vector<std::int64_t>& shape) {
  if (!order.dim_order.empty()) {
    std::vector<int> dims(shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    if (!std::is_permutation(order.dim_order.begin(), order.dim_order.end(), dims.begin(), dims.end()))
      return "has a 'dim_order' that is not an order of its dimensions";
  }
  return order.boxes.empty() ? std::string() : problem_with_boxes(order.boxes, shape);
}

void to_row_major(const std::byte* from, std::byte* to, const std::vector<std::int64_t>& shape,
                  const ElementOrder& order, std::size_t element) {
  std::vector<int> dims = order.dim_order;
  if (dims.empty()) {
    dims.resize(shape.size());
    std::iota(dims.begin(), dims.end(), 0);
  }
  const auto strides = row_major_strides(shape);
  const std::vector<Box> one{whole_of(shape)};
  for (const Box& box : order.boxes.empty() ? one : order.boxes) {
    place(from, to, box, strides, dims, element);
    from += static_cast<std::size_t>(numel_of(box)) * element;
  }
}

bool has_one_order(const std::vector<std::int64_t>& shape) {
  const auto larger = std::count_if(shape.begin(), shape.end(), [](std::int64_t size) { return size > 1; });
  return larger <= 1 || std::find(shape.begin(), shape.end(), 0) != shape.end();
}

std::vector<int> dim_order_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  // Dimensions of one element may have any stride: they stay where they are.
  std::vector<int> large;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (shape[d] != 1) large.push_back(d);
  }
  std::stable_sort(large.begin(), large.end(), [&](int a, int b) { return strides[a] > strides[b]; });
  std::vector<int> order(shape.size());
  std::size_t taken = 0;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) order[d] = shape[d] != 1 ? large[taken++] : d;
  return std::is_sorted(order.begin(), order.end()) ? std::vector<int>{} : order;
}

}  // namespace zero::checkpoint
