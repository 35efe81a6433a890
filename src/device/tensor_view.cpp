#include "device/tensor_view.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "zero/errors.h"

namespace zero::device {

at::ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return at::kByte;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kInt64:
      return at::kLong;
  }
  return at::kByte;
}

DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kFloat:
      return DType::kFloat32;
    default:
      throw ModelError(
          fmt::format("parameters of type {} cannot be sharded; use float, bfloat16 or half", c10::toString(type)));
  }
}

at::Tensor view_of(const void* data, DType dtype, std::int64_t numel, c10::Device device) {
  // Named, the device is not looked up from the address, which a backend need not be able to do.
  return at::for_blob(const_cast<void*>(data), {numel})
      .options(at::TensorOptions().dtype(to_scalar_type(dtype)).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace zero::device
