#include "zero/lm/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "models/families/family.h"
#include "models/folder_files.h"
#include "models/layers.h"
#include "zero/errors.h"

namespace zero::models {
namespace {

using at::Tensor;
using nlohmann::ordered_json;

constexpr const char* kAllLinear = "all-linear";
/// Before the name of a parameter in PEFT's files.
constexpr const char* kPrefix = "base_model.model.";

bool ends_with_part(std::string_view name, std::string_view part) {
  return name == part ||
         (name.size() > part.size() && name.ends_with(part) && name[name.size() - part.size() - 1] == '.');
}

/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string kind_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

struct LinearMap {
  std::string name;
  std::shared_ptr<AdaptableImpl> module;
};

/// Linear maps that can have adapters, and the names of those that cannot.
std::pair<std::vector<LinearMap>, std::vector<std::string>> linear_maps(const CausalLM& model) {
  std::vector<LinearMap> maps;
  std::vector<std::string> others;
  for (const auto& item : model->named_modules()) {
    auto module = std::dynamic_pointer_cast<AdaptableImpl>(item.value());
    const std::string& name = item.key();
    if (!module || ends_with_part(name, "lora_A") || ends_with_part(name, "lora_B")) continue;
    const bool is_routed = name.find(".experts.") != std::string::npos || ends_with_part(name, "gate");
    if (is_routed || name == "lm_head") {
      others.push_back(name);
    } else {
      maps.push_back({name, std::move(module)});
    }
  }
  // Of routed experts PEFT takes such names for the experts', in whatever layer they are.
  std::set<std::string> of_experts;
  for (const std::string& name : others)
    if (name.find(".experts.") != std::string::npos) of_experts.insert(kind_of(name));
  const auto [first, last] = std::ranges::stable_partition(
      maps, [&](const LinearMap& map) { return !of_experts.contains(kind_of(map.name)); });
  for (auto map = first; map != last; ++map) others.push_back(map->name);
  maps.erase(first, last);
  return {std::move(maps), std::move(others)};
}

void check_options(const LoraOptions& options) {
  const bool fits = options.rank >= 1 && options.alpha > 0 && std::isfinite(options.alpha) && options.dropout >= 0 &&
                    options.dropout < 1;
  if (fits) return;
  throw ConfigError(
      fmt::format("LoRA: got rank {}, alpha {}, dropout {}; want a rank of at least 1, alpha above 0 and dropout of at "
                  "least 0 and below 1",
                  options.rank, options.alpha, options.dropout));
}

/// Whether any of `targets` means this map; those that do leave `unused`.
bool is_wanted(const std::string& name, const std::vector<std::string>& targets, std::set<std::string>& unused) {
  bool wanted = false;
  for (const std::string& target : targets) {
    if (target != kAllLinear && !ends_with_part(name, target)) continue;
    unused.erase(target);
    wanted = true;
  }
  return wanted;
}

[[noreturn]] void refuse_targets(const std::set<std::string>& unused, const std::vector<LinearMap>& maps,
                                 const std::vector<std::string>& others) {
  std::set<std::string> known;
  for (const LinearMap& map : maps) known.insert(kind_of(map.name));
  for (const std::string& target : unused) {
    const auto found = std::ranges::find_if(others, [&](const auto& name) { return ends_with_part(name, target); });
    if (found != others.end()) {
      throw ConfigError(fmt::format(
          "LoRA: '{}' is '{}', and the head, routers and routed experts have no adapters here, nor have "
          "maps of other layers with the names of the experts', for which PEFT would take them; there are {}",
          target, *found, fmt::join(known, ", ")));
    }
  }
  throw ConfigError(
      fmt::format("LoRA: the model has no linear map '{}'; there are {}", *unused.begin(), fmt::join(known, ", ")));
}

/// Names of the model's adapters, and what PEFT calls them.
std::map<std::string, std::string> adapter_names(const CausalLM& model, std::vector<std::string>* others = nullptr) {
  std::map<std::string, std::string> names;
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    if (name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")) {
      names.emplace(name, kPrefix + name);
    } else if (others) {
      others->push_back(name);
    }
  }
  if (names.empty()) throw ModelError("the model has no adapters; add_lora() gives it some, before initialize()");
  return names;
}

/// Of adapter_config.json: what says how, and is of no effect on what comes out.
const std::set<std::string_view> kLoraWithoutEffect = {"auto_mapping",       "base_model_name_or_path",
                                                       "inference_mode",     "megatron_config",
                                                       "megatron_core",      "peft_version",
                                                       "runtime_config",     "revision",
                                                       "task_type",          "fan_in_fan_out",
                                                       "layers_pattern",     "loftq_config",
                                                       "eva_config",         "corda_config",
                                                       "lora_ga_config",     "qalora_group_size",
                                                       "ensure_weight_tying"};
constexpr const char* kRead[] = {"peft_type",      "r",    "lora_alpha",       "lora_dropout", "use_rslora",
                                 "target_modules", "bias", "init_lora_weights"};

bool says_nothing(const ordered_json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

void add_lora(CausalLM& model, const LoraOptions& options) {
  check_options(options);
  const auto [maps, others] = linear_maps(model);
  const std::vector<std::string> targets =
      options.targets.empty() ? family_of(model->config).traits().lora_targets : options.targets;
  std::set<std::string> unused(targets.begin(), targets.end());
  std::vector<LinearMap> wanted;
  for (const LinearMap& map : maps) {
    if (!is_wanted(map.name, targets, unused)) continue;
    if (map.module->lora_A) throw ConfigError(fmt::format("LoRA: '{}' has an adapter already", map.name));
    wanted.push_back(map);
  }
  if (!unused.empty()) refuse_targets(unused, maps, others);
  for (Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  const auto rank = static_cast<double>(options.rank);
  const double scale = options.alpha / (options.rslora ? std::sqrt(rank) : rank);
  const at::NoGradGuard no_grad;
  for (const LinearMap& map : wanted) {
    map.module->add_adapter(options.rank, scale, options.dropout);
    const double bound = 1 / std::sqrt(static_cast<double>(map.module->in));
    map.module->lora_A->weight.uniform_(-bound, bound, at::detail::getDefaultCPUGenerator());
    map.module->lora_B->weight.zero_();
  }
}

LoraOptions parse_lora(const std::string& text, const std::string& where) {
  const auto refuse = [&](const std::string& what) { throw ConfigError(fmt::format("{}: {}", where, what)); };
  const auto json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse("is not a JSON object");
  if (json.value("peft_type", ordered_json()) != "LORA")
    refuse(fmt::format("'peft_type' is {}: only \"LORA\" is built", json.value("peft_type", ordered_json()).dump()));
  for (const auto& [key, value] : json.items()) {
    const bool is_known = kLoraWithoutEffect.contains(key) || std::ranges::find(kRead, key) != std::end(kRead);
    if (!is_known && !says_nothing(value)) refuse(fmt::format("'{}' is {}, which is not built", key, value.dump()));
  }
  if (const auto bias = json.value("bias", ordered_json("none")); bias != "none")
    refuse(fmt::format("'bias' is {}: only \"none\" is built", bias.dump()));
  // Others than these change the base's weights when they are loaded.
  if (const auto init = json.value("init_lora_weights", ordered_json(true));
      !init.is_boolean() && init != "gaussian" && init != "orthogonal")
    refuse(fmt::format("'init_lora_weights' is {}, which is not built", init.dump()));
  LoraOptions options;
  try {
    options.rank = json.value("r", 8);
    options.alpha = json.value("lora_alpha", 8.0);
    options.dropout = json.value("lora_dropout", 0.0);
    options.rslora = json.value("use_rslora", false);
    const auto base = json.value("base_model_name_or_path", ordered_json());
    if (base.is_string()) options.base = base;
    const auto targets = json.value("target_modules", ordered_json());
    if (targets.is_string() && targets != kAllLinear) {
      refuse(fmt::format("'target_modules' is the pattern {}: only lists of names are built", targets.dump()));
    } else if (targets.is_string()) {
      options.targets = {kAllLinear};
    } else if (targets.is_array()) {
      options.targets = targets.get<std::vector<std::string>>();
    }
    check_options(options);
  } catch (const ordered_json::exception& error) {
    refuse(fmt::format("damaged ({})", error.what()));
  }
  std::ranges::sort(options.targets);
  return options;
}

LoraOptions read_lora(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? fs::path(path) / "adapter_config.json" : fs::path(path);
  return parse_lora(read_text(file), file.string());
}

std::string to_json(const LoraOptions& options, CausalLMConfig::Family family) {
  const ordered_json targets = options.targets.empty() ? family_of(family).traits().lora_targets : options.targets;
  const ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", options.base.empty() ? ordered_json() : ordered_json(options.base)},
      {"r", options.rank},
      {"lora_alpha", options.alpha},
      {"lora_dropout", options.dropout},
      {"use_rslora", options.rslora},
      {"target_modules", targets},
      {"fan_in_fan_out", family_of(family).traits().transposed_linear},
      {"bias", "none"},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return json.dump(2) + "\n";
}

LoadReport load_adapters(Engine& engine, const CausalLM& model, const std::string& folder) {
  FullWeightsOptions options;
  options.names = adapter_names(model, &options.optional);
  for (const auto& item : model->named_buffers()) options.optional.push_back(item.key());
  return engine.load_full_weights((std::filesystem::path(folder) / "adapter_model.safetensors").string(), options);
}

checkpoint::ExportReport save_adapters(Engine& engine, const CausalLM& model, const LoraOptions& options,
                                       const std::string& folder, const std::string& dtype) {
  const auto report = engine.save_full_weights(
      folder, {.dtype = dtype, .include_buffers = false, .names = adapter_names(model), .stem = "adapter_model"});
  LoraOptions resolved = options;
  if (std::ranges::find(options.targets, kAllLinear) != options.targets.end()) {
    std::set<std::string> kinds;
    for (const LinearMap& map : linear_maps(model).first) kinds.insert(kind_of(map.name));
    resolved.targets.assign(kinds.begin(), kinds.end());
  }
  Group group = engine.all_ranks();
  on_first(group, [&] {
    write_text(std::filesystem::path(folder) / "adapter_config.json", to_json(resolved, model->config.family));
  });
  return report;
}

void merge_adapters(Engine& engine, const CausalLM& model) {
  const at::NoGradGuard no_grad;
  for (const LinearMap& map : linear_maps(model).first) {
    if (!map.module->lora_A) continue;
    const std::string weight = map.name + ".weight", b_name = map.name + ".lora_B.weight";
    const Tensor a = engine.full_weight(map.name + ".lora_A.weight").to(at::kFloat);
    const Tensor b = engine.full_weight(b_name).to(at::kFloat);
    Tensor added = at::mm(b, a).mul_(map.module->adapter_scale);
    const Tensor before = engine.full_weight(weight);
    if (family_of(model->config).traits().transposed_linear) added = added.t();
    engine.set_full_weight(weight, before.to(at::kFloat) + added);
    engine.set_full_weight(b_name, at::zeros_like(b));
  }
}

}  // namespace zero::models
