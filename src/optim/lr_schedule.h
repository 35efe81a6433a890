#pragma once
// Learning-rate schedules with the formulas of DeepSpeed and PyTorch: pure functions of the step. DeepSpeed's are
// computed in its order of operations, and have its bits.
#include <cstdint>
#include <optional>
#include <utility>

#include "zero/config.h"

namespace zero::optim {

/// The learning rate of optimizer step `step` (0 is the first update), as DeepSpeed's engine has it: its
/// scheduler steps after the optimizer, so the first update has the rate before the schedule and update k
/// DeepSpeed's value at k - 1, PyTorch's at k. `base_lr` is the optimizer's own rate: the result without a
/// schedule, and what WarmupCosineLR and PyTorch's schedules scale.
double learning_rate_at(const Config::Scheduler& schedule, double base_lr, std::int64_t step);

/// The betas of that step where the schedule moves them: OneCycle with cycle_momentum.
std::optional<std::pair<double, double>> betas_at(const Config::Scheduler& schedule, std::int64_t step);

}  // namespace zero::optim
