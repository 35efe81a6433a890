#include "engine/optimizers/program_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <typeinfo>
#include <utility>

#include "base/check.h"
#include "checkpoint/manifest.h"
#include "engine/agreement.h"
#include "zero/errors.h"

namespace zero::engine {

using sharding::Range;

const optim::Rule& program_rule() {
  static constexpr optim::Rule rule{.name = "the program's own optimizer"};
  return rule;
}

ProgramOptimizer::ProgramOptimizer(OptimizerFactory factory, std::string name)
    : factory_(std::move(factory)), name_(std::move(name)) {}

ProgramOptimizer::~ProgramOptimizer() = default;

void ProgramOptimizer::attach(const sharding::ShardedModel& model, sharding::ShardedOptimizer& masters, Group& all) {
  OptimizerSource::attach(model, masters, all);
  shards_.resize(model.parameters.size());
  for (std::size_t p = 0; p < shards_.size(); ++p) {
    if (model.units[model.parameters[p].unit].trainable) shards_[p] = make_shard(static_cast<int>(p));
  }
  const auto shards = by_group();
  try {
    program_ = factory_(shards);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("InitializeOptions::optimizer_factory threw: {}", error.what()));
  }
  check_groups(shards);
  if (auto difference = first_difference(class_name(), all, "optimizer"))
    throw ConfigError(fmt::format("optimizer_factory makes different optimizers: {}", *difference));
}

std::string ProgramOptimizer::class_name() const {
  if (!name_.empty()) return name_;
  const auto& the_optimizer = program();
  return c10::demangle(typeid(the_optimizer).name());
}

ProgramOptimizer::Shard ProgramOptimizer::make_shard(int p) const {
  const auto& parameter = model().parameters[p];
  const Range mine = layout::intersect(parameter.range, optimizer().update_range(parameter.unit));
  Shard shard{.master = mine.empty() ? at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(model().device))
                                     : optimizer().master_in_memory(parameter.unit, mine),
              .range = mine};
  ZERO_CHECK(shard.master.defined(), "no masters of '{}' in memory", parameter.name);
  shard.master.requires_grad_(true);
  return shard;
}

std::vector<std::vector<at::Tensor>> ProgramOptimizer::by_group() const {
  std::vector<std::vector<at::Tensor>> groups(optimizer().groups().size());
  for (std::size_t p = 0; p < shards_.size(); ++p) {
    if (shards_[p].master.defined()) groups[optimizer().group_of(static_cast<int>(p))].push_back(shards_[p].master);
  }
  return groups;
}

void ProgramOptimizer::check_groups(const std::vector<std::vector<at::Tensor>>& shards) {
  if (!program_) throw ConfigError("InitializeOptions::optimizer_factory gave no optimizer");
  if (dynamic_cast<torch::optim::LBFGS*>(program_.get())) {
    throw ConfigError(
        "InitializeOptions::optimizer_factory gave LBFGS, which needs the loss several times a step and products over "
        "all parameters, of which every rank has a part; take one that treats elements one by one");
  }
  auto& groups = program_->param_groups();
  if (groups.size() != shards.size()) {
    throw ConfigError(
        fmt::format("InitializeOptions::optimizer_factory was given the tensors of {} parameter groups, and its "
                    "optimizer has {}: make one torch::optim::OptimizerParamGroup of each, in this order",
                    shards.size(), groups.size()));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (!std::ranges::equal(groups[g].params(), shards[g], same)) {
      throw ConfigError(
          fmt::format("InitializeOptions::optimizer_factory: group {} of its optimizer does not hold the tensors that "
                      "it was given for it, in their order",
                      g));
    }
    try {
      last_lr_.push_back(groups[g].options().get_lr());
      groups[g].options().set_lr(last_lr_.back());
    } catch (const std::exception&) {
      throw ConfigError(
          fmt::format("InitializeOptions::optimizer_factory: the options of group {} have no learning rate that can be "
                      "read and set, so that no schedule could act on it; override get_lr() and set_lr() in them",
                      g));
    }
  }
  base_lr_ = last_lr_;
}

double ProgramOptimizer::base_lr(std::size_t group) const {
  const double now = program().param_groups()[group].options().get_lr();
  if (now != last_lr_[group]) base_lr_[group] = last_lr_[group] = now;
  return base_lr_[group];
}

