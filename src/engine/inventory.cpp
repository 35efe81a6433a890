#include "engine/inventory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "engine/agreement.h"
#include "intercept/compat.h"
#include "intercept/parameter_handle.h"
#include "layout/module_tree.h"
#include "zero/errors.h"
#include "zero/nearest_name.h"

namespace zero::engine {
namespace {

class InventoryCollector {
 public:
  explicit InventoryCollector(Inventory& inventory) : inventory_(inventory) {}

  void add(const ModelView::Parameter& item) {
    if (!item.tensor.defined()) return;  // register_parameter with an empty tensor: an absent bias
    require_text(item.name);
    if (item.tensor.layout() != at::kStrided) {
      throw ModelError(
          fmt::format("parameter '{}' is a sparse or packed tensor, which cannot be sharded; register its "
                      "dense parts",
                      item.name));
    }
    if (!item.tensor.is_leaf()) {
      throw ModelError(
          fmt::format("parameter '{}' is not a leaf of the autograd graph (it was computed from other "
                      "tensors); register a tensor made by detach()",
                      item.name));
    }
    if (is_constant(item.tensor)) return add(ModelView::Buffer{.name = item.name, .tensor = item.tensor});
    const auto index = static_cast<int>(inventory_.parameters.size());
    const auto [found, is_new] = parameter_of_.try_emplace(item.tensor.unsafeGetTensorImpl(), index);
    require_new(inventory_.index_of.emplace(item.name, found->second).second, item.name);
    if (is_new) inventory_.parameters.push_back({item.name, item.tensor, {}, item.tensor.sizes().vec()});
  }

  void add(const ModelView::Buffer& item) {
    if (!item.tensor.defined()) return;
    require_text(item.name);
    require_new(buffer_names_.insert(item.name).second && !inventory_.index_of.contains(item.name), item.name);
    const auto [found, is_new] = buffer_of_.try_emplace(item.tensor.unsafeGetTensorImpl(), inventory_.buffers.size());
    if (is_new) {
      inventory_.buffers.push_back({item.name, item.tensor, {}, {}, item.in_parameter_dtype, item.persistent});
    } else {
      inventory_.buffers[found->second].aliases.push_back(item.name);
      inventory_.buffers[found->second].in_parameter_dtype |= item.in_parameter_dtype;
      inventory_.buffers[found->second].persistent |= item.persistent;
    }
  }

 private:
  /// Quantised weights: what no optimizer can update is no parameter to shard, and stays the module's as a buffer.
  static bool is_constant(const at::Tensor& parameter) {
    return !parameter.requires_grad() && !parameter.is_floating_point() && !parameter.is_complex();
  }

  /// Names go into JSON.
  static void require_text(const std::string& name) {
    try {
      static_cast<void>(nlohmann::json(name).dump());
    } catch (const nlohmann::json::exception&) {
      throw ModelError(fmt::format("the name '{}' of a parameter or buffer is not UTF-8", name));
    }
  }
  static void require_new(bool is_new, const std::string& name) {
    if (!is_new) throw ModelError(fmt::format("two parameters or buffers of the model are called '{}'", name));
  }

