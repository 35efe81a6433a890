#include "engine/optimizers/optimizer_source.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "zero/errors.h"

namespace zero::engine {

void OptimizerSource::attach(const sharding::ShardedModel& model, sharding::ShardedOptimizer& optimizer, Group&) {
  model_ = &model;
  optimizer_ = &optimizer;
}

void OptimizerSource::set_group(std::size_t, const HyperOf&) {
  throw ConfigError(
      "set_parameter_group(): the optimizer is the program's own, which says its hyper-parameters in its options; "
      "change them there");
}

void OptimizerSource::update(sharding::UpdateSchedule& schedule, sharding::GradientReducer&, sharding::Timeline&,
                             const std::vector<double>& rates, double gradient_scale) {
  schedule.end_accumulation(rates, gradient_scale);
}

void OptimizerSource::add_units(std::span<const int> units) { optimizer().add_units(units); }

void OptimizerSource::set_updates(int parameter, std::int64_t updates) { optimizer().set_steps_of(parameter, updates); }

std::vector<std::string> OptimizerSource::state_names(int p) const {
  std::vector<std::string> names;
  for (const auto& known : optimizer().tensor_states(p)) names.emplace_back(known.name);
  for (std::size_t state = 0; state < optimizer().states().size(); ++state) {
    if (optimizer().has_state(state, p)) names.emplace_back(optimizer().states()[state].name);
  }
  return names;
}

std::size_t OptimizerSource::checked_state(int p, std::string_view name) const {
  const auto index = optimizer().find_state(name);
  if (index && optimizer().has_state(*index, p)) return *index;
  const auto names = state_names(p);
  throw ModelError(fmt::format("{} has no state '{}' of '{}'; it has {}", optimizer().name(), name,
                               model().parameters[p].name,
                               names.empty() ? "none" : fmt::format("'{}'", fmt::join(names, "', '"))));
}

at::Tensor OptimizerSource::state(int p, std::string_view name, sharding::Range mine) const {
  const std::size_t index = checked_state(p, name);
  return mine.empty() ? at::Tensor() : optimizer().state_values(index, model().parameters[p].unit, mine);
}

void OptimizerSource::set_state(int p, std::string_view name, sharding::Range mine, const at::Tensor& values) {
  const std::size_t index = checked_state(p, name);
  if (optimizer().next_update_overwrites_states(p)) {
    throw ModelError(
        fmt::format("set_full_optimizer_state: with dampening the first update of '{}' takes its gradient for the "
                    "momentum, and what is written now would be dropped; write it after that update",
                    model().parameters[p].name));
  }
  if (!mine.empty()) optimizer().set_state(index, model().parameters[p].unit, mine, values);
}

at::Tensor OptimizerSource::state_before_updates(int p, std::string_view name) const {
  const std::size_t index = checked_state(p, name);
  const at::Tensor& tensor = model().parameters[p].tensor;
  if (tensor.requires_grad()) return at::full(tensor.sizes(), optimizer().initial_of(index, p), at::kFloat);
  throw ModelError(fmt::format("parameter '{}' is frozen and has no optimizer states", model().parameters[p].name));
}

void ConfiguredOptimizer::set_group(std::size_t group, const HyperOf& hyper_of) {
  const optim::Hyper hyper = hyper_of(optimizer().groups()[group]);
  optimizer().set_hyper(group, hyper);
  rates_[group] = hyper.lr;
}

}  // namespace zero::engine
