#include "engine/optimizers/optimizer_setup.h"

#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "config/values.h"
#include "engine/engine_impl.h"
#include "engine/optimizers/client_optimizer.h"
#include "engine/optimizers/program_optimizer.h"
#include "optim/configured.h"
#include "optim/lr_schedule.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

constexpr std::string_view kWantedByNesterov = "needs a momentum above 0 and no dampening";

/// Checks what a group gives as the JSON's optimizer.params are checked. Throws ConfigError.
class GroupReader {
 public:
  GroupReader(std::size_t index, const std::string& type) : index_(index), type_(type) {}

  template <class T>
  void read(std::string_view name, const std::optional<T>& given, T& to) const {
    if (!given) return;
    check(name, *given);
    to = *given;
  }
  void read_betas(const std::optional<std::pair<double, double>>& given, optim::Hyper& to) const {
    if (!given) return;
    check("betas", {given->first, given->second});
    std::tie(to.beta1, to.beta2) = *given;
  }
  void check_use_muon(const std::optional<bool>& given) const {
    if (given && type_ != "Muon") refuse("use_muon", fmt::format("only type Muon reads it, and this is {}", type_));
  }
  void check_nesterov(const optim::Hyper& hyper) const {
    if (hyper.nesterov && !optim::may_be_nesterov(hyper)) refuse("nesterov", kWantedByNesterov);
  }

 private:
  void check(std::string_view name, const nlohmann::json& value) const {
    const config::Key* const key = config::find_key(fmt::format("optimizer.params.{}", name));
    ZERO_CHECK(key, "no key {}", name);
    if (!config::takes(type_, *key)) {
      refuse(name, fmt::format("not a hyper-parameter of {}, which takes {}; leave it out", type_,
                               config::parameters_of(type_, config::optimizer_keys())));
    }
    if (const auto checked = config::check_value(config::for_optimizer(type_, *key), value); !checked.ok())
      refuse(name, checked.problem);
  }
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const {
    throw ConfigError(fmt::format("parameter group {}: {}: {}", index_, name, why));
  }

  std::size_t index_;
  const std::string& type_;
};

void take_client_groups(torch::optim::Optimizer& client, const Inventory& inventory, OptimizerSetup& setup) {
  auto source = std::make_unique<ClientOptimizer>(client);
  setup.algorithm = source->algorithm();
  std::map<const void*, int> index_of;
  for (std::size_t i = 0; i < inventory.parameters.size(); ++i) {
    index_of[inventory.parameters[i].tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
  }
  std::vector<bool> named(inventory.parameters.size(), false);
  // What it does not hold is not trained by it, also when it is unfrozen later.
  setup.options.group_of_parameter.assign(inventory.parameters.size(), -1);
  for (auto& group : client.param_groups()) {
    const int index = static_cast<int>(setup.options.groups.size());
    setup.options.groups.push_back({source->hyper(static_cast<std::size_t>(index))});
    for (const auto& tensor : group.params()) {
      const auto found = index_of.find(tensor.unsafeGetTensorImpl());
      if (found == index_of.end()) {
        throw ConfigError(
            "the client optimizer holds a tensor that is not a parameter of the module; make it from "
            "module->parameters() after the module is complete");
      }
      setup.options.group_of_parameter[found->second] = index;
      named[found->second] = true;
    }
  }
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (!named[i] && inventory.parameters[i].tensor.requires_grad()) {
      throw ConfigError(
          fmt::format("the client optimizer does not hold parameter '{}', which requires a gradient; add it, "
                      "or freeze it with requires_grad_(false)",
                      inventory.parameters[i].name));
    }
  }
  setup.source = std::move(source);
}

/// Calls visit(name in the JSON, value of the group, member of `hyper`) for every hyper-parameter but the betas.
template <class Visit>
void for_each_value(const ParameterGroup& group, optim::Hyper& hyper, Visit visit) {
  visit("lr", group.lr, hyper.lr);
  visit("weight_decay", group.weight_decay, hyper.weight_decay);
  visit("eps", group.eps, hyper.eps);
#define ZERO_VISIT(where, type, name, value, range, meaning) ZERO_IF_GROUP(where, visit(#name, group.name, hyper.name);)
  ZERO_HYPER_PARAMETERS(ZERO_VISIT)
#undef ZERO_VISIT
}

bool gives_values(const ParameterGroup& group) {
  bool any = group.betas || group.use_muon;
  optim::Hyper unused;
  for_each_value(group, unused, [&](std::string_view, const auto& given, auto&) { any = any || given.has_value(); });
  return any;
}

