#include "optim/aten_rules.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <limits>

namespace zero::optim {
namespace {

/// What an update works on, as tensors.
struct Views {
  at::Tensor master, gradient;  ///< the gradient is a copy, scaled
  at::Tensor states[3];         ///< undefined where there is none

  Views(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
    const auto view = [&](const void* data) {
      return at::from_blob(const_cast<void*>(data), {args.numel}, at::TensorOptions().dtype(at::kFloat).device(device));
    };
    master = view(args.master);
    gradient = view(args.gradient).mul(hyper.signed_scale());
    for (std::size_t s = 0; s < std::size(states); ++s) {
      if (args.states[s]) states[s] = view(args.states[s]);
    }
  }

  void add_decay(const Hyper& hyper) {
    if (hyper.weight_decay != 0) gradient.add_(master, hyper.weight_decay);
  }
};

}  // namespace

void adam_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const auto& [exp_avg, exp_avg_sq, max_exp_avg_sq] = v.states;
  if (hyper.decoupled) {
    v.master.mul_(1 - hyper.lr * hyper.weight_decay);
  } else {
    v.add_decay(hyper);
  }
  exp_avg.mul_(hyper.beta1).add_(v.gradient, 1 - hyper.beta1);
  exp_avg_sq.mul_(hyper.beta2).addcmul_(v.gradient, v.gradient, 1 - hyper.beta2);
  if (hyper.amsgrad) max_exp_avg_sq.copy_(at::maximum(max_exp_avg_sq, exp_avg_sq));
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, hyper.step) : 1.0;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, hyper.step) : 1.0;
  const at::Tensor& second = hyper.amsgrad ? max_exp_avg_sq : exp_avg_sq;
  const at::Tensor denominator = second.sqrt().div_(std::sqrt(correction2)).add_(hyper.eps);
  v.master.addcdiv_(exp_avg, denominator, -hyper.lr / correction1);
}

void sgd_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  v.add_decay(hyper);
  at::Tensor step = v.gradient;
  if (hyper.momentum != 0) {
    const at::Tensor& momentum_buffer = v.states[0];
    if (hyper.step == 1 && hyper.dampening != 0) {
      momentum_buffer.copy_(v.gradient);
    } else {
      momentum_buffer.mul_(hyper.momentum).add_(v.gradient, 1 - hyper.dampening);
    }
    step = hyper.nesterov ? v.gradient.add(momentum_buffer, hyper.momentum) : momentum_buffer;
  }
  v.master.add_(step, -hyper.lr);
}

void adagrad_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  v.add_decay(hyper);
  const at::Tensor& sum = v.states[0];
  sum.addcmul_(v.gradient, v.gradient);
  const double lr = hyper.lr / (1 + static_cast<double>(hyper.step - 1) * hyper.lr_decay);
  v.master.addcdiv_(v.gradient, sum.sqrt().add_(hyper.eps), -lr);
}

void rmsprop_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const auto& [square_avg, momentum_buffer, grad_avg] = v.states;
  v.add_decay(hyper);
  square_avg.mul_(hyper.alpha).addcmul_(v.gradient, v.gradient, 1 - hyper.alpha);
  at::Tensor variance = square_avg;
  if (hyper.centered) {
    grad_avg.mul_(hyper.alpha).add_(v.gradient, 1 - hyper.alpha);
    variance = square_avg.addcmul(grad_avg, grad_avg, -1).clamp_min_(0);
  }
  const at::Tensor denominator = variance.sqrt().add_(hyper.eps);
  if (hyper.momentum != 0) {
    momentum_buffer.mul_(hyper.momentum).addcdiv_(v.gradient, denominator);
    v.master.add_(momentum_buffer, -hyper.lr);
  } else {
    v.master.addcdiv_(v.gradient, denominator, -hyper.lr);
  }
}

void lion_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Views v(args, hyper, device);
  const at::Tensor& exp_avg = v.states[0];
  const at::Tensor direction = exp_avg.mul(hyper.beta1).add_(v.gradient, 1 - hyper.beta1);
  const at::Tensor sign = direction.sign().masked_fill_(direction.isnan(), std::numeric_limits<double>::quiet_NaN());
  v.master.mul_(1 - hyper.lr * hyper.weight_decay).add_(sign, -hyper.lr);
  exp_avg.mul_(hyper.beta2).add_(v.gradient, 1 - hyper.beta2);
}

}  // namespace zero::optim
