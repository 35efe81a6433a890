#include "persistence/saved_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/agreement.h"
#include "zero/errors.h"

namespace zero::persistence {
namespace {

constexpr std::int64_t kMostCounted = std::int64_t{1} << 53;  // JSON's numbers hold no more everywhere
constexpr std::int64_t kMostInWindow = 1 << 30;               // micro-batches of a rank, or ranks

nlohmann::json to_json(const std::optional<double>& rate) { return rate ? nlohmann::json(*rate) : nlohmann::json(); }

nlohmann::json to_json(const optim::LossScaler& scaler) {
  const auto& state = scaler.state();
  nlohmann::json json = {{"scale", state.scale}, {"skipped_steps", state.skipped_steps}};
  if (scaler.dynamic()) {
    json["hysteresis_left"] = state.hysteresis_left;
    json["steps_since_overflow"] = state.steps_since_overflow;
  }
  return json;
}

/// The members of a state, checked one by one.
class Reader {
 public:
  Reader(const std::string& text, const std::string& folder) : json_(nlohmann::json::parse(text)), folder_(folder) {}

  [[noreturn]] void refuse(std::string_view key) const {
    throw CheckpointError(fmt::format("the checkpoint '{}' has no usable '{}' in its state", folder_, key));
  }

  /// As it is; null when there is none.
  nlohmann::json value(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() ? nlohmann::json() : *found;
  }

  /// A whole number from 0 to `most`.
  std::int64_t count(const char* key, std::int64_t most = kMostCounted) const { return count_in(json_, key, most); }

  /// Dynamic where the saved one was.
  optim::LossScaler loss_scaler(std::int64_t global_steps) const {
    const auto found = value("loss_scaler");
    const auto& json = found.is_object() ? found : json_;  // in version 1 beside the other counters
    optim::LossScaler scaler({.dynamic = json.contains("hysteresis_left")});
    optim::LossScaler::State state = scaler.state();
    state.skipped_steps = count_in(json, "skipped_steps", global_steps);
    if (json.contains("scale")) {
      const auto& scale = json["scale"];
      if (!scale.is_number() || !(scale.get<double>() > 0) || !std::isfinite(scale.get<double>()))
        refuse("loss_scaler");
      state.scale = scale.get<double>();
    }
    if (scaler.dynamic()) {
      state.hysteresis_left = count_in(json, "hysteresis_left", kMostCounted);
      state.steps_since_overflow = count_in(json, "steps_since_overflow", global_steps);
    }
    scaler.set_state(state);
    return scaler;
  }

  std::int64_t data_parallel_size() const {
    // Version 1 knows data-parallel ranks only.
    return count(value("data_parallel_size").is_null() ? "world_size" : "data_parallel_size", kMostInWindow);
  }

  /// How many have saved it; 1 where they are none.
  int islands() const {
    const auto found = value("local_steps");
    if (found.is_null()) return 1;
    if (!found.is_object() || (found.contains("in_round") && !found["in_round"].is_boolean())) refuse("local_steps");
    return static_cast<int>(count_in(found, "islands", kMostInWindow));
  }
  bool in_round() const {
    return islands() > 0 && value("local_steps") != nullptr && value("local_steps").value("in_round", false);
  }
  /// The state of one of `islands`; nothing if the checkpoint is of another number of them, or it is the first one's.
  std::optional<std::string> of_island(int island, int islands) const {
    if (island == 0 || this->islands() != islands) return std::nullopt;
    const auto others = value("local_steps").value("states", nlohmann::json());
    const auto index = static_cast<std::size_t>(island) - 1;
    if (!others.is_array() || others.size() + 1 != static_cast<std::size_t>(islands) || !others[index].is_object())
      refuse("local_steps");
    return others[index].dump();
  }

  std::uint64_t seed() const {
    const auto found = value("seed");  // 64 bits, as text
    if (!found.is_string()) refuse("seed");
    const auto& text = found.get_ref<const std::string&>();
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size()) refuse("seed");
    return seed;
  }

  std::vector<std::optional<double>> lr_overrides() const {
    constexpr const char* kOne = "learning_rate_override";
    constexpr const char* kEach = "learning_rate_overrides";
    const auto each = value(kEach);
    if (each.is_null()) return {rate(value(kOne), kOne)};
    if (!each.is_array()) refuse(kEach);
    std::vector<std::optional<double>> rates;
    for (const auto& value : each) rates.push_back(rate(value, kEach));
    return rates;
  }

