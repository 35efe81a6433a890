#include "plan_fit.h"

#include <fmt/format.h>

#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::app {

std::string check_fits(const plan::ModelShape& model, const Config& config, int ranks, int ranks_per_node, bool force) {
  const plan::Cluster here{
      .ranks = ranks, .ranks_per_node = ranks_per_node, .node_memory_nbytes = available_memory_nbytes()};
  try {
    const std::string warning = plan::check_fits(model, config, here, force);
    return warning.empty() ? "" : fmt::format("warning: {}\n", warning);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}; --force starts it all the same", error.what()));
  }
}

plan::ModelShape shape_to_train(const TrainPlan& plan) {
  plan::ModelShape shape = plan.model.empty() ? gpt_shape(gpt_options(plan), "gpt") : causal_lm_shape(plan);
  shape.transformer->seq = plan.seq;
  shape.deferred_init = true;
  return shape;
}

}  // namespace zero::app
