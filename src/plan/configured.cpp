// What a configuration comes to, in numbers that it does not say.
#include "optim/lr_schedule.h"
#include "setup/optimizer.h"
#include "zero/plan.h"

namespace zero::plan {

double learning_rate_at(const Config& config, std::int64_t step) {
  return optim::learning_rate_at(config.scheduler, config.optimizer.lr, step);
}

OptimizerStates optimizer_states(const Config& config) {
  const optim::Rule& rule = setup::rule_of(config);
  OptimizerStates states{.nbytes = static_cast<double>(rule.state_nbytes(optim::kQuantizedBlockNumel)) /
                                   optim::kQuantizedBlockNumel};
  for (const optim::StateColumn& state : rule.states) states.names.emplace_back(state.name);
  return states;
}

}  // namespace zero::plan