  Inventory& inventory_;
  std::map<const void*, int> parameter_of_;
  std::map<const void*, std::size_t> buffer_of_;
  std::set<std::string> buffer_names_;
};

layout::ModuleNode tree_of(const ModelView& model, const Inventory& inventory) {
  std::vector<layout::ParameterName> names;
  for (const auto& item : model.parameters) {
    const auto found = inventory.index_of.find(item.name);
    if (found != inventory.index_of.end()) names.push_back({item.name, found->second});
  }
  return layout::module_tree(names);
}

std::string described_to_agree(const Inventory& inventory) {
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
  names.reserve(inventory.index_of.size());
  for (const auto& [known, index] : inventory.index_of) names.push_back(known);
  if (with_buffers) {
    for (const auto& buffer : inventory.buffers) {
      names.push_back(buffer.name);
      names.insert(names.end(), buffer.aliases.begin(), buffer.aliases.end());
    }
  }
  const auto nearest = nearest_name(name, names);
  return nearest.empty() ? std::string() : fmt::format("; did you mean '{}'?", nearest);
}

}  // namespace

bool name_matches(std::string_view pattern, std::string_view name) {
  if (pattern == "*") return true;
  if (pattern.size() > 1 && pattern.front() == '*' && pattern.back() == '*') {
    return name.find(pattern.substr(1, pattern.size() - 2)) != std::string_view::npos;
  }
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == name;
}

Inventory take_inventory(const ModelView& model) {
  Inventory inventory;
  InventoryCollector collector(inventory);
  for (const auto& item : model.parameters) collector.add(item);
  for (const auto& item : model.buffers) collector.add(item);
  inventory.tree = tree_of(model, inventory);
  if (!model.walk) return inventory;
  model.walk([&inventory](const at::Tensor& tensor) {
    inventory.registered.push_back(tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr);
    return true;
  });
  const auto is_there = [&](const ModelView::Parameter& item) {
    return !item.tensor.defined() ||
           std::ranges::find(inventory.registered, item.tensor.unsafeGetTensorImpl()) != inventory.registered.end();
  };
  const auto absent = std::ranges::find_if_not(model.parameters, is_there);
  if (absent != model.parameters.end()) {
    throw ModelError(fmt::format("ModelView::walk does not visit parameter '{}', which is among ModelView::parameters",
                                 absent->name));
  }
  return inventory;
}

namespace {

/// First and last byte of a tensor's elements, in its storage.
std::pair<std::int64_t, std::int64_t> extent(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto nbytes = static_cast<std::int64_t>(tensor.element_size());
  return {tensor.storage_offset() * nbytes, (tensor.storage_offset() + last + 1) * nbytes};
}

/// The parameters that lie in one storage.
using Sharing = std::vector<const Inventory::Named*>;

/// References to the storage that come from the parameters themselves: one each, and that of a base which
/// only they know of, as when a parameter was registered as the view that t() returns.
std::int64_t own_references(const Sharing& sharing) {
  std::map<const void*, std::int64_t> views_of;  // base -> parameters that are views of it
  for (const auto* item : sharing) {
    if (item->tensor.is_view()) ++views_of[item->tensor._base().unsafeGetTensorImpl()];
  }
  auto references = static_cast<std::int64_t>(sharing.size());
  for (const auto* item : sharing) {
    if (!item->tensor.is_view()) continue;
    const auto& base = item->tensor._base();
    const auto found = views_of.find(base.unsafeGetTensorImpl());
    if (found == views_of.end()) continue;  // counted
    const bool only_theirs = static_cast<std::int64_t>(base.use_count()) <= found->second;
    if (only_theirs && base.has_storage() && base.is_alias_of(item->tensor)) ++references;
    views_of.erase(found);
  }
  return references;
}

void check_sharing(const Sharing& sharing) {
  for (std::size_t i = 0; i < sharing.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto a = extent(sharing[j]->tensor), b = extent(sharing[i]->tensor);
      if (a.second <= b.first || b.second <= a.first) continue;
      throw ModelError(
          fmt::format("parameters '{}' and '{}' share memory but are two tensors, which plain libtorch "
                      "updates twice a step; "
                      "to tie them, register one tensor under both names",
                      sharing[j]->name, sharing[i]->name));
    }
  }
  const auto& storage = sharing.front()->tensor.storage();
  const auto all = static_cast<std::int64_t>(storage.use_count());
  const std::int64_t of_python = intercept::has_idle_python_object(*storage.unsafeGetStorageImpl()) ? 1 : 0;
  const std::int64_t others = all - own_references(sharing) - of_python;
  if (others <= 0) return;
  throw ModelError(fmt::format(
      "{} the memory of parameter '{}' (a view made in a constructor, as in wt = w.t(), a "
      "detach(), or the graph of "
      "an earlier forward): zero::initialize gives the parameter new memory, and what shares the "
      "old one would keep "
      "its values for ever. Make views where they are used, clone() what is to stay as it is, "
      "and let old graphs go",
      others == 1 ? "another tensor shares" : fmt::format("{} other tensors share", others), sharing.front()->name));
}

}  // namespace