/// `base` with what the group gives. Throws ConfigError.
optim::Hyper read_group(std::size_t index, const std::string& type, const ParameterGroup& group,
                        const optim::Hyper& base) {
  optim::Hyper hyper = base;
  const GroupReader reader(index, type);
  for_each_value(group, hyper,
                 [&](std::string_view name, const auto& given, auto& to) { reader.read(name, given, to); });
  reader.read_betas(group.betas, hyper);
  reader.check_use_muon(group.use_muon);
  reader.check_nesterov(hyper);
  return hyper;
}

void take_parameter_groups(const Config& config, const InitializeOptions& options, const Inventory& inventory,
                           OptimizerSetup& setup) {
  const optim::Hyper base = setup.options.groups.front().hyper;
  setup.options.groups.clear();
  for (const auto& group : options.parameter_groups) {
    setup.options.groups.push_back({read_group(setup.options.groups.size(), config.optimizer.type, group, base)});
  }
  const int rest = static_cast<int>(setup.options.groups.size());
  setup.options.groups.push_back({base});
  std::vector<bool> used(options.parameter_groups.size(), false);
  for (std::size_t i = 0; i < inventory.parameters.size(); ++i) {
    setup.options.group_of_parameter[i] = rest;
    for (int g = rest - 1; g >= 0; --g) {
      for (const auto& pattern : options.parameter_groups[g].names) {
        if (!name_matches(pattern, inventory.parameters[i].name)) continue;
        setup.options.group_of_parameter[i] = g;
        used[g] = true;
      }
    }
  }
  for (std::size_t g = 0; g < used.size(); ++g) {
    if (!used[g]) {
      throw ConfigError(fmt::format(
          "parameter group {} ('{}', ...) matches no parameter of the module", g,
          options.parameter_groups[g].names.empty() ? std::string() : options.parameter_groups[g].names.front()));
    }
  }
}

void choose_rules(const Config& config, OptimizerSetup& setup) {
  std::vector<optim::Hyper> hypers;
  hypers.reserve(setup.options.groups.size());
  for (const auto& group : setup.options.groups) hypers.push_back(group.hyper);
  const optim::Rule& rule = optim::rule_for(setup.algorithm, hypers, optim::format_of(config.state_dtype()));
  for (auto& group : setup.options.groups) group.rule = &rule;
}

/// Every group becomes two: 2g for what Muon orthogonalises of it, 2g + 1 for the rest.
void split_groups_for_muon(const Config& config, const InitializeOptions& options, const Inventory& inventory,
                           OptimizerSetup& setup) {
  const auto given = [&](std::size_t group) {
    return group < options.parameter_groups.size() ? &options.parameter_groups[group] : nullptr;
  };
  std::vector<sharding::OptimizerGroup> halves;
  for (std::size_t g = 0; g < setup.options.groups.size(); ++g) {
    for (const bool by_muon : {true, false}) {
      optim::Hyper hyper = setup.options.groups[g].hyper;
      const bool has_rate = given(g) && given(g)->lr;
      if (!has_rate) hyper.lr = optim::hyper_of(config.optimizer, by_muon).lr;
      halves.push_back({hyper, &optim::rule_of(config, by_muon)});
    }
  }
  setup.options.groups = std::move(halves);
  for (std::size_t p = 0; p < inventory.parameters.size(); ++p) {
    const auto& parameter = inventory.parameters[p];
    int& group = setup.options.group_of_parameter[p];
    const ParameterGroup* const its = given(static_cast<std::size_t>(group));
    const int dims = static_cast<int>(parameter.tensor.dim());
    const bool by_muon = its && its->use_muon ? *its->use_muon : optim::is_for_muon(parameter.name, dims);
    if (by_muon && dims < 2) {
      throw ConfigError(
          fmt::format("parameter group {}: use_muon: '{}' has {} dimensions, and Muon orthogonalises "
                      "matrices; name it in another group",
                      group, parameter.name, dims));
    }
    group = 2 * group + (by_muon ? 0 : 1);
  }
}

/// Norms and matrices of a tensor that model-parallel ranks hold in parts would be those of the parts.
void check_whole_tensors(const Inventory& inventory, const OptimizerSetup& setup) {
  for (std::size_t p = 0; p < inventory.parameters.size(); ++p) {
    const int group = setup.options.group_of_parameter[p];
    if (group < 0 || !inventory.parameters[p].split.is_split()) continue;
    const optim::Rule& rule = *setup.options.groups[static_cast<std::size_t>(group)].rule;
    if (!rule.whole) continue;
    throw ConfigError(
        fmt::format("optimizer.type: {} needs '{}' whole, and InitializeOptions::placement splits it over "
                    "model-parallel ranks; choose another type",
                    rule.name, inventory.parameters[p].name));
  }
}

