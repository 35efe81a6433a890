#pragma once
// The few places where we reach into libtorch's internals, for libtorch 2.11 to 2.15.
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/headeronly/version.h>

namespace zero::intercept {

/// The spare dispatch key that marks a parameter. It ranks above autograd and autocast, so the boxed
/// fallback sees the operator as the user wrote it (`lstm`, not its pieces). No kernel of libtorch uses it.
inline constexpr c10::DispatchKey kParameterKey = c10::DispatchKey::DeferredInit;

namespace detail {
/// TensorImpl::key_set_ is protected and has no setter; a pointer to member reaches it without copying
/// the tensor, so that every handle the user already holds sees the key.
struct KeySetAccess : c10::TensorImpl {
  static c10::DispatchKeySet c10::TensorImpl::*member() { return &KeySetAccess::key_set_; }
};
}  // namespace detail

inline bool has_parameter_key(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(kParameterKey);
}

inline void add_parameter_key(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto& keys = impl->*detail::KeySetAccess::member();
  keys = keys.add(kParameterKey);
}

inline void remove_parameter_key(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto& keys = impl->*detail::KeySetAccess::member();
  keys = keys.remove(kParameterKey);
}

namespace detail {
template <class Slot>
bool has_idle_python_object(const Slot& slot) {
  if constexpr (requires { slot.load_pyobj(); }) return slot.load_pyobj() && slot.has_unique_reference();
  return false;  // of an older libtorch, where what Python has of it is not among the references
}
}  // namespace detail

/// True when Python has an object for this storage, which counts as one of its references, and nobody in Python holds
/// it: it was asked for once.
inline bool has_idle_python_object(const c10::StorageImpl& storage) {
  return detail::has_idle_python_object(*storage.pyobj_slot());
}

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
namespace detail {
/// libtorch 2.11 can make a storage's pointer throw but has no way back. An explicit instantiation may name a
/// private member.
bool c10::StorageImpl::*throws_on_access();
template <bool c10::StorageImpl::*kMember>
struct StorageAccess {
  friend bool c10::StorageImpl::*throws_on_access() { return kMember; }
};
template struct StorageAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
}  // namespace detail

/// Undoes release_data_and_set_meta_custom_data_ptr_error_msg_ once the storage's pointer is set anew.
inline void allow_data_access(c10::StorageImpl& storage) { storage.*detail::throws_on_access() = false; }
#else
inline void allow_data_access(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }
#endif

}  // namespace zero::intercept
