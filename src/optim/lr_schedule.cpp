#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zero::optim {
namespace {

/// 0 at the start of warm-up, 1 from its end on.
double warmup_part(const LrScheduleOptions& options, std::int64_t step) {
  if (step >= options.warmup_steps || options.warmup_steps <= 1) return 1.0;
  if (options.linear_warmup) return static_cast<double>(step) / static_cast<double>(options.warmup_steps);
  return std::log(static_cast<double>(step + 1)) / std::log(static_cast<double>(options.warmup_steps));
}

/// The schedule's own value at its step `step`, 0 or more.
double scheduled(const LrScheduleOptions& options, double base_lr, std::int64_t step) {
  using Type = LrScheduleOptions::Type;
  const double warm = warmup_part(options, step);
  const double rest =
      static_cast<double>(std::max<std::int64_t>(1, options.total_steps - options.warmup_steps));
  if (options.type == Type::kWarmupCosine) {
    if (step < options.warmup_steps) return base_lr * (options.min_ratio + (1 - options.min_ratio) * warm);
    const double done = std::clamp(static_cast<double>(step - options.warmup_steps + 1) / rest, 0.0, 1.0);
    const double low = options.cosine_min_ratio;
    return base_lr * (low + (1 - low) * (1 + std::cos(std::numbers::pi * done)) / 2);
  }
  double part = warm;
  if (options.type == Type::kWarmupDecay && step >= options.warmup_steps) {
    part = std::clamp(static_cast<double>(options.total_steps - step) / rest, 0.0, 1.0);
  }
  return options.min_lr + (options.max_lr - options.min_lr) * part;
}

}  // namespace

double learning_rate_at(const LrScheduleOptions& options, double base_lr, std::int64_t step) {
  using Type = LrScheduleOptions::Type;
  if (options.type == Type::kConstant) return base_lr;
  if (step == 0) return options.type == Type::kWarmupCosine ? 0.0 : options.min_lr;
  return scheduled(options, base_lr, step - 1);
}

}  // namespace zero::optim