void check_memory(const Inventory& inventory) {
  std::map<const void*, Sharing> by_storage;
  for (const auto& item : inventory.parameters) {
    if (!item.tensor.has_storage() || item.tensor.numel() == 0) continue;
    const auto* handle = intercept::ParameterHandle::of(item.tensor);
    if (handle && handle->observer()) {
      throw ModelError(
          fmt::format("parameter '{}' belongs to another engine, which is alive. Let that engine go first; where two "
                      "networks "
                      "share a module, make one engine over a module that holds both, with a parameter group each",
                      item.name));
    }
    if (!handle) by_storage[item.tensor.storage().unsafeGetStorageImpl()].push_back(&item);
  }
  for (const auto& [storage, sharing] : by_storage) check_sharing(sharing);
}

bool is_unchanged(const Inventory& inventory, const ModelView& model) {
  if (!model.walk) return true;
  std::span<const void* const> left = inventory.registered;
  // One pointer of state: what std::function keeps without an allocation.
  const bool same = model.walk([&left](const at::Tensor& tensor) {
    const void* const identity = tensor.defined() ? tensor.unsafeGetTensorImpl() : nullptr;
    if (left.empty() || left.front() != identity) return false;
    left = left.subspan(1);
    return true;
  });
  return same && left.empty();
}

void throw_module_changed(const Inventory& before, const ModelView& model) {
  if (!model.now) {
    throw ModelError(
        "the model's parameters are not those of zero::initialize any more: ModelView::walk visits others (give "
        "ModelView::now, too, to read which)");
  }
  const Inventory now = take_inventory(model.now());
  const auto identity = [](const Inventory& inventory, const std::string& name) -> const void* {
    const auto found = inventory.index_of.find(name);
    return found == inventory.index_of.end() ? nullptr
                                             : inventory.parameters[found->second].tensor.unsafeGetTensorImpl();
  };
  std::string changes;
  const auto note = [&](const std::string& name, const char* what) {
    changes += fmt::format("{}'{}' was {}", changes.empty() ? "" : ", ", name, what);
  };
  for (const auto& [name, index] : now.index_of) {
    const void* const was = identity(before, name);
    if (was != identity(now, name)) note(name, was ? "replaced" : "added");
  }
  for (const auto& [name, index] : before.index_of) {
    if (!identity(now, name)) note(name, "removed");
  }
  if (changes.empty()) changes = "the parameters were registered in another order";
  throw ModelError(fmt::format(
      "the module's parameters are not those of zero::initialize any more: {}. The engine trains what it was "
      "given: save its weights (Engine::save_checkpoint or save_full_weights), make a new engine of the "
      "changed "
      "module and load them with strict set to false",
      changes));
}

void check_agreement(const Inventory& inventory, Group& group) {
  if (auto difference = first_difference(described_to_agree(inventory), group, "model")) {
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
    throw CheckpointError(
        fmt::format("{} has '{}', which is neither a parameter nor a buffer of this model{} (its keys are this model's "
                    "names)",
                    option, name, suggestion(inventory, name, /*with_buffers=*/true)));
  }
}

int find_parameter(const Inventory& inventory, std::string_view name) {
  if (auto found = inventory.index_of.find(name); found != inventory.index_of.end()) return found->second;
  throw ModelError(
      fmt::format("the module has no parameter '{}'{}", name, suggestion(inventory, name, /*with_buffers=*/false)));
}

}  // namespace zero::engine
