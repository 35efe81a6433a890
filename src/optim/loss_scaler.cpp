#include "optim/loss_scaler.h"

#include <algorithm>

namespace zero::optim {

LossScaler::LossScaler(LossScalerOptions options)
    : options_(options), state_{.scale = options.scale, .hysteresis_left = options.hysteresis} {}

LossScaler::Decision LossScaler::update(bool finite) {
  if (finite || !options_.skips_non_finite) {
    const std::int64_t before = state_.steps_since_overflow++;
    const bool full_window = before > 0 && before % options_.window == 0;  // one step later than one would think
    if (options_.consecutive_hysteresis || full_window) state_.hysteresis_left = options_.hysteresis;
    if (options_.dynamic && full_window) state_.scale *= 2;
    return Decision::kTake;
  }
  ++state_.skipped_steps;
  state_.steps_since_overflow = 0;
  if (!options_.dynamic) return Decision::kSkip;
  if (state_.hysteresis_left > 1) {
    --state_.hysteresis_left;
    return Decision::kSkip;
  }
  if (state_.scale == options_.min_scale) return Decision::kSkipAtMinimum;
  state_.scale = std::max(state_.scale / 2, options_.min_scale);
  return Decision::kSkip;
}

void LossScaler::go_on_from(const LossScaler& other) {
  const std::int64_t skipped_steps = other.state_.skipped_steps;
  if (options_.dynamic && other.options_.dynamic) state_ = other.state_;
  state_.skipped_steps = skipped_steps;
}

}  // namespace zero::optim