  /// A list of names; empty when there is none.
  std::vector<std::string> names(const char* key) const {
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

  /// Counts by name, at most `most`; empty when there are none.
  std::map<std::string, std::int64_t> counts(const char* key, std::int64_t most) const {
    std::map<std::string, std::int64_t> counts;
    const auto found = value(key);
    if (found.is_null()) return counts;
    if (!found.is_object()) refuse(key);
    for (const auto& [name, count] : found.items()) {
      if (!count.is_number_integer() || count.get<std::int64_t>() < 0 || count.get<std::int64_t>() > most) refuse(key);
      counts.emplace(name, count.get<std::int64_t>());
    }
    return counts;
  }

 private:
  std::int64_t count_in(const nlohmann::json& object, const char* key, std::int64_t most) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number_integer()) refuse(key);
    const auto count = found->get<std::int64_t>();
    if (count < 0 || count > most) refuse(key);
    return count;
  }

  std::optional<double> rate(const nlohmann::json& value, const char* key) const {
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) refuse(key);
    return value.get<double>();
  }

  nlohmann::json json_;
  const std::string& folder_;
};

}  // namespace

nlohmann::json threads_per_rank() { return at::get_num_threads(); }
nlohmann::json cpu_capability() { return at::get_cpu_capability(); }
nlohmann::json cpu_products(const Engine::Impl& impl) {
  const bool computes_in_fp32 = impl.sharded.model.param_dtype == DType::kFloat32;  // unless under autocast
  if (impl.compute.cpu_products.empty() ||
      (computes_in_fp32 && impl.config.zerotorch.cpu_products == CpuProducts::kAuto))
    return nullptr;
  return impl.compute.cpu_products.front().chosen() == CpuProducts::kFp32 ? "fp32" : "native";
}

std::string SavedState::optimizer_name(const sharding::ShardedOptimizer& optimizer) {
  const std::string_view name = optimizer.name(), narrow = "8bit";
  return std::string(name.ends_with(narrow) ? name.substr(0, name.size() - narrow.size()) : name);
}

SavedState SavedState::of(const Engine::Impl& impl) {
  SavedState state;
  state.training = impl.training;
  auto& overrides = state.training.lr_overrides;
  const bool alike =
      std::all_of(overrides.begin(), overrides.end(), [&](const auto& value) { return value == overrides.front(); });
  if (alike) overrides.resize(1);
  state.window_micro_batches = impl.accumulation.window_micro_batches();
  state.gradient_accumulation_steps = impl.config.gradient_accumulation_steps;
  state.data_parallel_size = impl.groups.data_parallel.size();
  state.optimizer = optimizer_name(*impl.sharded.optimizer);
  state.optimizer_steps = impl.sharded.optimizer->steps();
  for (std::size_t p = 0; p < impl.sharded.model.parameters.size(); ++p) {
    const auto& parameter = impl.sharded.model.parameters[p];
    if (!impl.sharded.model.units[parameter.unit].trainable) continue;
    const int index = static_cast<int>(p);
    if (impl.sharded.optimizer->steps_of(index) != state.optimizer_steps)
      state.parameter_steps[parameter.name] = impl.sharded.optimizer->steps_of(index);
    if (state.window_micro_batches > 0 && !impl.sharded.reducer->used_in_window(index))
      state.unused_in_window.push_back(parameter.name);
    if (!parameter.tensor.requires_grad()) state.frozen.push_back(parameter.name);
  }
  state.model_parallel_size = impl.groups.model_parallel_size();
  state.stage = impl.config.zero_optimization.stage;
  state.precision = dtype_name(impl.sharded.model.param_dtype);
  state.threads_per_rank = persistence::threads_per_rank();
  state.cpu_capability = persistence::cpu_capability();
  state.cpu_products = persistence::cpu_products(impl);
  return state;
}

void SavedState::add_islands(Engine::Impl& impl) {
  const std::string mine = to_json();
  islands = impl.sharded.local_steps->islands();
  in_round = impl.sharded.local_steps->in_round();
  Group across = impl.sharded.local_steps->across();
  for (int island = 1; island < islands; ++island)
    other_islands.push_back(nlohmann::json::parse(engine::broadcast_text(mine, island, across, "states of islands")));
}

