#include "persistence/saved_tensors.h"

#include <fmt/format.h>

namespace zero::persistence {

namespace kinds = checkpoint::kinds;

namespace {

bool is_weight_or_buffer(const checkpoint::TensorInfo& info) {
  const std::string_view kind = kinds::parse_island(info.kind).kind;
  return kind == kinds::kWeight || kind == kinds::kBuffer;
}

}  // namespace

SavedTensors::SavedTensors(const Engine::Impl& impl, const checkpoint::Manifest& manifest, const Names& renamed,
                           int island)
    : impl_(impl), manifest_(manifest), renamed_(renamed) {
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const auto [whose, kind] = kinds::parse_island(info(t).kind);
    const std::string key = fmt::format("{}/{}", kind, info(t).name);
    if (whose == island) index_[key] = t;
    if (whose == 0) index_.emplace(key, t);
    if (whose != 0) continue;
    // Another name of a tied parameter or buffer may be the first one in another model.
    if (!is_weight_or_buffer(info(t))) continue;
    for (const auto& alias : info(t).aliases) owner_of_alias_.emplace(alias, info(t).name);
  }
}

std::optional<std::size_t> SavedTensors::find(std::string_view kind, const std::string& name) const {
  const auto key = [kind](const std::string& n) { return fmt::format("{}/{}", kind, n); };
  const auto renamed = renamed_.find(name);
  const std::string& wanted = renamed == renamed_.end() ? name : renamed->second;
  if (const auto found = index_.find(key(wanted)); found != index_.end()) return found->second;
  const auto owner = owner_of_alias_.find(wanted);
  if (owner == owner_of_alias_.end()) return std::nullopt;
  const auto found = index_.find(key(owner->second));
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> SavedTensors::find_parameter(std::string_view kind, int parameter) const {
  const auto& name = impl_.sharded.model.parameters[parameter].name;
  if (auto found = find(kind, name)) return found;
  for (const auto& [alias, index] : impl_.trained.inventory.index_of) {
    if (index != parameter || alias == name) continue;
    if (auto found = find(kind, alias)) return found;
  }
  return std::nullopt;
}

bool SavedTensors::has_states(int parameter) const {
  const auto& optimizer = *impl_.sharded.optimizer;
  for (std::size_t state = 0; state < optimizer.states().size(); ++state) {
    if (optimizer.has_state(state, parameter))
      return find_parameter(optimizer.states()[state].name, parameter).has_value();
  }
  if (const auto whole = optimizer.tensor_states(parameter); !whole.empty())
    return find_parameter(whole.front().name, parameter).has_value();
  const auto weight = find_parameter(kinds::kWeight, parameter);
  return weight && info(*weight).trainable;
}

std::set<std::string> SavedTensors::states() const {
  std::set<std::string> states;
  for (const auto& tensor : manifest_.tensors) {
    const auto [island, kind] = kinds::parse_island(tensor.info.kind);
    if (is_weight_or_buffer(tensor.info) || kind == kinds::kGradientSum || kind == kinds::kRandomState ||
        kind == kinds::kOuterWeight || kind == kinds::kOuterMomentum)
      continue;
    states.emplace(kind);
  }
  return states;
}

std::map<std::string, int> SavedTensors::parameters_by_saved_name() const {
  std::map<std::string, int> parameters;
  for (std::size_t p = 0; p < impl_.sharded.model.parameters.size(); ++p) {
    if (const auto t = find_parameter(kinds::kWeight, static_cast<int>(p)))
      parameters.emplace(info(*t).name, static_cast<int>(p));
  }
  return parameters;
}

std::vector<int> SavedTensors::parameters_among(const std::vector<std::string>& names) const {
  std::vector<int> parameters;
  const auto by_name = parameters_by_saved_name();
  for (const auto& name : names) {
    if (const auto p = by_name.find(name); p != by_name.end()) parameters.push_back(p->second);
  }
  return parameters;
}

std::vector<std::size_t> SavedTensors::weights_and_buffers() const {
  std::vector<std::size_t> tensors;
  for (const auto& [key, t] : index_) {
    if (is_weight_or_buffer(info(t))) tensors.push_back(t);
  }
  return tensors;
}

}  // namespace zero::persistence
