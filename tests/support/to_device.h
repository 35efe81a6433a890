#pragma once
// Moving a module to any device: libtorch's own Module::to() refuses backends that come from outside of it.
#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>

#include <optional>

namespace zero::testing {

/// The members of TensorImpl that set_data() changes where it can.
struct TensorImplAccess : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::*keys_member() { return &TensorImplAccess::key_set_; }
  static c10::Storage c10::TensorImpl::*storage_member() { return &TensorImplAccess::storage_; }
  static std::optional<c10::Device> c10::TensorImpl::*device_member() { return &TensorImplAccess::device_opt_; }
};

inline void to_device(const at::Tensor& tensor, at::Device device) {
  const at::NoGradGuard no_grad;
  const at::Tensor moved = tensor.detach().to(device);
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->*TensorImplAccess::keys_member() = moved.key_set();
  impl->*TensorImplAccess::storage_member() = moved.storage();
  impl->*TensorImplAccess::device_member() = moved.device();
  impl->set_sizes_and_strides(moved.sizes(), moved.strides(), moved.storage_offset());
}

/// Every handle to a parameter or buffer sees it there. Before anything was done with the module.
inline void to_device(torch::nn::Module& module, at::Device device) {
  if (!device.is_privateuseone()) return module.to(device);
  for (const auto& parameter : module.parameters()) {
    if (parameter.device() != device) to_device(parameter, device);
  }
  for (const auto& buffer : module.buffers()) {
    if (buffer.device() != device) to_device(buffer, device);
  }
}

}  // namespace zero::testing
