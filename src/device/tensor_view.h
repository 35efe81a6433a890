#pragma once
// Types of elements in libtorch's terms, and memory as a tensor.
#include <ATen/core/Tensor.h>

#include "zero/dtype.h"

namespace zero::device {

at::ScalarType to_scalar_type(DType dtype);
DType to_dtype(at::ScalarType type);  ///< throws ModelError for types that ZeRO does not shard

/// [numel] elements at `data`, memory of `device`, which the tensor does not own.
at::Tensor view_of(const void* data, DType dtype, std::int64_t numel, c10::Device device);

}  // namespace zero::device
