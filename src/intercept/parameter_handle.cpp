#include "intercept/parameter_handle.h"

#include <ATen/core/grad_mode.h>
#include <ATen/detail/FunctionTraits.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include "base/check.h"
#include "intercept/compat.h"

namespace zero::intercept {
namespace {

void drop_handle(void* context) { c10::raw::intrusive_ptr::decref(static_cast<ParameterHandle*>(context)); }

}  // namespace

c10::DataPtr ParameterHandle::data_ptr(void* data) {
  c10::raw::intrusive_ptr::incref(this);
  return c10::DataPtr(data, this, &drop_handle, device_);
}

void ParameterHandle::adopt(const at::Tensor& parameter, at::ScalarType dtype, at::IntArrayRef strides,
                            std::size_t nbytes, c10::Device device, UseObserver* observer) {
  at::NoGradGuard no_grad;
  device_ = device;
  observer_ = observer;
  released_message_ = fmt::format(
      "parameter '{}' is sharded and its values are not gathered at this point, so its memory cannot be "
      "read or written directly; use it in an operator, or hold a zero::GatheredParameters over it (Engine::"
      "save_full_weights saves whole weights in place of torch::save of the module)",
      name_);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                       static_cast<int64_t>(nbytes), data_ptr(nullptr),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  storage_ = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
  at::Tensor shell = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  auto fresh = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), shell.key_set(), shell.dtype());
  fresh->set_sizes_and_strides(parameter.sizes(), strides);
  const at::Tensor fresh_tensor(std::move(fresh));
  remove_parameter_key(parameter);  // of deferred values, which nobody needs any more
  parameter.set_data(fresh_tensor);
  add_parameter_key(parameter);
  release();
}

void ParameterHandle::attach(void* data) {
  auto storage = storage_.lock();
  if (!storage) return;  // the user dropped the parameter
  if (!attached_) allow_data_access(*storage);
  storage->set_data_ptr_noswap(data_ptr(data));
  attached_ = true;
  data_ = data;
}

void ParameterHandle::release(const std::string& message) {
  auto storage = storage_.lock();
  attached_ = false;
  if (!storage) return;
  storage->set_data_ptr_noswap(data_ptr(nullptr));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message.empty() ? released_message_ : message);
}

void ParameterHandle::retire(const at::Tensor& parameter, std::shared_ptr<void> keep_alive, const std::string& why) {
  observer_ = nullptr;
  keep_alive_ = std::move(keep_alive);
  if (owns(parameter)) remove_parameter_key(parameter);
  if (attached_) return;
  if (auto storage = storage_.lock()) storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

bool ParameterHandle::owns(const at::Tensor& parameter) const {
  return has_parameter_key(parameter) && of(parameter) == this;
}

ParameterHandle* ParameterHandle::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  auto& pointer = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &drop_handle) return nullptr;
  return static_cast<ParameterHandle*>(pointer.get_context());
}

}  // namespace zero::intercept
