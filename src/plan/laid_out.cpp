#include "plan/laid_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "zero/errors.h"

namespace zero::plan {
namespace {

/// Modules by name, children in the order in which they are first met.
class TreeBuilder {
 public:
  void add(const std::string& name, int parameter) {
    const auto dot = name.rfind('.');
    node(dot == std::string::npos ? std::string() : name.substr(0, dot)).parameters.push_back(parameter);
  }
  layout::ModuleNode build(const std::string& name = {}) {
    Draft& draft = node(name);
    layout::ModuleNode result{name, draft.parameters, {}};
    const std::vector<std::string> children = draft.children;
    for (const auto& child : children) result.children.push_back(build(child));
    return result;
  }

 private:
  struct Draft {
    std::vector<int> parameters;
    std::vector<std::string> children;
  };

  Draft& node(const std::string& name) {
    const auto [found, is_new] = drafts_.try_emplace(name);
    if (is_new && !name.empty()) {
      const auto dot = name.rfind('.');
      node(dot == std::string::npos ? std::string() : name.substr(0, dot)).children.push_back(name);
    }
    return found->second;  // a map's elements stay where they are
  }

  std::map<std::string, Draft> drafts_;
};

void add_names_with_suffix(const layout::ModuleNode& node, const std::vector<std::string>& suffixes,
                           std::vector<std::string>& names) {
  for (const auto& suffix : suffixes) {
    if (node.name.empty() || !node.name.ends_with(suffix)) continue;
    names.push_back(node.name);
    return;  // what lies inside belongs to the same unit
  }
  for (const auto& child : node.children) add_names_with_suffix(child, suffixes, names);
}

layout::UnitOptions unit_options(const Config& config, const layout::ModuleNode& tree) {
  const auto& zero = config.zero_optimization;
  layout::UnitOptions options{config.zerotorch.unit_numel, config.zerotorch.unit_names};
  options.leaf_module_names = zero.leaf_module_names;
  add_names_with_suffix(tree, zero.leaf_module_name_suffixes, options.unit_names);
  return options;
}

bool use_node_shared(const Config& config, const LaidOut& laid, int ranks_per_node) {
  using Store = Config::Zerotorch::Store;
  const auto wanted = config.zerotorch.store;
  if (wanted == Store::kAuto) return laid.hosts == 1 && laid.world_size > 1 && laid.sharding.parameters;
  if (wanted == Store::kNodeShared && laid.world_size % ranks_per_node != 0) {
    throw ConfigError(fmt::format(
        "zerotorch.store: 'node_shared' over several hosts needs as many ranks on each; {} ranks are "
        "not a multiple of {}. Change their number, or use 'copying' or 'auto'",
        laid.world_size, ranks_per_node));
  }
  return wanted == Store::kNodeShared;
}

std::vector<bool> residents(const Config& config, const LaidOut& laid) {
  const std::size_t count = laid.units.size();
  if (laid.node_shared) return std::vector<bool>(count, false);
  if (!laid.sharding.parameters || laid.world_size == 1) return std::vector<bool>(count, true);
  const auto& zero = config.zero_optimization;
  std::vector<layout::UnitSize> sizes;
  for (const layout::Unit& unit : laid.units) {
    std::int64_t largest = 0;
    for (const auto& slot : unit.slots) largest = std::max(largest, slot.numel);
    sizes.push_back({unit.numel, largest});
  }
  return layout::resident_units(sizes, zero.stage3_param_persistence_threshold,
                                zero.stage3_model_persistence_threshold);
}

}  // namespace

std::int64_t LaidOut::padded_numel(bool trainable_only) const {
  std::int64_t sum = 0;
  for (const auto& unit : units) sum += unit.trainable || !trainable_only ? unit.numel : 0;
  return sum;
}

std::int64_t LaidOut::largest_unit() const {
  std::int64_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.numel);
  return largest;
}

layout::ModuleNode module_tree(const std::vector<ParameterShape>& parameters) {
  TreeBuilder builder;
  for (std::size_t p = 0; p < parameters.size(); ++p) builder.add(parameters[p].name, static_cast<int>(p));
  return builder.build();
}

LaidOut lay_out(const ModelShape& model, const Config& config, int world_size, int ranks_per_node) {
  std::vector<layout::ParameterInfo> infos;
  for (const auto& parameter : model.parameters)
    infos.push_back({parameter.name, parameter.numel, parameter.trainable});
  const layout::ModuleNode tree = module_tree(model.parameters);
  LaidOut laid;
  laid.units = layout::make_units(tree, infos, unit_options(config, tree));
  laid.sharding = layout::sharding_of_stage(config.zero_optimization.stage);
  laid.low_dtype = config.param_dtype();
  laid.world_size = world_size;
  laid.hosts = (world_size + ranks_per_node - 1) / ranks_per_node;
  laid.overlap = config.zero_optimization.overlaps_comm();
  laid.step_in_backward = config.zerotorch.step_in_backward;
  laid.bucket_numel = layout::bucket_numel(config.zero_optimization.reduce_bucket_size, world_size);
  laid.node_shared = use_node_shared(config, laid, ranks_per_node);
  laid.resident = residents(config, laid);
  return laid;
}

}  // namespace zero::plan
