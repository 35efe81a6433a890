#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include "engine/engine_impl.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern == "*") return true;
  if (pattern.size() > 1 && pattern.front() == '*' && pattern.back() == '*') {
    return name.find(pattern.substr(1, pattern.size() - 2)) != std::string_view::npos;
  }
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

optim::Hyper hyper_of(const Config::Optimizer& optimizer) {
  optim::Hyper hyper;
  hyper.lr = optimizer.lr;
  hyper.beta1 = optimizer.beta1;
  hyper.beta2 = optimizer.beta2;
  hyper.eps = optimizer.eps;
  hyper.weight_decay = optimizer.weight_decay;
  hyper.decoupled = optimizer.adam_w_mode;
  hyper.bias_correction = optimizer.bias_correction;
  return hyper;
}

void take_client_groups(torch::optim::Optimizer& client, const Inventory& inventory, OptimizerSetup& setup) {
  setup.client = std::make_unique<ClientOptimizer>(client);
  std::map<const void*, int> index_of;
  for (std::size_t i = 0; i < inventory.parameters.size(); ++i) {
    index_of[inventory.parameters[i].tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
  }
  std::vector<bool> named(inventory.parameters.size(), false);
  // What it does not hold is not trained by it, also when it is unfrozen later.
  setup.options.group_of_parameter.assign(inventory.parameters.size(), -1);
  for (auto& group : client.param_groups()) {
    const int index = static_cast<int>(setup.options.groups.size());
    setup.options.groups.push_back({setup.client->hyper(static_cast<std::size_t>(index))});
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
}

void take_parameter_groups(const InitializeOptions& options, const Inventory& inventory,
                           OptimizerSetup& setup) {
  const optim::Hyper base = setup.options.groups.front().hyper;
  setup.options.groups.clear();
  for (const auto& group : options.parameter_groups) {
    optim::Hyper hyper = base;
    hyper.lr = group.lr.value_or(base.lr);
    hyper.weight_decay = group.weight_decay.value_or(base.weight_decay);
    hyper.eps = group.eps.value_or(base.eps);
    if (group.betas) std::tie(hyper.beta1, hyper.beta2) = *group.betas;
    setup.options.groups.push_back({hyper});
  }
  const int rest = static_cast<int>(setup.options.groups.size());
  setup.options.groups.push_back({base});
  std::vector<bool> used(options.parameter_groups.size(), false);
  for (std::size_t i = 0; i < inventory.parameters.size(); ++i) {
    setup.options.group_of_parameter[i] = rest;
    for (int g = rest - 1; g >= 0; --g) {
      for (const auto& pattern : options.parameter_groups[g].names) {
        if (!matches(pattern, inventory.parameters[i].name)) continue;
        setup.options.group_of_parameter[i] = g;
        used[g] = true;
      }
    }
  }
  for (std::size_t g = 0; g < used.size(); ++g) {
    if (!used[g]) {
      throw ConfigError(fmt::format("parameter group {} ('{}', ...) matches no parameter of the module", g,
                                    options.parameter_groups[g].names.empty()
                                        ? std::string()
                                        : options.parameter_groups[g].names.front()));
    }
  }
}

}  // namespace

OptimizerSetup set_up_optimizer(const Config& config, const InitializeOptions& options,
                                const Inventory& inventory) {
  OptimizerSetup setup;
  setup.options.group_of_parameter.assign(inventory.parameters.size(), 0);
  setup.options.sub_group_numel = config.zero_optimization.sub_group_size;
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
    setup.description = "the client's optimizer, taken over";
  } else {
    setup.options.groups.push_back({hyper_of(config.optimizer)});
    setup.description =
        config.optimizer.given
            ? fmt::format("{} from the configuration, lr {:g}", config.optimizer.type, config.optimizer.lr)
            : fmt::format("no optimizer was given: {} with lr {:g}, weight_decay {:g}", config.optimizer.type,
                          config.optimizer.lr, config.optimizer.weight_decay);
    if (!options.parameter_groups.empty()) take_parameter_groups(options, inventory, setup);
  }
  for (const auto& group : setup.options.groups) setup.base_lr.push_back(group.hyper.lr);
  return setup;
}

}  // namespace zero::engine
