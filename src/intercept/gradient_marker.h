#pragma once
// The tensor that stands for a gradient which is elsewhere; see gradient_hook.h.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace zero::intercept {

/// A tensor like `parameter` without memory. `why`: the error of who uses it. Local.
at::Tensor make_gradient_marker(const at::Tensor& parameter, std::string why);

/// True for a marker and for what detach() made of it.
bool is_gradient_marker(const at::Tensor& tensor);

/// Of a marker: true after zero_() was called on it.
bool gradient_marker_was_zeroed(const at::Tensor& marker);

/// Of a marker: the gradient that autograd added to it since the last call; undefined when there was none.
at::Tensor take_from_gradient_marker(const at::Tensor& marker);
/// Of a marker: true when, since the last call, autograd has put a gradient in its place after asking it, as it does
/// where gradients are differentiable.
bool was_replaced_by_autograd(const at::Tensor& marker);

/// `op` has `marker` among its arguments, the last entries of `stack`. Within backward an addition to it hands over the
/// other addend; zero_() is noted; what touches no values may run; to() makes a marker of another dtype or device; all
/// else throws ModelError. True: the result is on the stack in place of the arguments, and the operator must not run.
bool run_on_gradient_marker(const at::Tensor& marker, const c10::OperatorHandle& op, std::string_view name,
                            torch::jit::Stack* stack);

}  // namespace zero::intercept
