// The formula of the ZeRO paper.
#include <fmt/format.h>

#include "layout/sharding.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

void check(double parameters, int stage, double ranks) {
  if (!(parameters >= 0)) {
    throw ConfigError(fmt::format("plan: got {:g} parameters, want a number that is not negative", parameters));
  }
  const bool known = stage >= 0 && stage <= 3;
  if (!known) {
    throw ConfigError(fmt::format("plan: got ZeRO stage {}, want 0, 1, 2 or 3", stage));
  }
  if (!(ranks >= 1)) throw ConfigError(fmt::format("plan: got {:g} ranks, want at least 1", ranks));
}

}  // namespace

ModelStates model_states(double parameters, int stage, double ranks, const StateBytes& bytes) {
  check(parameters, stage, ranks);
  const layout::Sharding sharding = layout::sharding_of_stage(stage);
  const auto held = [&](double each, bool sharded) { return parameters * each / (sharded ? ranks : 1); };
  return {.parameters_nbytes = held(bytes.parameters, sharding.parameters),
          .gradients_nbytes = held(bytes.gradients, sharding.gradients),
          .optimizer_nbytes = held(bytes.optimizer, sharding.optimizer_states)};
}

}  // namespace zero::plan