/// Groups of a factory's optimizer are names: the rest is in its options. Throws ConfigError.
void check_factory(const Config& config, const InitializeOptions& options) {
  if (options.optimizer || config.optimizer.given) {
    throw ConfigError(fmt::format("{} and InitializeOptions::optimizer_factory both give an optimizer; remove one",
                                  options.optimizer ? "InitializeOptions::optimizer" : "the JSON ('optimizer')"));
  }
  if (optim::betas_at(config.scheduler, 0)) {
    throw ConfigError(
        "scheduler: this one cycles momentum, which the engine cannot set in an optimizer of the program's own; set "
        "cycle_momentum to false");
  }
  for (std::size_t g = 0; g < options.parameter_groups.size(); ++g) {
    if (!gives_values(options.parameter_groups[g])) continue;
    throw ConfigError(fmt::format(
        "parameter group {} gives hyper-parameters, which an optimizer of the program's own would not see: set them in "
        "the options of its group {}, in InitializeOptions::optimizer_factory",
        g, g));
  }
}

}  // namespace

OptimizerSetup set_up_optimizer(const Config& config, const InitializeOptions& options, const Inventory& inventory) {
  OptimizerSetup setup;
  setup.options.group_of_parameter.assign(inventory.parameters.size(), 0);
  setup.options.sub_group_numel = config.zero_optimization.sub_group_numel();
  setup.options.master_dtype = config.master_dtype();
  setup.options.stochastic_rounding = config.zerotorch.stochastic_rounding;
  setup.options.seed = static_cast<std::uint64_t>(config.zerotorch.seed.value_or(0));
  if (options.optimizer_factory) {
    check_factory(config, options);
    setup.source = std::make_unique<ProgramOptimizer>(options.optimizer_factory, options.optimizer_name);
    setup.options.groups.resize(1);
    setup.options.float_masters = true;
    setup.description = "the program's own optimizer";
    if (!options.parameter_groups.empty()) take_parameter_groups(config, options, inventory, setup);
    for (auto& group : setup.options.groups) group.rule = &program_rule();
    return setup;
  }
  if (options.optimizer) {
    if (config.optimizer.given) {
      throw ConfigError("both the JSON ('optimizer') and initialize() give an optimizer; remove one");
    }
    if (!options.parameter_groups.empty()) {
      throw ConfigError(
          "parameter_groups and a client optimizer were both given; the client optimizer brings its own "
          "groups: remove parameter_groups");
    }
    take_client_groups(*options.optimizer, inventory, setup);
    setup.description = fmt::format("the client's {}, taken over", optim::algorithm_name(setup.algorithm));
  } else {
    setup.algorithm = optim::algorithm_of(config.optimizer);
    setup.options.groups.push_back({optim::hyper_of(config.optimizer)});
    const std::string origin =
        options.optimizer_name.empty() ? "from the configuration" : "as " + options.optimizer_name;
    setup.description = config.optimizer.given
                            ? fmt::format("{} {}, lr {:g}", config.optimizer.type, origin, config.optimizer.lr)
                            : fmt::format("no optimizer was given: {} with lr {:g}, weight_decay {:g}",
                                          config.optimizer.type, config.optimizer.lr, config.optimizer.weight_decay);
    if (!options.parameter_groups.empty()) take_parameter_groups(config, options, inventory, setup);
  }
  choose_rules(config, setup);
  if (setup.algorithm == optim::Algorithm::kMuon) split_groups_for_muon(config, options, inventory, setup);
  if (!setup.source) {
    std::vector<double> rates;
    for (const auto& group : setup.options.groups) rates.push_back(group.hyper.lr);
    setup.source = std::make_unique<ConfiguredOptimizer>(std::move(rates));
  }
  check_whole_tensors(inventory, setup);
  return setup;
}

}  // namespace zero::engine

namespace zero {

void Engine::set_parameter_group(int parameter_group, const ParameterGroup& values) {
  Impl& impl = *impl_;
  impl.check_trains("set_parameter_group()");
  const std::size_t group = engine::checked_group(impl, parameter_group);
  impl.optimizer_source->set_group(group, [&](const sharding::OptimizerGroup& of) {
    if (values.use_muon)
      throw ConfigError("set_parameter_group(): use_muon: which parameters Muon orthogonalises is chosen once");
    const optim::Hyper hyper = engine::read_group(group, impl.config.optimizer.type, values, of.hyper);
    const auto missing = of.rule->missing_state ? of.rule->missing_state(hyper) : std::string_view();
    if (missing.empty()) return hyper;
    throw ConfigError(fmt::format(
        "set_parameter_group(): parameter group {} would need the state {}, for which no group had the "
        "options at zero::initialize; set them there (a momentum may be lowered to 0 later). A schedule that "
        "cycles momentum, as OneCycleLR does, needs one from the beginning, or cycle_momentum=False",
        group, missing));
  });
}

}  // namespace zero
