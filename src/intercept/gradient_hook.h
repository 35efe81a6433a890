#pragma once
// Gradients leave autograd through the AccumulateGrad node of their parameter.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace zero::intercept {

/// Called once per backward for a parameter, after autograd has summed all its uses, with the gradient
/// ([sizes of the parameter], dtype of the parameter); the parameter's grad() is dropped right after. Runs on
/// the autograd thread; an exception reaches the caller of backward().
using GradientSink = std::function<void(at::Tensor& gradient)>;

/// Hooks `parameter` (a leaf that requires grad) for as long as the returned token lives. Local.
std::shared_ptr<void> hook_gradient(const at::Tensor& parameter, GradientSink sink);

/// True while the calling thread runs a backward pass.
bool in_backward();

/// Tells autograd that the parameter's values changed, so that a backward through an older graph fails
/// instead of using the new values.
void bump_version(const at::Tensor& parameter);

}  // namespace zero::intercept