void ProgramOptimizer::update(sharding::UpdateSchedule&, sharding::GradientReducer& reducer,
                              sharding::Timeline& timeline, const std::vector<double>& rates, double gradient_scale) {
  reducer.replicate();
  sharding::Stopwatch watch(timeline, &StepBreakdown::update);
  const at::NoGradGuard no_grad;
  if (!model().sharding.optimizer_states && model().world_size() > 1) {
    Group group = model().data_ranks;
    group.barrier({.label = "whole gradients"}).wait();  // other ranks have read this one's sums, which change now
  }
  for (std::size_t p = 0; p < shards_.size(); ++p) {
    const Shard& shard = shards_[p];
    if (!shard.master.defined() || !optimizer().is_active(static_cast<int>(p))) continue;
    const Range part = shard.range;
    shard.master.mutable_grad() =
        part.empty() ? at::zeros_like(shard.master) : reducer.accumulated(model().parameters[p].unit, part);
    shard.master.mutable_grad().mul_(gradient_scale);
  }
  for (std::size_t g = 0; g < rates.size(); ++g) {
    program().param_groups()[g].options().set_lr(rates[g]);
    last_lr_[g] = rates[g];
  }
  try {
    program().step();
  } catch (const std::exception& error) {
    throw ModelError(fmt::format("step() of {}, which optimizer_factory made: {}", class_name(), error.what()));
  }
  for (const Shard& shard : shards_) {
    if (shard.master.defined()) shard.master.mutable_grad().reset();  // the sums' memory goes
  }
  for (std::size_t u = 0; u < model().units.size(); ++u) optimizer().low_from_master(static_cast<int>(u));
  optimizer().end_step();
}

void ProgramOptimizer::add_units(std::span<const int> units) {
  OptimizerSource::add_units(units);
  for (const int u : units) {
    for (const int p : model().units[u].parameters) {
      shards_[p] = make_shard(p);
      program().param_groups()[optimizer().group_of(p)].params().push_back(shards_[p].master);
    }
  }
}

namespace {

/// What a state writes of itself, by name.
std::map<std::string, c10::IValue> written_by(const torch::optim::OptimizerParamState& state) {
  torch::serialize::OutputArchive written;
  state.serialize(written);
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  std::map<std::string, c10::IValue> values;
  for (const auto& name : read.keys()) read.read(name, values[name]);
  return values;
}

void read_back(torch::optim::OptimizerParamState& state, const std::map<std::string, c10::IValue>& values) {
  torch::serialize::OutputArchive written;
  for (const auto& [name, value] : values) written.write(name, value);
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  state.serialize(read);
}

/// A number as JSON that gives the same bits back; a tensor without dimensions says of what dtype it is.
std::optional<nlohmann::json> number_of(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble() && std::isfinite(value.toDouble())) return value.toDouble();
  if (!value.isTensor() || value.toTensor().dim() != 0) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.scalar_type() == at::kLong) return nlohmann::json{{"int64", tensor.item<std::int64_t>()}};
  const bool is_float = tensor.scalar_type() == at::kFloat;
  if ((!is_float && tensor.scalar_type() != at::kDouble) || !std::isfinite(tensor.item<double>())) return std::nullopt;
  return nlohmann::json{{is_float ? "float32" : "float64", tensor.item<double>()}};
}

std::optional<c10::IValue> from_json(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (!json.is_object() || json.size() != 1 || !json.begin()->is_number()) return std::nullopt;
  const std::string& dtype = json.begin().key();
  if (dtype == "int64") return at::scalar_tensor(json.begin()->get<std::int64_t>(), at::kLong);
  if (dtype == "float32") return at::scalar_tensor(json.begin()->get<double>(), at::kFloat);
  if (dtype == "float64") return at::scalar_tensor(json.begin()->get<double>(), at::kDouble);
  return std::nullopt;
}

}  // namespace

std::optional<ProgramOptimizer::State> ProgramOptimizer::saved_state(int p) const {
  const at::Tensor& master = shards_[p].master;
  if (!master.defined()) return std::nullopt;
  const auto found = program().state().find(master.unsafeGetTensorImpl());
  if (found == program().state().end()) return std::nullopt;
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(fmt::format("{}, which optimizer_factory made, for parameter '{}': {}", class_name(),
                                      model().parameters[p].name, what));
  };
  std::map<std::string, c10::IValue> written;
  try {
    written = written_by(*found->second);
  } catch (const std::exception& error) {
    refuse(fmt::format("its state cannot be written; override serialize() of it: {}", error.what()));
  }
  namespace kinds = checkpoint::kinds;
  State state;
  for (const auto& [name, value] : written) {
    if (value.isNone()) continue;
    if (name == kinds::kWeight || name == kinds::kBuffer || name == kinds::kGradientSum || name == kinds::kRandomState)
      refuse(fmt::format("its state '{}' has the name of something else in a checkpoint; give it another", name));
    if (auto json = number_of(value)) {
      state.values[name] = std::move(*json);
    } else if (value.isTensor() && value.toTensor().sizes() == master.sizes() &&
               value.toTensor().scalar_type() == at::kFloat) {
      state.tensors[name] = value.toTensor();
    } else {
      refuse(
          fmt::format("its state '{}' is neither an fp32 tensor with an element for each of the tensor it was given "
                      "nor a finite number, so that other ranks could not share it out",
                      name));
    }
  }
  return state;
}

