#include "config/config_convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "zero/errors.h"

namespace zero::app {
namespace {

using Json = nlohmann::ordered_json;

struct Decision {
  std::optional<Json> value;  ///< nothing: the key is removed
  std::string why;
};

/// From an option, else what TrainingArguments has.
template <class T>
Decision from(const std::optional<T>& given, const char* option, T fallback, const char* trainers) {
  if (given) return {Json(*given), option};
  return {Json(fallback), fmt::format("the trainer's default of {} ({} gives another)", trainers, option)};
}

Decision precision(const TrainerArguments& given, const char* section) {
  const bool on = given.dtype == section;
  if (!given.dtype.empty()) return {Json(on), "--dtype"};
  return {Json(false), fmt::format("the trainer's default of {} (--dtype {} gives another)", section, section)};
}

Decision by_hidden_size(const TrainerArguments& given, double factor, bool squared) {
  if (!given.hidden_size) return {std::nullopt, "removed: chosen here (--hidden-size N takes the trainer's formula)"};
  const auto size = static_cast<double>(*given.hidden_size);
  return {Json(static_cast<std::int64_t>(factor * size * (squared ? size : 1))), "--hidden-size"};
}

Decision total_steps(const TrainerArguments& given, const std::string& path) {
  if (given.steps) return {Json(*given.steps), "--steps"};
  throw ConfigError(fmt::format("{}: the trainer fills in the steps of its run: give --steps N", path));
}

/// What becomes of "auto" at `path`.
Decision decide(const std::string& path, const TrainerArguments& given) {
  constexpr double kLr = 5e-5;
  if (path == "train_micro_batch_size_per_gpu")
    return from<std::int64_t>(given.micro_batch, "--micro-batch", 8, "per_device_train_batch_size");
  if (path == "gradient_accumulation_steps")
    return from<std::int64_t>(given.accumulation, "--accumulation", 1, "gradient_accumulation_steps");
  if (path == "train_batch_size") return {std::nullopt, "removed: it follows from the others and the ranks"};
  if (path == "gradient_clipping") return from(given.clipping, "--clipping", 1.0, "max_grad_norm");
  if (path == "optimizer.params.lr" || path == "scheduler.params.warmup_max_lr")
    return from(given.lr, "--lr", kLr, "learning_rate");
  if (path == "optimizer.params.weight_decay") return from(given.weight_decay, "--weight-decay", 0.0, "weight_decay");
  if (path == "optimizer.params.betas") return {Json::array({0.9, 0.999}), "the trainer's default"};
  if (path == "optimizer.params.eps") return {Json(1e-8), "the trainer's default of adam_epsilon"};
  if (path == "scheduler.params.warmup_min_lr") return {Json(0), "as the trainer"};
  if (path == "scheduler.params.warmup_num_steps")
    return from<std::int64_t>(given.warmup_steps, "--warmup-steps", 2, "warmup_steps, 0, of which DeepSpeed makes 2");
  if (path == "scheduler.params.total_num_steps") return total_steps(given, path);
  if (path == "bf16.enabled") return precision(given, "bf16");
  if (path == "fp16.enabled") return precision(given, "fp16");
  if (path == "zero_optimization.reduce_bucket_size") return by_hidden_size(given, 1, true);
  if (path == "zero_optimization.stage3_prefetch_bucket_size") return by_hidden_size(given, 0.9, true);
  if (path == "zero_optimization.stage3_param_persistence_threshold") return by_hidden_size(given, 10, false);
  return {std::nullopt, "removed: the default"};
}

/// The text without comments and without commas before a closing bracket.
std::string plain_json(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const std::size_t begin = i++;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      result.append(text, begin, i - begin + 1);
    } else if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (text.compare(i, 2, "/*") == 0) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
    } else {
      if (c == '}' || c == ']') {
        const std::size_t last = result.find_last_not_of(" \t\r\n");
        if (last != std::string::npos && result[last] == ',') result.erase(last, 1);
      }
      result += c;
    }
  }
  return result;
}

