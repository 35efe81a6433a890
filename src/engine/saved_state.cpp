#include "engine/saved_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "zero/errors.h"

namespace zero::engine {

std::string state_text(const Engine::Impl& impl) {
  nlohmann::json state = {
      {"global_steps", impl.global_steps},
      {"micro_batches", impl.micro_batches()},
      {"window_micro_batches", impl.window_micro_batches()},
      {"gradient_accumulation_steps", impl.config.gradient_accumulation_steps},
      {"data_parallel_size", impl.group.size()},
      {"model_parallel_size", impl.groups.model_parallel_size()},
      {"optimizer_steps", impl.optimizer->steps()},
      {"seed", std::to_string(impl.seed)},  // 64 bits: more than JSON's numbers hold everywhere
      {"loss_scaler", {{"scale", impl.scaler.scale()}, {"skipped_steps", impl.scaler.skipped_steps()}}},
      {"stage", impl.config.zero_optimization.stage},
      {"precision", dtype_name(impl.model.param_dtype)},
      {"threads_per_rank", at::get_num_threads()},
      {"cpu_capability", at::get_cpu_capability()},
  };
  // One number where all groups have it, as before there were several.
  const auto& overrides = impl.lr_overrides;
  nlohmann::json by_group = nlohmann::json::array();
  for (const auto& value : overrides) by_group.push_back(value ? nlohmann::json(*value) : nlohmann::json());
  const bool alike = std::all_of(overrides.begin(), overrides.end(),
                                 [&](const auto& value) { return value == overrides.front(); });
  state["learning_rate_override"] = alike ? by_group.front() : nlohmann::json();
  if (!alike) state["learning_rate_overrides"] = by_group;
  nlohmann::json steps = nlohmann::json::object(), unused = nlohmann::json::array(),
                 frozen = nlohmann::json::array();
  for (std::size_t p = 0; p < impl.model.parameters.size(); ++p) {
    const auto& parameter = impl.model.parameters[p];
    if (!impl.model.units[parameter.unit].trainable) continue;
    const int index = static_cast<int>(p);
    if (impl.optimizer->steps_of(index) != impl.optimizer->steps())
      steps[parameter.name] = impl.optimizer->steps_of(index);
    if (!impl.reducer->used_in_window(index)) unused.push_back(parameter.name);
    if (!parameter.tensor.requires_grad()) frozen.push_back(parameter.name);
  }
  if (!steps.empty()) state["parameter_steps"] = steps;  // of those left alone in some updates
  if (!frozen.empty()) state["frozen"] = frozen;  // for now: their states are kept
  if (impl.window_micro_batches() > 0 && !unused.empty()) state["unused_in_window"] = unused;
  return state.dump();
}

SavedState::SavedState(const std::string& text, std::string folder)
    : json_(nlohmann::json::parse(text)), folder_(std::move(folder)) {}

void SavedState::refuse(std::string_view key) const {
  throw CheckpointError(fmt::format("the checkpoint '{}' has no usable '{}' in its state", folder_, key));
}

nlohmann::json SavedState::value(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() ? nlohmann::json() : *found;
}

std::int64_t SavedState::count_in(const nlohmann::json& object, const char* key, std::int64_t most) const {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) refuse(key);
  const auto count = found->get<std::int64_t>();
  if (count < 0 || count > most) refuse(key);
  return count;
}

std::int64_t SavedState::count(const char* key, std::int64_t most) const { return count_in(json_, key, most); }

std::int64_t SavedState::skipped_steps(std::int64_t most) const {
  const auto scaler = value("loss_scaler");  // in version 1 beside the other counters
  return count_in(scaler.is_object() ? scaler : json_, "skipped_steps", most);
}

std::int64_t SavedState::window() const {
  constexpr std::int64_t kMost = 1 << 30;
  // Version 1 knows data-parallel ranks only.
  const char* const ranks = value("data_parallel_size").is_null() ? "world_size" : "data_parallel_size";
  return count("gradient_accumulation_steps", kMost) * count(ranks, kMost);
}

std::uint64_t SavedState::seed() const {
  const auto found = value("seed");  // 64 bits, as text
  if (!found.is_string()) refuse("seed");
  const auto& text = found.get_ref<const std::string&>();
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) refuse("seed");
  return seed;
}

std::optional<double> SavedState::rate(const nlohmann::json& value, const char* key) const {
  if (value.is_null()) return std::nullopt;
  if (!value.is_number()) refuse(key);
  return value.get<double>();
}

std::optional<std::vector<std::optional<double>>> SavedState::rates(std::size_t groups,
                                                                    std::size_t* saved_groups) const {
  constexpr const char* kOne = "learning_rate_override";
  constexpr const char* kEach = "learning_rate_overrides";
  std::vector<std::optional<double>> rates(groups, rate(value(kOne), kOne));
  const auto each = value(kEach);
  if (each.is_null()) return rates;
  if (!each.is_array()) refuse(kEach);
  *saved_groups = each.size();
  if (each.size() != groups) return std::nullopt;
  for (std::size_t g = 0; g < groups; ++g) rates[g] = rate(each[g], kEach);
  return rates;
}

std::vector<std::string> SavedState::names(const char* key) const {
  std::vector<std::string> names;
  const auto found = value(key);
  if (found.is_null()) return names;
  if (!found.is_array()) refuse(key);
  for (const auto& name : found) {
    if (!name.is_string()) refuse(key);
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::pair<std::string, std::int64_t>> SavedState::parameter_steps(std::int64_t most) const {
  constexpr const char* kKey = "parameter_steps";
  std::vector<std::pair<std::string, std::int64_t>> steps;
  const auto found = value(kKey);
  if (found.is_null()) return steps;
  if (!found.is_object()) refuse(kKey);
  for (const auto& [name, count] : found.items()) {
    if (!count.is_number_integer() || count.get<std::int64_t>() < 0 || count.get<std::int64_t>() > most) refuse(kKey);
    steps.emplace_back(name, count.get<std::int64_t>());
  }
  return steps;
}

}  // namespace zero::engine
