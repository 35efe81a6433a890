#pragma once
// The rates of the next update, by parameter group: the optimizer's own, as the schedule changes it, or what the
// program has set. Local.
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "engine/optimizers/optimizer_source.h"
#include "engine/training_state.h"
#include "zero/config.h"

namespace zero::engine {

class LearningRates {
 public:
  using Schedule = std::function<double(std::int64_t step, double base_lr)>;

  /// All outlive it.
  LearningRates(const Config& config, const TrainingState& training) : config_(config), training_(training) {}

  /// The program's; empty: the configuration's.
  void set_schedule(Schedule schedule) { schedule_ = std::move(schedule); }
  void attach(OptimizerSource& source, sharding::ShardedOptimizer& optimizer) {
    source_ = &source;
    optimizer_ = &optimizer;
  }

  /// As it is now. Throws ConfigError.
  double of(std::size_t group) const;
  /// Reads schedule, overrides and the optimizer's options for the next update. Not while one reads them. Throws
  /// ConfigError.
  void refresh();
  /// As refresh() has left them.
  const std::vector<double>& next() const { return next_; }

 private:
  /// Updates before the next one, as schedules count them.
  std::int64_t schedule_step() const;

  const Config& config_;
  const TrainingState& training_;
  Schedule schedule_;
  OptimizerSource* source_ = nullptr;
  sharding::ShardedOptimizer* optimizer_ = nullptr;
  std::vector<double> next_;
};

}  // namespace zero::engine
