#include "models/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include "zero/errors.h"

namespace zero {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// weight * (x / root mean square of x), which is rounded to the dtype of x before the product.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps) {
    const Tensor wide = x.to(at::kFloat);
    const Tensor scale = at::rsqrt(wide.square().mean(-1, true).add_(eps));
    context->save_for_backward({x, weight, scale});
    return weight * (wide * scale).to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    if (at::GradMode::is_enabled())
      throw ModelError("RMS norm: gradients of gradients (create_graph) are not computed");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2];
    const Tensor normed = x.to(at::kFloat) * scale, gradient = outputs[0].to(at::kFloat);
    variable_list gradients(3);
    if (context->needs_input_grad(1)) {
      const Tensor rounded = normed.to(x.scalar_type()).to(at::kFloat);
      gradients[1] = (gradient * rounded).reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const Tensor inside = gradient * weight;
      gradients[0] = (inside - normed * (inside * normed).mean(-1, true)).mul_(scale).to(x.scalar_type());
    }
    return gradients;
  }
};

}  // namespace

void AdaptableImpl::add_adapter(std::int64_t rank, double scale, double dropout) {
  lora_A = register_module("lora_A", std::make_shared<LinearImpl>(in, rank, false));
  lora_B = register_module("lora_B", std::make_shared<LinearImpl>(rank, out, false));
  adapter_scale = scale;
  adapter_dropout = dropout;
}

at::Tensor AdaptableImpl::adapted(const at::Tensor& x, at::Tensor y) {
  if (!lora_A) return y;
  const at::Tensor input = adapter_dropout > 0 && is_training() ? at::dropout(x, adapter_dropout, true) : x;
  return y + lora_B->forward(lora_A->forward(input)) * adapter_scale;
}

LinearImpl::LinearImpl(std::int64_t in_in, std::int64_t out_in, bool with_bias) : AdaptableImpl(in_in, out_in) {
  weight = register_parameter("weight", at::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", at::zeros({out}));
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return adapted(x, at::linear(x, weight, bias)); }

LayerNormImpl::LayerNormImpl(std::int64_t dim, double epsilon) : eps(epsilon) {
  weight = register_parameter("weight", at::ones({dim}));
  bias = register_parameter("bias", at::zeros({dim}));
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) { return at::layer_norm(x, weight.sizes(), weight, bias, eps); }

RmsNormImpl::RmsNormImpl(std::int64_t dim, double epsilon)
    : weight(register_parameter("weight", at::ones({dim}))), eps(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) { return RmsNorm::apply(x, weight, eps); }

EmbeddingImpl::EmbeddingImpl(std::int64_t count, std::int64_t dim) {
  weight = register_parameter("weight", at::empty({count, dim}));
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) { return at::embedding(weight, indices); }

}  // namespace zero
