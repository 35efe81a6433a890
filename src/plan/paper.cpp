// The formulas of the ZeRO papers.
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

double largest_model(double memory_nbytes, int stage, double ranks, double model_parallel, const StateBytes& bytes) {
  return model_parallel * memory_nbytes / model_states(1, stage, ranks, bytes).total_nbytes();
}

std::vector<OffloadStates> offload_on_paper(double parameters, double ranks, const StateBytes& bytes) {
  check(parameters, 0, ranks);
  const double weights = parameters * bytes.parameters, gradients = parameters * bytes.gradients;
  const double optimizer = parameters * bytes.optimizer;
  return {
      {"ZeRO-Offload: stage 2, gradients and optimizer in host memory", weights, (gradients + optimizer) / ranks, 0},
      {"stage 3, gradients and optimizer in host memory", weights / ranks, (gradients + optimizer) / ranks, 0},
      {"ZeRO-Infinity: stage 3, all in host memory", 0, (weights + gradients + optimizer) / ranks, 0},
      {"ZeRO-Infinity: stage 3, parameters and optimizer on NVMe", 0, gradients / ranks,
       (weights + optimizer) / ranks}};
}

}  // namespace zero::plan
