#include "engine/tensor_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "zero/errors.h"

namespace zero::engine {
namespace {

using checkpoint::ElementType;

struct Row {
  at::ScalarType scalar;
  ElementType element;
};
constexpr std::array kRows = {
    Row{at::kBool, ElementType::kBool},  Row{at::kByte, ElementType::kU8},       Row{at::kChar, ElementType::kI8},
    Row{at::kShort, ElementType::kI16},  Row{at::kInt, ElementType::kI32},       Row{at::kLong, ElementType::kI64},
    Row{at::kHalf, ElementType::kF16},   Row{at::kBFloat16, ElementType::kBF16}, Row{at::kFloat, ElementType::kF32},
    Row{at::kDouble, ElementType::kF64},
};

}  // namespace

bool has_element_type(at::ScalarType type) {
  return std::ranges::any_of(kRows, [type](const Row& row) { return row.scalar == type; });
}

ElementType to_element_type(at::ScalarType type, std::string_view name) {
  for (const Row& row : kRows) {
    if (row.scalar == type) return row.element;
  }
  throw ModelError(fmt::format("'{}' is of dtype {}, which checkpoints cannot hold; convert it to a real type", name,
                               c10::toString(type)));
}

at::ScalarType to_scalar_type(ElementType type) {
  return std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.element == type; })->scalar;
}

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, const std::vector<int>& dim_order) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t next = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    const std::size_t dim = dim_order.empty() ? i : static_cast<std::size_t>(dim_order[i]);
    strides[dim] = next;
    next *= std::max<std::int64_t>(shape[dim], 1);
  }
  return strides;
}

}  // namespace zero::engine
