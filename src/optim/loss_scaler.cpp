#include "optim/loss_scaler.h"

namespace zero::optim {

LossScaler::Decision LossScaler::update(bool finite) {
  if (finite || !options_.skips_non_finite) return Decision::kTake;
  ++skipped_steps_;
  return Decision::kSkip;
}

}  // namespace zero::optim
