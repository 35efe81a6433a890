#pragma once
// LossScaler: what losses are multiplied with so that small gradients survive a narrow dtype, and whether a step whose
// gradients are not finite is taken: the one place where a step is skipped. No libtorch.
#include <cstdint>

namespace zero::optim {

struct LossScalerOptions {
  bool skips_non_finite = false;  ///< else such a step is taken as any other
};

class LossScaler {
 public:
  explicit LossScaler(LossScalerOptions options = {}) : options_(options) {}

  double scale() const { return 1; }

  enum class Decision : std::uint8_t { kTake, kSkip };
  /// Once a step, with the same on every rank: whether its gradients, of all ranks, are finite.
  Decision update(bool finite);

  std::int64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(std::int64_t steps) { skipped_steps_ = steps; }

 private:
  LossScalerOptions options_;
  std::int64_t skipped_steps_ = 0;
};

}  // namespace zero::optim
