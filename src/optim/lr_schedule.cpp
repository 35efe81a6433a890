#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zero::optim {
namespace {

using Schedule = Config::Scheduler;
using Type = Schedule::Type;

double ratio(std::int64_t part, std::int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

/// 0 at the start of warm-up, 1 from its end on.
double warmup_part(const Schedule& s, std::int64_t step) {
  if (step >= s.warmup_num_steps || s.warmup_num_steps <= 1) return 1.0;
  if (s.warmup_type == Schedule::WarmupType::kLinear) return ratio(step, s.warmup_num_steps);
  return 1.0 / std::log(static_cast<double>(s.warmup_num_steps)) * std::log(static_cast<double>(step + 1));
}

std::int64_t steps_after_warmup(const Schedule& s) {
  return std::max<std::int64_t>(1, s.total_num_steps - s.warmup_num_steps);
}

/// At DeepSpeed's step `step`, from 0.
double warmup_lr(const Schedule& s, std::int64_t step) {
  double part = warmup_part(s, step);
  if (s.type == Type::kWarmupDecayLR && step >= s.warmup_num_steps)
    part = std::clamp(ratio(s.total_num_steps - step, steps_after_warmup(s)), 0.0, 1.0);
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * part;
}

double warmup_cosine_lr(const Schedule& s, double base_lr, std::int64_t step) {
  if (step < s.warmup_num_steps)
    return base_lr * (s.warmup_min_ratio + (1 - s.warmup_min_ratio) * warmup_part(s, step));
  const double done = std::clamp(ratio(step - s.warmup_num_steps + 1, steps_after_warmup(s)), 0.0, 1.0);
  return base_lr * (s.cos_min_ratio + (1 - s.cos_min_ratio) * (1 + std::cos(std::numbers::pi * done)) / 2);
}

// OneCycle: up and down again within cycle_steps(), in stairs where it is told how many, then the decay.

std::int64_t second_half(const Schedule& s) { return s.cycle_second_step_size.value_or(s.cycle_first_step_size); }
std::int64_t cycle_steps(const Schedule& s) { return s.cycle_first_step_size + second_half(s); }
bool is_in_cycle(const Schedule& s, std::int64_t step) { return step - 1 < cycle_steps(s); }

/// 0 at the ends of the cycle, 1 at its top.
double height(const Schedule& s, std::int64_t step) {
  const double rise = ratio(s.cycle_first_step_size, cycle_steps(s));
  const double cycles = 1.0 + ratio(step, cycle_steps(s));
  const double part = cycles - std::floor(cycles);
  const bool rises = part <= rise;
  const std::int64_t stairs =
      rises ? s.cycle_first_stair_count : s.cycle_second_stair_count.value_or(s.cycle_first_stair_count);
  if (stairs == 0) return rises ? part / rise : (part - 1) / (rise - 1);
  const std::int64_t place = step % cycle_steps(s);
  const std::int64_t stair = place <= s.cycle_first_step_size ? place * stairs / s.cycle_first_step_size
                                                              : (cycle_steps(s) - place) * stairs / second_half(s);
  return ratio(stair, stairs);
}

/// 1 where nothing decays.
double decay(const Schedule& s, double rate, std::int64_t step) {
  return s.decay_step_size == 0 ? 1.0 : 1 + rate * ratio(step - cycle_steps(s), s.decay_step_size);
}

double one_cycle_lr(const Schedule& s, std::int64_t step) {
  if (is_in_cycle(s, step)) return s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * height(s, step);
  return s.cycle_min_lr / decay(s, s.decay_lr_rate, step);
}

double range_test_lr(const Schedule& s, std::int64_t step) {
  const double interval = ratio(step, s.lr_range_test_step_size);
  return s.lr_range_test_min_lr *
         (1 + s.lr_range_test_step_rate * (s.lr_range_test_staircase ? std::floor(interval) : interval));
}

/// What PyTorch's schedules multiply the optimizer's rate with.
double linear_factor(const Schedule& s, std::int64_t step) {
  const std::int64_t done = std::min(step, s.total_iters);
  return s.start_factor + (s.end_factor - s.start_factor) * (s.total_iters == 0 ? 1.0 : ratio(done, s.total_iters));
}
double polynomial_factor(const Schedule& s, std::int64_t step) {
  return step >= s.total_iters ? 0.0 : std::pow(1 - ratio(step, s.total_iters), s.power);
}

}  // namespace

double learning_rate_at(const Config::Scheduler& s, double base_lr, std::int64_t step) {
  switch (s.type) {
    case Type::kNone:
      return base_lr;
    case Type::kWarmupLR:
    case Type::kWarmupDecayLR:
      return step == 0 ? s.warmup_min_lr : warmup_lr(s, step - 1);
    case Type::kWarmupCosineLR:
      return step == 0 ? 0.0 : warmup_cosine_lr(s, base_lr, step - 1);
    case Type::kOneCycle:
      return one_cycle_lr(s, step);
    case Type::kLRRangeTest:
      return range_test_lr(s, step);
    case Type::kLinearLR:
      return base_lr * linear_factor(s, step);
    case Type::kCosineAnnealingLR:
      return s.eta_min + (base_lr - s.eta_min) * (1 + std::cos(std::numbers::pi * ratio(step, s.t_max))) / 2;
    case Type::kPolynomialLR:
      return base_lr * polynomial_factor(s, step);
    case Type::kStepLR: {
      const std::int64_t periods = step / s.step_size;
      return base_lr * std::pow(s.gamma, static_cast<double>(periods));
    }
    case Type::kExponentialLR:
      return base_lr * std::pow(s.gamma, static_cast<double>(step));
  }
  return base_lr;
}

std::optional<std::pair<double, double>> betas_at(const Config::Scheduler& s, std::int64_t step) {
  constexpr double kBeta2 = 0.99;  // DeepSpeed's
  if (s.type != Type::kOneCycle || !s.cycle_momentum) return std::nullopt;
  if (step == 0) return std::pair(s.cycle_min_mom, kBeta2);  // before the schedule, where the cycle would have the most
  if (is_in_cycle(s, step))
    return std::pair(s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * height(s, step), kBeta2);
  return std::pair(s.cycle_max_mom * decay(s, s.decay_mom_rate, step), kBeta2);
}

}  // namespace zero::optim
