#include "optim/device_passes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>

#include <cmath>
#include <cstring>

namespace zero::optim {

void reduce_on_device(const at::Tensor& accumulator, std::span<const at::Tensor> slices, bool first) {
  at::NoGradGuard no_grad;
  if (first) accumulator.zero_();
  for (const auto& slice : slices) accumulator.add_(slice);
}

void block_sumsq_on_device(const at::Tensor& values, double* out) {
  at::NoGradGuard no_grad;
  if (values.numel() == 0) return;
  const at::Tensor sums =
      values.view({-1, kSumBlockNumel}).to(at::kDouble).square().sum(1).to(at::kCPU).contiguous();
  std::memcpy(out, sums.const_data_ptr<double>(), static_cast<std::size_t>(sums.numel()) * sizeof(double));
}

void adam_on_device(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                    const at::Tensor& gradient, const at::Tensor& low, const AdamHyper& hyper) {
  at::NoGradGuard no_grad;
  at::Tensor g = gradient.mul(hyper.gradient_scale);
  if (hyper.decoupled) {
    master.mul_(1 - hyper.lr * hyper.weight_decay);
  } else {
    g.add_(master, hyper.weight_decay);
  }
  exp_avg.mul_(hyper.beta1).add_(g, 1 - hyper.beta1);
  exp_avg_sq.mul_(hyper.beta2).addcmul_(g, g, 1 - hyper.beta2);
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, hyper.step) : 1.0;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, hyper.step) : 1.0;
  const at::Tensor denominator = exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(hyper.eps);
  master.addcdiv_(exp_avg, denominator, -hyper.lr / correction1);
  if (low.defined()) low.copy_(master);
}

}  // namespace zero::optim
