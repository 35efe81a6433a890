#include "observe/gradient_noise.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "zero/errors.h"

namespace zero::observe {

void GradientNoiseMeter::gradient(int parameter, const at::Tensor& gradient) {
  if (!measures_) return;
  const at::NoGradGuard no_grad;
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  const double square = values.to(at::kFloat).square().sum(at::kDouble).item<double>();
  const auto p = static_cast<std::size_t>(parameter);
  squares_[p] += square;
  ++gradients_[p];
  in_backward_.emplace_back(p, square);
}

void GradientNoiseMeter::undo_backward() {
  for (const auto& [p, square] : std::exchange(in_backward_, {})) {
    squares_[p] = --gradients_[p] == 0 ? 0.0 : squares_[p] - square;
  }
}

namespace {

[[noreturn]] void throw_several() {
  throw ModelError(
      "measure_gradient_noise(): a micro-batch has several backwards, and the noise of its gradient cannot be told "
      "from those of its parts; add the losses for one backward, or drop the window by zero_grad() and call "
      "measure_gradient_noise(false)");
}

}  // namespace

void GradientNoiseMeter::before_backward() {
  if (std::ranges::any_of(gradients_, [](int count) { return count > 0; })) throw_several();
}

void GradientNoiseMeter::end_micro_batch() {
  if (!measures_) return;
  const bool several = std::ranges::any_of(gradients_, [](int count) { return count > 1; });
  std::ranges::fill(gradients_, 0);
  if (several) throw_several();
  double sum = 0;  // by parameter, so that the order of arrival does not matter
  for (double& square : squares_) sum += std::exchange(square, 0.0);
  micro_batches_.push_back(sum);
}

void GradientNoiseMeter::drop_gradients() {
  std::ranges::fill(gradients_, 0);
  std::ranges::fill(squares_, 0.0);
  micro_batches_.clear();
}

void GradientNoiseMeter::end_accumulation(const Accumulation& accumulation) {
  last_.reset();
  if (!measures_) return;
  const auto measured = end_window(accumulation.group, accumulation.grad_norm, accumulation.averaging);
  // Not where a part of the window came before a checkpoint was loaded.
  if (accumulation.is_whole && measured && measured->micro_batches == accumulation.micro_batches) last_ = measured;
}

std::optional<GradientNoise> GradientNoiseMeter::end_window(Group& group, double norm, double averaging) {
  const std::size_t each = micro_batches_.size(), ranks = static_cast<std::size_t>(group.size());
  std::vector<double> all(each * ranks);
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(each));
  group.all_gather(micro_batches_.data(), all.data(), counts, DType::kFloat64, {.label = "gradient noise"}).wait();
  drop_gradients();
  if (all.size() < 2 || !std::isfinite(norm)) return std::nullopt;
  double sum = 0;
  for (std::size_t j = 0; j < each; ++j) {
    for (std::size_t rank = 0; rank < ranks; ++rank) sum += all[rank * each + j];
  }
  const auto count = static_cast<double>(all.size());
  const double to_mean = averaging * count;  // of what backward brings, a micro-batch's own gradient
  return GradientNoise{.micro_batches = static_cast<std::int64_t>(all.size()),
                       .micro_batch_sumsq = sum / count * to_mean * to_mean,
                       .batch_sumsq = norm * norm};
}

}  // namespace zero::observe
