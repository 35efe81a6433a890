// In which order a model's operators read parameters, and its gradients are complete.
#include <algorithm>
#include <charconv>
#include <string>

#include "plan/engine_memory.h"

namespace zero::plan {
namespace {

/// model.uses, or every module once.
std::vector<Use> uses_of(const ModelShape& model) {
  if (!model.uses.empty()) return model.uses;
  std::vector<Use> uses;
  std::string module_before;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const std::string& name = model.parameters[p].name;
    const auto dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? std::string() : name.substr(0, dot);
    if (p == 0 || module != module_before) uses.emplace_back();
    uses.back().parameters.push_back(static_cast<int>(p));
    module_before = module;
  }
  return uses;
}

/// The order in which gradients are complete: a parameter's with the first of its uses, the last that
/// backward reaches; the arguments of one operator last to first, as a linear layer's bias comes before its
/// weight.
std::vector<int> arrivals(const ModelShape& model, const std::vector<Use>& uses) {
  std::vector<bool> seen(model.parameters.size(), false);
  std::vector<int> order;
  for (const Use& use : uses) {
    for (const int p : use.parameters) {
      if (seen[p]) continue;
      seen[p] = true;
      if (model.parameters[p].trainable) order.push_back(p);
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

/// The layer that a parameter is of, "h.3" of "h.3.qkv.weight", if it is recomputed; else "".
std::string recomputed_layer(const ModelShape& model, const std::string& name) {
  if (!model.transformer || !model.transformer->checkpointing) return "";
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(name.data() + begin, name.data() + end, number);
    if (error == std::errc() && rest == name.data() + end)
      return number % model.transformer->checkpoint_every == 0 ? name.substr(0, end) : "";
    begin = end + 1;
  }
  return "";
}

/// Gradients in the order in which they arrive, and together those that arrive in an order which is autograd's to
/// choose: a recomputed layer's, when its backward ends.
std::vector<std::vector<int>> arrivals_together(const ModelShape& model, const std::vector<Use>& uses) {
  std::vector<std::vector<int>> groups;
  std::string layer_before;
  for (const int p : arrivals(model, uses)) {
    std::string layer = recomputed_layer(model, model.parameters[static_cast<std::size_t>(p)].name);
    if (layer.empty() || layer != layer_before) groups.emplace_back();
    groups.back().push_back(p);
    layer_before = std::move(layer);
  }
  return groups;
}

}  // namespace

sharding::Workload workload_of(const ModelShape& model, const Config& config) {
  sharding::Workload work{.uses = uses_of(model), .arrivals = {}, .micro_batches = config.gradient_accumulation_steps};
  work.arrivals = arrivals_together(model, work.uses);
  return work;
}

}  // namespace zero::plan
