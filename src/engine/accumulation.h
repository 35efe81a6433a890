#pragma once
// Accumulation windows: which micro-batches make an update, and what their average divides by.
#include <cstdint>
#include <optional>

#include "engine/groups.h"
#include "engine/training_state.h"
#include "zero/config.h"

namespace zero::engine {

class Accumulation {
 public:
  /// All outlive it; the numbers of steps are theirs.
  Accumulation(Config& config, TrainingState& training, const Groups& groups)
      : config_(config), training_(training), groups_(groups) {}

  /// What the program has said of the micro-batches from here on; nothing: they are counted.
  std::optional<bool> boundary;
  bool ended_in_backward = false;  ///< the last micro-batch: a step() has nothing to end
  bool dropped = false;            ///< micro-batches of this window, by zero_grad(), which has said so

  /// This rank's micro-batches so far.
  std::int64_t micro_steps() const { return training_.micro_batches / groups_.data_parallel.size(); }
  /// Micro-batches of all ranks inside the running window.
  std::int64_t window_micro_batches() const { return training_.micro_batches - training_.window_begin; }
  /// True when the micro-batch that runs is the last of its window.
  bool is_boundary() const {
    return boundary.value_or(window_micro_batches() / groups_.data_parallel.size() + 1 >=
                             config_.gradient_accumulation_steps);
  }
  /// backward() is to end the micro-batch.
  bool ends_in_backward() const { return boundary == false; }
  /// What the sum of a step's gradients is divided by.
  double averaged_micro_batches() const {
    const bool over_ranks = config_.gradient_allreduce_op == Config::GradientAllreduceOp::kMean;
    return static_cast<double>(config_.gradient_accumulation_steps * (over_ranks ? groups_.island.size() : 1));
  }
  /// What turns a sum of gradients of scaled losses into the average over the micro-batches of a step.
  double averaging() const { return 1.0 / (averaged_micro_batches() * training_.scaler.scale()); }
  /// For windows from the next on. Throws ConfigError when the product with micro-batch and ranks is too large. Local.
  void set_steps(std::int64_t steps);
  /// Says once that a window has another number of micro-batches than its average divides by. Local.
  void check_length(std::int64_t micro_batches);

 private:
  Config& config_;
  TrainingState& training_;
  const Groups& groups_;
  bool warned_of_length_ = false;
};

}  // namespace zero::engine
