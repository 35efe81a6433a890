// What a configuration comes to, in numbers that it does not say.
#include "optim/configured.h"
#include "optim/lr_schedule.h"
#include "zero/plan.h"

namespace zero::plan {

double learning_rate_at(const Config& config, std::int64_t step) {
  return optim::learning_rate_at(config.scheduler, config.optimizer.lr, step);
}

OptimizerStates optimizer_states(const Config& config) {
  const auto states_of = [](const optim::Rule& rule, std::vector<std::string>& names) {
    for (const optim::StateColumn& state : rule.states) names.emplace_back(state.name);
    return static_cast<double>(rule.state_nbytes(optim::kQuantizedBlockNumel)) / optim::kQuantizedBlockNumel;
  };
  const optim::Rule &rule = optim::rule_of(config), &of_rest = optim::rule_of(config, /*by_muon=*/false);
  OptimizerStates states;
  states.nbytes = states_of(rule, states.names);
  if (&of_rest != &rule) states.nbytes_of_rest = states_of(of_rest, states.names_of_rest);
  if (config.optimizer.type == "Adafactor") states.names_of_tensors = {"row_var", "col_var", "variance"};
  return states;
}

}  // namespace zero::plan
