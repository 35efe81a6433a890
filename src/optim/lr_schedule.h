#pragma once
// Learning-rate schedules with DeepSpeed's names and formulas. A pure function of the step.
#include <cstdint>

namespace zero::optim {

struct LrScheduleOptions {
  enum class Type : std::uint8_t { kConstant, kWarmup, kWarmupDecay, kWarmupCosine };
  Type type = Type::kConstant;
  bool linear_warmup = false;  ///< false: logarithmic
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;
  double min_lr = 0;
  double max_lr = 1e-3;
  double min_ratio = 0;            ///< cosine: part of the base rate at the start of warm-up
  double cosine_min_ratio = 1e-4;  ///< cosine: part of the base rate at the end
};

/// The learning rate of optimizer step `step` (0 is the first update), as DeepSpeed's engine has it: its
/// scheduler steps after the optimizer, so the first update has the rate before the schedule (the minimum; 0
/// for the cosine) and update k the schedule's value at k - 1. `base_lr` is the optimizer's own
/// rate: the result for kConstant, the scale of kWarmupCosine.
double learning_rate_at(const LrScheduleOptions& options, double base_lr, std::int64_t step);

}  // namespace zero::optim
