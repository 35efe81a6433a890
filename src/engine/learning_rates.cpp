#include "engine/learning_rates.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "optim/lr_schedule.h"
#include "zero/errors.h"

namespace zero::engine {

double LearningRates::of(std::size_t group) const {
  if (const auto& set = training_.lr_overrides[group]) return *set;
  const double base = source_->base_lr(group);
  if (!schedule_) return optim::learning_rate_at(config_.scheduler, base, schedule_step());
  const double rate = schedule_(schedule_step(), base);
  if (!(rate >= 0 && std::isfinite(rate))) {
    throw ConfigError(fmt::format(
        "InitializeOptions::schedule gives {:g} at step {}: a learning rate is a finite number that is not negative",
        rate, schedule_step()));
  }
  return rate;
}

std::int64_t LearningRates::schedule_step() const {
  const std::int64_t steps_before = config_.scheduler.last_batch_iteration + 1;  // done before this run
  return training_.global_steps - training_.scaler.skipped_steps() - training_.schedule_begin + steps_before;
}

void LearningRates::refresh() {
  source_->read_options();
  next_.resize(optimizer_->groups().size());
  const auto betas = optim::betas_at(config_.scheduler, schedule_step());
  for (std::size_t g = 0; g < next_.size(); ++g) {
    if (betas) {
      optim::Hyper hyper = optimizer_->groups()[g].hyper;
      std::tie(hyper.beta1, hyper.beta2) = *betas;
      if (!(hyper.beta1 < 1)) {
        throw ConfigError(fmt::format(
            "scheduler.params.decay_mom_rate has brought the first beta to {:g} at step {}; take a smaller one, or set "
            "cycle_momentum to false",
            hyper.beta1, schedule_step()));
      }
      optimizer_->set_hyper(g, hyper);
    }
    next_[g] = of(g);
  }
}

}  // namespace zero::engine
