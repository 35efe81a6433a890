#include "engine/inventory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "config/did_you_mean.h"
#include "engine/agreement.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

class Walker {
 public:
  explicit Walker(Inventory& inventory) : inventory_(inventory) {}

  layout::ModuleNode walk(torch::nn::Module& module, const std::string& name) {
    layout::ModuleNode node;
    node.name = name;
    const std::string prefix = name.empty() ? "" : name + ".";
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (add_parameter(prefix + item.key(), item.value())) {
        node.parameters.push_back(static_cast<int>(inventory_.parameters.size()) - 1);
      }
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      const at::Tensor& buffer = item.value();
      if (buffer.defined()) add_buffer(prefix + item.key(), buffer);
    }
    for (const auto& item : module.named_children()) {
      if (item.value()) node.children.push_back(walk(*item.value(), prefix + item.key()));
    }
    return node;
  }

 private:
  void add_buffer(const std::string& name, const at::Tensor& tensor) {
    const auto [found, is_new] =
        buffer_of_.try_emplace(tensor.unsafeGetTensorImpl(), inventory_.buffers.size());
    if (is_new) {
      inventory_.buffers.push_back({name, tensor});
    } else {
      inventory_.buffers[found->second].aliases.push_back(name);
    }
  }

  bool add_parameter(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return false;  // register_parameter with an empty tensor: an absent bias
    if (!tensor.is_leaf()) {
      throw ModelError(
          fmt::format("parameter '{}' is not a leaf of the autograd graph (it was computed from other "
                      "tensors); register a tensor made by detach()",
                      name));
    }
    const auto [found, is_new] =
        index_of_.try_emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(inventory_.parameters.size()));
    inventory_.index_of.emplace(name, found->second);
    if (is_new) inventory_.parameters.push_back({name, tensor});
    return is_new;
  }

  Inventory& inventory_;
  std::map<const void*, int> index_of_;
  std::map<const void*, std::size_t> buffer_of_;
};

std::string describe(const Inventory& inventory) {
  std::string text;
  const auto add = [&](const char* what, const Inventory::Named& item) {
    text += fmt::format("{} '{}' {} [{}]{}\n", what, item.name, c10::toString(item.tensor.scalar_type()),
                        fmt::join(item.tensor.sizes(), ", "), item.tensor.requires_grad() ? "" : " frozen");
  };
  for (const auto& item : inventory.parameters) add("parameter", item);
  for (const auto& item : inventory.buffers) add("buffer", item);
  return text;
}

/// "; did you mean 'b'?", or nothing.
std::string suggestion(const Inventory& inventory, std::string_view name, bool with_buffers) {
  std::vector<std::string_view> names;
  for (const auto& [known, index] : inventory.index_of) names.push_back(known);
  if (with_buffers) {
    for (const auto& buffer : inventory.buffers) {
      names.push_back(buffer.name);
      names.insert(names.end(), buffer.aliases.begin(), buffer.aliases.end());
    }
  }
  const auto nearest = config::nearest(name, names);
  return nearest.empty() ? std::string() : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace

Inventory take_inventory(torch::nn::Module& module) {
  Inventory inventory;
  inventory.tree = Walker(inventory).walk(module, "");
  return inventory;
}

void check_agreement(const Inventory& inventory, Group& group) {
  if (auto difference = first_difference(describe(inventory), group, "model")) {
    throw ModelError(
        fmt::format("the ranks have different models: {}; build the same module with the same options on "
                    "every rank",
                    *difference));
  }
}

void require_known_names(const Inventory& inventory, const std::map<std::string, std::string>& names,
                         std::string_view option) {
  for (const auto& [name, there] : names) {
    const auto is_it = [&name = name](const Inventory::Named& buffer) {
      return buffer.name == name || std::ranges::find(buffer.aliases, name) != buffer.aliases.end();
    };
    if (inventory.index_of.contains(name) || std::ranges::any_of(inventory.buffers, is_it)) continue;
    throw CheckpointError(fmt::format(
        "{} has '{}', which is neither a parameter nor a buffer of this model{} (its keys are this model's "
        "names)",
        option, name, suggestion(inventory, name, /*with_buffers=*/true)));
  }
}

int find_parameter(const Inventory& inventory, std::string_view name) {
  if (auto found = inventory.index_of.find(name); found != inventory.index_of.end()) return found->second;
  throw ModelError(fmt::format("the module has no parameter '{}'{}", name,
                               suggestion(inventory, name, /*with_buffers=*/false)));
}

}  // namespace zero::engine
