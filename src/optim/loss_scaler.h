#pragma once
// LossScaler: what losses are multiplied with so that small gradients survive fp16, and whether a step whose
// gradients are not finite is taken: the one place where a step is skipped. The same on every rank, because
// it is told the same. No libtorch.
//
// A dynamic scale follows DeepSpeed's rules. An overflow uses up one of `hysteresis`; at the last one it
// halves the scale, down to min_scale. The first step after every `window` steps without overflow doubles it
// and refills the hysteresis.
#include <cstdint>

namespace zero::optim {

struct LossScalerOptions {
  bool skips_non_finite = false;  ///< else such a step is taken as any other
  double scale = 1;               ///< at the start
  bool dynamic = false;           ///< else it stays
  std::int64_t window = 1000;
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;  ///< every step without overflow refills it
  double min_scale = 1;
};

class LossScaler {
 public:
  /// What is kept in checkpoints.
  struct State {
    double scale = 1;
    std::int64_t skipped_steps = 0;
    std::int64_t hysteresis_left = 0;
    std::int64_t steps_since_overflow = 0;  ///< taken ones in a row
    bool operator==(const State&) const = default;
  };

  explicit LossScaler(LossScalerOptions options = {});

  double scale() const { return state_.scale; }
  bool dynamic() const { return options_.dynamic; }

  enum class Decision : std::uint8_t {
    kTake,
    kSkip,
    kSkipAtMinimum,  ///< and the scale cannot become smaller: training does not go on by itself
  };
  /// Once a step, with the same on every rank: whether its gradients, of all ranks, are finite.
  Decision update(bool finite);

  std::int64_t skipped_steps() const { return state_.skipped_steps; }

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }
  /// Goes on from where another scaler was: from its scale where both are dynamic.
  void go_on_from(const LossScaler& other);

 private:
  LossScalerOptions options_;
  State state_;
};

}  // namespace zero::optim
