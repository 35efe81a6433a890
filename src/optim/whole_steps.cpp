#include "optim/whole_steps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/orthogonalize.h"

namespace zero::optim {
namespace {

Hyper second_of_lamb(const Hyper& hyper, double weight_norm, double direction_norm, std::int64_t) {
  double rate = hyper.lr;
  if (hyper.bias_correction) {
    const auto step = static_cast<double>(hyper.step);
    rate *= std::sqrt(1 - std::pow(hyper.beta2, step)) / (1 - std::pow(hyper.beta1, step));
  }
  if (weight_norm != 0 && direction_norm != 0)
    rate *= std::clamp(weight_norm / direction_norm, hyper.min_coeff, hyper.max_coeff);
  return {.lr = rate};
}

void change_by_muon(const at::Tensor& direction, std::span<const at::Tensor>, const Hyper& hyper) {
  const auto method = hyper.gram_newton_schulz ? NewtonSchulz::kGram : NewtonSchulz::kStandard;
  direction.copy_(orthogonalized(direction, method));
}

Hyper second_of_muon(const Hyper& hyper, double, double, std::int64_t) {
  return {.lr = hyper.lr, .weight_decay = hyper.weight_decay};
}

std::vector<TensorState> states_of_adafactor(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> rows(shape.begin(), shape.end()), columns = rows;
  if (shape.size() < 2) return {{"variance", rows}};
  rows.back() = 1;
  columns[columns.size() - 2] = 1;
  return {{"row_var", rows}, {"col_var", columns}};
}

void change_by_adafactor(const at::Tensor& direction, std::span<const at::Tensor> states, const Hyper& hyper) {
  const at::NoGradGuard no_grad;
  if (direction.numel() == 0) return;
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const at::Tensor g = direction.contiguous();
  const double taken = std::pow(static_cast<double>(hyper.step), hyper.beta2_decay);
  at::Tensor variance;
  if (states.size() == 1) {
    states[0].lerp_(g * g, taken);
    variance = states[0].clone();
  } else {
    const auto mean_of_squares = [&](std::int64_t dim) {
      return (g * g).sum({dim}, /*keepdim=*/true).div_(static_cast<double>(g.size(dim)));
    };
    states[0].lerp_(mean_of_squares(-1), taken);
    states[1].lerp_(mean_of_squares(-2), taken);
    variance = at::matmul(states[0], states[1]).div_(states[0].mean({-2}, /*keepdim=*/true).clamp_min_(kEps));
  }
  const at::Tensor update = variance.clamp_min_(kEps * kEps).rsqrt_().mul_(g);
  const double rms = std::sqrt(update.square().sum().item<double>() / static_cast<double>(update.numel()));
  direction.copy_(update.div_(std::max(1.0, rms / hyper.d)));
}

Hyper second_of_adafactor(const Hyper& hyper, double weight_norm, double, std::int64_t numel) {
  const double rms = numel > 0 ? weight_norm / std::sqrt(static_cast<double>(numel)) : 0;
  const double rate = std::max(hyper.eps2, rms) * std::min(hyper.lr, 1 / std::sqrt(static_cast<double>(hyper.step)));
  // Decay goes by lr alone.
  return {.lr = rate, .weight_decay = rate != 0 ? hyper.lr * hyper.weight_decay / rate : 0};
}

}  // namespace

const WholeStep& lamb_step() {
  static constexpr WholeStep step{.needs_weight_norm = true, .needs_direction_norm = true, .second = &second_of_lamb};
  return step;
}

const WholeStep& muon_step() {
  static constexpr WholeStep step{.change = &change_by_muon, .second = &second_of_muon};
  return step;
}

const WholeStep& adafactor_step() {
  static constexpr WholeStep step{.needs_weight_norm = true,
                                  .change = &change_by_adafactor,
                                  .states = &states_of_adafactor,
                                  .second = &second_of_adafactor};
  return step;
}

bool brings_together(const Rule& rule) { return rule.whole && rule.whole->change; }

std::int64_t tensor_state_numel(const Rule& rule, std::span<const std::int64_t> shape) {
  std::int64_t sum = 0;
  for (const TensorState& state : tensor_states(rule, shape)) sum += c10::multiply_integers(state.shape);
  return sum;
}

std::vector<TensorState> tensor_states(const Rule& rule, std::span<const std::int64_t> shape) {
  return rule.whole && rule.whole->states ? rule.whole->states(shape) : std::vector<TensorState>();
}

}  // namespace zero::optim
