#pragma once
// Between libtorch's tensors and those of checkpoint files.
#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "checkpoint/element_type.h"
#include "checkpoint/manifest.h"

namespace zero::engine {

/// Whether checkpoints have the type.
bool has_element_type(at::ScalarType type);
/// Throws ModelError naming `name` for types that checkpoints do not have (complex, quantised).
checkpoint::ElementType to_element_type(at::ScalarType type, std::string_view name);
at::ScalarType to_scalar_type(checkpoint::ElementType type);

/// Strides of a dense tensor whose elements lie in `dim_order` (empty: row-major).
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, const std::vector<int>& dim_order);

}  // namespace zero::engine