std::string SavedState::to_json() const {
  nlohmann::json json = {
      {"global_steps", training.global_steps},
      {"micro_batches", training.micro_batches},
      {"window_micro_batches", window_micro_batches},
      {"gradient_accumulation_steps", gradient_accumulation_steps},
      {"data_parallel_size", data_parallel_size},
      {"model_parallel_size", model_parallel_size},
      {"optimizer_steps", optimizer_steps},
      {"seed", std::to_string(training.seed)},  // 64 bits: more than JSON's numbers hold everywhere
      {"loss_scaler", persistence::to_json(training.scaler)},
      {"stage", stage},
      {"precision", precision},
      {"threads_per_rank", threads_per_rank},
      {"cpu_capability", cpu_capability},
      {"optimizer", optimizer},
  };
  if (!cpu_products.is_null()) json["cpu_products"] = cpu_products;
  if (training.schedule_begin != 0) json["schedule_begin"] = training.schedule_begin;
  if (training.accumulation_steps) json["gradient_accumulation_steps_set"] = true;
  // One number where all groups have it, as before there were several.
  const auto& overrides = training.lr_overrides;
  json["learning_rate_override"] = overrides.size() == 1 ? persistence::to_json(overrides.front()) : nlohmann::json();
  if (overrides.size() > 1) {
    auto& each = json["learning_rate_overrides"] = nlohmann::json::array();
    for (const auto& rate : overrides) each.push_back(persistence::to_json(rate));
  }
  if (!program_optimizer.is_null()) json["program_optimizer"] = program_optimizer;
  if (!parameter_steps.empty()) json["parameter_steps"] = parameter_steps;
  if (!frozen.empty()) json["frozen"] = frozen;
  if (!unused_in_window.empty()) json["unused_in_window"] = unused_in_window;
  if (islands > 1 || in_round)
    json["local_steps"] = {{"islands", islands}, {"in_round", in_round}, {"states", other_islands}};
  return json.dump();
}

SavedState SavedState::from_json(const std::string& text, Parts parts, const std::string& folder, int island,
                                 int islands) {
  const Reader all(text, folder);
  const Reader reader(all.of_island(island, islands).value_or(text), folder);
  SavedState state;
  state.islands = all.islands();
  state.in_round = all.in_round();
  if (parts.optimizer) {
    state.optimizer = reader.value("optimizer");
    state.frozen = reader.names("frozen");
    state.optimizer_steps = reader.count("optimizer_steps");
    state.parameter_steps = reader.counts("parameter_steps", state.optimizer_steps);
    state.unused_in_window = reader.names("unused_in_window");
    state.program_optimizer = reader.value("program_optimizer");
  }
  if (!parts.training) return state;
  auto& training = state.training;
  training.micro_batches = reader.count("micro_batches");
  state.window_micro_batches = reader.count("window_micro_batches");
  state.gradient_accumulation_steps = reader.count("gradient_accumulation_steps", kMostInWindow);
  state.data_parallel_size = reader.data_parallel_size();
  const std::int64_t inside = state.window_micro_batches;
  if (state.window() == 0 || inside > training.micro_batches || inside % state.data_parallel_size != 0)
    reader.refuse("micro_batches");
  training.window_begin = training.micro_batches - inside;
  if (reader.value("gradient_accumulation_steps_set") == true)
    training.accumulation_steps = state.gradient_accumulation_steps;
  training.global_steps = reader.count("global_steps");
  training.scaler = reader.loss_scaler(training.global_steps);
  if (!reader.value("schedule_begin").is_null()) {
    const nlohmann::json begin = reader.value("schedule_begin");
    if (!begin.is_number_integer()) reader.refuse("schedule_begin");
    training.schedule_begin = begin.get<std::int64_t>();
  }
  training.lr_overrides = reader.lr_overrides();
  training.seed = reader.seed();
  state.model_parallel_size = reader.value("model_parallel_size");
  state.stage = reader.value("stage");
  state.precision = reader.value("precision");
  state.threads_per_rank = reader.value("threads_per_rank");
  state.cpu_capability = reader.value("cpu_capability");
  state.cpu_products = reader.value("cpu_products");
  return state;
}

}  // namespace zero::persistence
