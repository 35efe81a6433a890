// The boxed fallback of the parameter key: the one registration with libtorch's dispatcher.
//
// Runs for every operator that has a marked tensor among its arguments, and only for those. It gathers
// what the operator reads, refuses writes that would be lost, and hands the operator on with the key
// excluded, so that the pieces of a composite operator do not come back here.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/List.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <unordered_map>

#include "base/check.h"
#include "intercept/compat.h"
#include "intercept/deferred_values.h"
#include "intercept/gradient_marker.h"
#include "intercept/parameter_handle.h"
#include "intercept/view_operators.h"
#include "zero/errors.h"

namespace zero::intercept {
namespace {

struct OpInfo {
  const char* name = "";
  bool is_view = false;
  std::uint64_t written = 0;  ///< bit i: argument i is written in place
  DeferredOp deferred;
};

OpInfo describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpInfo info{schema.name().c_str(), is_view_operator(schema.name()), 0, deferred_op_of(op)};
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const auto* alias = arguments[i].alias_info();
    // requires_grad_ is declared as a write of `self` but touches no data.
    if (alias && alias->isWrite() && !info.is_view) info.written |= std::uint64_t{1} << i;
  }
  return info;
}

const OpInfo& info_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpInfo> cache;
  const auto& schema = op.schema();
  auto [found, is_new] = cache.try_emplace(&schema);
  if (is_new) found->second = describe(op);
  return found->second;
}

/// The handles an operator uses, kept in use until the end of the operator, also when it throws.
class Uses {
 public:
  ~Uses() {
    for (auto* handle : handles_) {
      if (auto* observer = handle->observer()) observer->after_use(*handle);
      c10::raw::intrusive_ptr::decref(handle);
    }
  }

  void add(const at::Tensor& tensor, bool is_written, const OpInfo& info) {
    auto* handle = ParameterHandle::of(tensor);
    if (!handle) {
      if (is_gradient_marker(tensor)) marker_ = tensor;
      return;
    }
    if (!handle->observer()) return;
    if (is_written) handle->observer()->before_write(*handle, info.name);
    handle->observer()->before_use(*handle);
    c10::raw::intrusive_ptr::incref(handle);
    handles_.push_back(handle);
  }

  /// An argument that stands for a gradient; undefined when there is none.
  const at::Tensor& marker() const { return marker_; }

  /// No operator ever sees a released parameter: gathering one must not have released another.
  void check() const {
    for (const auto* handle : handles_) ZERO_CHECK(handle->attached(), "'{}' is released", handle->name());
  }

 private:
  c10::SmallVector<ParameterHandle*, 8> handles_;
  at::Tensor marker_;
};

void add_argument(Uses& uses, const c10::IValue& value, bool is_written, const OpInfo& info) {
  if (value.isTensor()) {
    uses.add(value.toTensor(), is_written, info);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) uses.add(tensor, is_written, info);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) uses.add(*tensor, is_written, info);
    }
  }
}

void parameter_use_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpInfo& info = info_of(op);
  if (!info.is_view && (defers_values() || deferred_values_exist()) && run_deferred(op, info.deferred, keys, *stack)) {
    return;
  }
  Uses uses;
  if (!info.is_view) {
    const std::size_t count = op.schema().arguments().size();
    const std::size_t first = stack->size() - count;
    for (std::size_t i = 0; i < count; ++i) {
      add_argument(uses, (*stack)[first + i], i < 64 && (info.written >> i & 1), info);
    }
  }
  if (uses.marker().defined() && run_on_gradient_marker(uses.marker(), op, info.name, stack)) return;
  uses.check();
  c10::impl::ExcludeDispatchKeyGuard no_recursion(kParameterKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParameterKey), stack);
}

// The macro below takes a name, not a constant.
static_assert(kParameterKey == c10::DispatchKey::DeferredInit, "TORCH_LIBRARY_IMPL below names another key");

}  // namespace
}  // namespace zero::intercept

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&zero::intercept::parameter_use_fallback>());
}
