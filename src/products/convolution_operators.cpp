// Convolutions of any kind and their gradients.
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>

#include "products/panels.h"
#include "products/registry.h"

namespace zero::products {
namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                   SymInt groups) {
  const bool has_bias = bias && bias->defined();
  const bool takes = is_taken(input) && weight.scalar_type() == input.scalar_type() &&
                     (!has_bias || bias->scalar_type() == input.scalar_type());
  if (!takes) {
    return at::compositeexplicitautograd::convolution_symint(input, weight, bias, stride, padding, dilation, transposed,
                                                             output_padding, groups);
  }
  const std::optional<Tensor> wide_bias = has_bias ? std::optional(wide_copy(*bias)) : std::nullopt;
  return at::compositeexplicitautograd::convolution_symint(wide_copy(input), wide_copy(weight), wide_bias, stride,
                                                           padding, dilation, transposed, output_padding, groups)
      .to(input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                                        at::OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride,
                                                        SymIntArrayRef padding, SymIntArrayRef dilation,
                                                        bool transposed, SymIntArrayRef output_padding, SymInt groups,
                                                        std::array<bool, 3> output_mask) {
  const at::ScalarType dtype = input.scalar_type();
  const bool takes = is_taken(dtype) && weight.scalar_type() == dtype && grad.scalar_type() == dtype;
  if (!takes) {
    return at::compositeexplicitautograd::convolution_backward_symint(
        grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask);
  }
  auto [for_input, for_weight, for_bias] = at::compositeexplicitautograd::convolution_backward_symint(
      wide_copy(grad), wide_copy(input), wide_copy(weight), bias_sizes, stride, padding, dilation, transposed,
      output_padding, groups, output_mask);
  const auto narrowed = [&](const Tensor& wide) { return wide.defined() ? wide.to(dtype) : wide; };
  return {narrowed(for_input), narrowed(for_weight), narrowed(for_bias)};
}

}  // namespace

void register_convolutions(torch::Library& cpu) {
  cpu.impl("convolution", TORCH_FN(convolution));
  cpu.impl("convolution_backward", TORCH_FN(convolution_backward));
}

}  // namespace zero::products