/// Options of the trainer's that are given, by name.
std::vector<std::string> names_of(const TrainerArguments& given) {
  std::vector<std::string> names;
  const auto add = [&](bool is_given, const char* name) {
    if (is_given) names.emplace_back(name);
  };
  add(given.lr.has_value(), "--lr");
  add(given.weight_decay.has_value(), "--weight-decay");
  add(given.clipping.has_value(), "--clipping");
  add(given.micro_batch.has_value(), "--micro-batch");
  add(given.accumulation.has_value(), "--accumulation");
  add(given.warmup_steps.has_value(), "--warmup-steps");
  add(given.hidden_size.has_value(), "--hidden-size");
  add(!given.dtype.empty(), "--dtype");
  return names;
}

class Conversion {
 public:
  Conversion(const TrainerArguments& given, std::vector<std::string>& decisions)
      : given_(given), decisions_(decisions) {}

  /// What the trainer makes itself where the file has no such section: its AdamW, and a rate that falls in a line.
  void add_sections(Json& json) {
    if (!json.contains("optimizer")) {
      json["optimizer"] = {{"type", "AdamW"},
                           {"params", {{"lr", "auto"}, {"betas", "auto"}, {"eps", "auto"}, {"weight_decay", "auto"}}}};
      decisions_.emplace_back("optimizer: AdamW (the trainer's own, as there is no section)");
    }
    if (json.contains("scheduler")) return;
    if (!given_.steps) {
      if (given_.warmup_steps)
        throw ConfigError("--warmup-steps: of the trainer's own schedule, as there is no section: give --steps N, too");
      decisions_.emplace_back(
          "scheduler: none (the trainer's own falls in a line to 0, as there is no section: --steps N writes it)");
      return;
    }
    json["scheduler"] = {{"type", "WarmupDecayLR"},
                         {"params",
                          {{"warmup_min_lr", "auto"},
                           {"warmup_max_lr", "auto"},
                           {"warmup_num_steps", "auto"},
                           {"warmup_type", "linear"},
                           {"total_num_steps", "auto"}}}};
    decisions_.emplace_back("scheduler: WarmupDecayLR (the trainer's own, as there is no section)");
  }

  /// Throws ConfigError for an option that no value has taken.
  void check_options(const std::string& name) const {
    for (const std::string& option : names_of(given_)) {
      if (!taken_.contains(option))
        throw ConfigError(fmt::format(
            "{}: no value of {} is \"auto\" that it fills in; change the file, or leave it away", option, name));
    }
  }

  void run(Json& object, const std::string& above) {
    for (auto item = object.begin(); item != object.end();) {
      const std::string path = above.empty() ? item.key() : above + "." + item.key();
      if (item->is_object()) run(*item, path);
      if (*item != "auto" || path == "pipeline.stages" || path.starts_with("zerotorch.")) {
        ++item;
        continue;
      }
      const Decision decision = decide(path, given_);
      taken_.insert(decision.why);
      if (decision.value) {
        decisions_.push_back(fmt::format("{}: {} ({})", path, decision.value->dump(), decision.why));
        *item++ = *decision.value;
      } else {
        decisions_.push_back(fmt::format("{}: {}", path, decision.why));
        item = object.erase(item);
      }
    }
  }

 private:
  const TrainerArguments& given_;
  std::vector<std::string>& decisions_;
  std::set<std::string> taken_;  ///< options, among other reasons
};

}  // namespace

Converted convert_trainer_json(const std::string& text, const std::string& name, const TrainerArguments& given) {
  Converted result;
  try {
    Json json = Json::parse(plain_json(text));
    if (!json.is_object()) throw ConfigError(fmt::format("{}: want a JSON object", name));
    Conversion conversion(given, result.decisions);
    conversion.add_sections(json);
    conversion.run(json, "");
    conversion.check_options(name);
    result.json = json.dump(2);
  } catch (const nlohmann::json::exception& error) {
    const std::string said = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    throw ConfigError(fmt::format("{}: {}", name, said.substr(said.starts_with("[") ? said.find("] ") + 2 : 0)));
  }
  return result;
}

}  // namespace zero::app