at::Tensor ProgramOptimizer::part_of(int p, const at::Tensor& state, Range mine) const {
  const auto& parameter = model().parameters[p];
  const Range here = layout::intersect(parameter.range, optimizer().update_range(parameter.unit));
  return state.narrow(0, mine.begin - here.begin, mine.numel());
}

ProgramOptimizer::State ProgramOptimizer::checked_states(int p, std::string_view name) const {
  auto state = saved_state(p);
  if (!state) {
    throw ModelError(fmt::format("parameter '{}' is frozen, or was never updated, and has no optimizer states",
                                 model().parameters[p].name));
  }
  if (state->tensors.contains(std::string(name))) return *std::move(state);
  const auto names = state_names(p);
  throw ModelError(fmt::format("{} has no state '{}' of an element each; it has {}", class_name(), name,
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

std::vector<std::string> ProgramOptimizer::state_names(int p) const {
  std::vector<std::string> names;
  if (const auto its = saved_state(p)) {
    for (const auto& [name, tensor] : its->tensors) names.push_back(name);
  }
  return names;
}

at::Tensor ProgramOptimizer::state(int p, std::string_view name, Range mine) const {
  const State its = checked_states(p, name);
  return mine.empty() ? at::Tensor() : part_of(p, its.tensors.at(std::string(name)), mine);
}

void ProgramOptimizer::set_state(int p, std::string_view name, Range mine, const at::Tensor& values) {
  State its = checked_states(p, name);
  if (mine.empty()) return;
  its.tensors.at(std::string(name)) = values;
  put_state(p, its);
}

at::Tensor ProgramOptimizer::state_before_updates(int p, std::string_view name) const {
  checked_states(p, name);  // there is none
  return at::Tensor();
}

nlohmann::json ProgramOptimizer::to_json(const std::vector<std::optional<State>>& states) const {
  nlohmann::json json = {{"class", class_name()}, {"states", nlohmann::json::object()}};
  for (std::size_t p = 0; p < states.size(); ++p) {
    if (!states[p]) continue;
    std::vector<std::string> tensors;
    for (const auto& [name, tensor] : states[p]->tensors) tensors.push_back(name);
    json["states"][model().parameters[p].name] = {{"tensors", tensors}, {"values", states[p]->values}};
  }
  return json;
}

void ProgramOptimizer::make_state(int p) {
  const at::NoGradGuard no_grad;
  at::Tensor& master = shards_[p].master;
  const at::Tensor values = master.detach();
  master.set_data(at::zeros_like(values));
  master.mutable_grad() = at::zeros_like(values);
  const auto restore = [&] {
    master.mutable_grad().reset();
    master.set_data(values);
  };
  try {
    program().step();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void ProgramOptimizer::put_state(int p, const std::optional<State>& state) {
  const at::Tensor& master = shards_[p].master;
  auto& states = program().state();
  void* const key = master.unsafeGetTensorImpl();
  if (!state) {
    states.erase(key);
    return;
  }
  std::map<std::string, c10::IValue> values;
  for (const auto& [name, tensor] : state->tensors) values.emplace(name, tensor);
  for (const auto& [name, json] : state->values.items()) {
    const auto value = from_json(json);
    if (!value) {
      throw CheckpointError(fmt::format("the checkpoint has no usable '{}' of the optimizer's state of parameter '{}'",
                                        name, model().parameters[p].name));
    }
    values.emplace(name, *value);
  }
  try {
    if (states.find(key) == states.end()) make_state(p);
    const auto made = states.find(key);
    if (made == states.end()) throw ModelError("its step() made no state");
    read_back(*made->second, values);
  } catch (const std::exception& error) {
    throw CheckpointError(
        fmt::format("{}, which optimizer_factory made, does not take its state of parameter '{}' back: {}",
                    class_name(), model().parameters[p].name, error.what()));
  }
}

}  // namespace zero::engine
