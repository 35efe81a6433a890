#include "checkpoint/dim_order.h"

#include <algorithm>
#include <cstring>

namespace zero::checkpoint {

void to_row_major(const std::byte* from, std::byte* to, const std::vector<std::int64_t>& shape,
                  const std::vector<int>& dim_order, std::size_t element) {
  const std::size_t dims = shape.size();
  std::vector<std::int64_t> stride(dims);  // of `from`, in elements, by dimension
  std::int64_t next = 1;
  for (std::size_t i = dims; i-- > 0;) {
    stride[dim_order[i]] = next;
    next *= shape[dim_order[i]];
  }
  const std::int64_t numel = next;
  std::vector<std::int64_t> index(dims, 0);
  std::int64_t source = 0;
  for (std::int64_t i = 0; i < numel; ++i) {
    std::memcpy(to + static_cast<std::size_t>(i) * element, from + static_cast<std::size_t>(source) * element,
                element);
    for (std::size_t d = dims; d-- > 0;) {
      source += stride[d];
      if (++index[d] < shape[d]) break;
      source -= stride[d] * shape[d];
      index[d] = 0;
    }
  }
}

std::vector<int> dim_order_of(const std::vector<std::int64_t>& shape,
                              const std::vector<std::int64_t>& strides) {
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
