#include "intercept/gradient_marker.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "intercept/compat.h"
#include "intercept/gradient_hook.h"
#include "intercept/view_operators.h"
#include "zero/errors.h"

namespace zero::intercept {
namespace {

struct Marker : c10::intrusive_ptr_target {
  std::string why;
  bool zeroed = false;
  bool replaced = false;
  at::Tensor added;
};

void drop_marker(void* context) { c10::raw::intrusive_ptr::decref(static_cast<Marker*>(context)); }

Marker* marker_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  auto& pointer = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &drop_marker) return nullptr;
  return static_cast<Marker*>(pointer.get_context());
}

/// What aten::to with these arguments makes of `marker`, the first of them: that itself, or one for another dtype or
/// device, as when a module is converted. Found by asking the operator for an empty tensor.
at::Tensor converted(const at::Tensor& marker, const std::string& why, const c10::OperatorHandle& op,
                     torch::jit::Stack arguments) {
  const at::Tensor empty = at::empty({0}, marker.options());
  arguments.front() = empty;
  op.callBoxed(&arguments);
  const at::Tensor result = arguments.back().toTensor();
  if (result.is_same(empty)) return marker;
  at::Tensor other = make_gradient_marker(at::empty_strided(marker.sizes(), marker.strides(), result.options()), why);
  marker_of(other)->zeroed = marker_of(marker)->zeroed;
  return other;
}

}  // namespace

at::Tensor make_gradient_marker(const at::Tensor& parameter, std::string why) {
  auto marker = c10::make_intrusive<Marker>();
  marker->why = why;
  const std::int64_t nbytes = parameter.numel() * parameter.element_size();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes,
      c10::DataPtr(nullptr, marker.release(), &drop_marker, parameter.device()), /*allocator=*/nullptr,
      /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(why));
  const at::Tensor shell = at::empty({0}, parameter.options().requires_grad(false));
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                   shell.key_set().remove(kParameterKey), shell.dtype());
  impl->set_sizes_and_strides(parameter.sizes(), parameter.strides());
  at::Tensor tensor(std::move(impl));
  add_parameter_key(tensor);
  return tensor;
}

bool is_gradient_marker(const at::Tensor& tensor) { return marker_of(tensor) != nullptr; }

bool gradient_marker_was_zeroed(const at::Tensor& tensor) { return marker_of(tensor)->zeroed; }

at::Tensor take_from_gradient_marker(const at::Tensor& tensor) {
  return std::exchange(marker_of(tensor)->added, at::Tensor());
}

bool was_replaced_by_autograd(const at::Tensor& tensor) { return std::exchange(marker_of(tensor)->replaced, false); }

bool run_on_gradient_marker(const at::Tensor& tensor, const c10::OperatorHandle& op, std::string_view name,
                            torch::jit::Stack* stack) {
  Marker* const marker = marker_of(tensor);
  const std::size_t arguments = op.schema().arguments().size();
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return (*stack)[stack->size() - arguments + i]; };
  const auto finish = [&](at::Tensor result) {
    torch::jit::drop(*stack, arguments);
    torch::jit::push(*stack, std::move(result));
    return true;
  };
  if (name == "aten::zero_") {
    marker->zeroed = true;
    return finish(tensor);
  }
  if (is_view_operator(name) || name == "aten::detach_" || name == "aten::_has_compatible_shallow_copy_type")
    return false;
  if (name == "aten::to" && argument(0).isTensor() && argument(0).toTensor().is_same(tensor)) {
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments);
    return finish(converted(tensor, marker->why, op, {first, stack->end()}));
  }
  // AccumulateGrad: grad += new, or grad + new where it is differentiable, or sparse new + grad.
  if (in_backward() && (name == "aten::add_" || name == "aten::add") && argument(0).isTensor() &&
      argument(1).isTensor()) {
    const bool second = marker_of(argument(0).toTensor()) == nullptr;
    at::Tensor other = argument(second ? 0 : 1).toTensor();
    if (name == "aten::add") {
      marker->replaced = true;
      return finish(std::move(other));
    }
    if (!second) {
      marker->added = std::move(other);
      return finish(tensor);
    }
  }
  throw ModelError(fmt::format("{}: {}", name, marker->why));
}

}  // namespace zero::intercept
