#include "layout/units.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/check.h"

namespace zero::layout {
namespace {

/// A unit before its parameters have places.
struct Draft {
  std::string first_name;
  std::string last_name;
  std::vector<int> parameters;
  std::int64_t numel = 0;
  bool fixed = false;  ///< asked for by name: never merged
};

class Drafter {
 public:
  Drafter(const std::vector<ParameterInfo>& parameters, const UnitOptions& options, std::int64_t bound)
      : parameters_(parameters), bound_(bound) {
    for (const auto& name : options.leaf_module_names) names_[name] = "zero_optimization.leaf_module.names";
    for (const auto& name : options.unit_names) names_[name] = "zerotorch.unit_names";
  }

  void visit(const ModuleNode& node) {
    const bool named = names_.erase(node.name) > 0;
    if (named || total(node) <= bound_) {
      Draft draft{node.name, node.name, {}, 0, named};
      collect(node, draft);
      add(std::move(draft));
      return;
    }
    Draft own{node.name, node.name, {}, 0, false};
    for (int index : node.parameters) append(own, index);
    add(std::move(own));
    for (const auto& child : node.children) visit(child);
  }

  std::vector<Draft> take() {
    if (!names_.empty()) {
      throw ConfigError(fmt::format(
          "{}: the model has no module '{}' (or it lies inside another unit that was named); names are those of "
          "named_modules(), for example 'layers.0'",
          names_.begin()->second, names_.begin()->first));
    }
    return std::move(drafts_);
  }

 private:
  std::int64_t total(const ModuleNode& node) const {
    std::int64_t sum = 0;
    for (int index : node.parameters) sum += parameters_[index].numel;
    for (const auto& child : node.children) sum += total(child);
    return sum;
  }

  void append(Draft& draft, int index) const {
    draft.parameters.push_back(index);
    draft.numel += parameters_[index].numel;
  }

  void collect(const ModuleNode& node, Draft& draft) {
    for (int index : node.parameters) append(draft, index);
    for (const auto& child : node.children) {
      names_.erase(child.name);
      collect(child, draft);
    }
  }

  void add(Draft draft) {
    if (draft.parameters.empty()) return;
    // A tiny unit costs a collective and saves nothing: it joins its neighbour.
    const std::int64_t tiny = bound_ / 64;
    if (!drafts_.empty() && !draft.fixed && !drafts_.back().fixed) {
      Draft& last = drafts_.back();
      const bool small = last.numel <= tiny || draft.numel <= tiny;
      if (small && last.numel + draft.numel <= bound_) {
        last.parameters.insert(last.parameters.end(), draft.parameters.begin(), draft.parameters.end());
        last.numel += draft.numel;
        last.last_name = draft.last_name;
        return;
      }
    }
    drafts_.push_back(std::move(draft));
  }

  const std::vector<ParameterInfo>& parameters_;
  std::map<std::string, std::string_view> names_;  ///< not met yet, and the key that has them
  std::int64_t bound_;
  std::vector<Draft> drafts_;
};

Unit place(const Draft& draft, const std::vector<ParameterInfo>& parameters, bool trainable, bool replicated) {
  Unit unit;
  unit.trainable = trainable;
  unit.replicated = replicated;
  unit.name = draft.first_name == draft.last_name ? draft.first_name : draft.first_name + ".." + draft.last_name;
  if (unit.name.empty()) unit.name = "(root)";
  if (!trainable) unit.name += " (frozen)";
  if (replicated) unit.name += " (replicated)";
  for (int index : draft.parameters) {
    if (parameters[index].trainable != trainable || parameters[index].replicated != replicated) continue;
    unit.slots.push_back({index, unit.numel, parameters[index].numel});
    unit.payload_numel += parameters[index].numel;
    unit.numel = round_up(unit.numel + parameters[index].numel, kAlignNumel);
  }
  unit.numel = round_up(unit.numel, kBlockNumel);
  return unit;
}

}  // namespace

std::vector<Unit> make_units(const ModuleNode& root, const std::vector<ParameterInfo>& parameters,
                             const UnitOptions& options) {
  std::int64_t total = 0;
  for (const auto& parameter : parameters) total += parameter.numel;
  const std::int64_t bound = options.unit_numel > 0 ? options.unit_numel : std::max<std::int64_t>(total / 8, 1);
  Drafter drafter(parameters, options, bound);
  drafter.visit(root);
  std::vector<Unit> units;
  for (const auto& draft : drafter.take()) {
    for (const bool trainable : {true, false}) {
      for (const bool replicated : {false, true}) {
        Unit unit = place(draft, parameters, trainable, replicated);
        if (!unit.slots.empty()) units.push_back(std::move(unit));
      }
    }
  }
  return units;
}

std::vector<bool> resident_units(const std::vector<UnitSize>& units, std::int64_t threshold_numel,
                                 std::int64_t model_numel) {
  std::vector<bool> resident(units.size(), false);
  std::int64_t left = model_numel;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (units[u].largest_parameter_numel >= threshold_numel || units[u].numel > left) continue;
    resident[u] = true;
    left -= units[u].numel;
  }
  return resident;
}

}  // namespace zero::layout
