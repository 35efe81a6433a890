#include "config/config_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "text/text_format.h"
#include "zero/plan.h"

namespace zero::app {
namespace {

using Scheduler = Config::Scheduler;
using Json = nlohmann::ordered_json;

/// "lr 0.001, betas [0.9,0.999]", in the order of the schema, without what is off.
std::string parameters_text(const Json& section) {
  std::string text;
  if (!section.contains("params")) return text;
  for (const auto& [name, value] : section.at("params").items()) {
    if (!value.is_null() && value != false)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value.dump());
  }
  return text;
}

std::string batch_text(const CheckedConfig& checked) {
  const Config& given = checked.given;
  const Config& config = checked.resolved;
  std::vector<std::string_view> filled;
  if (given.train_batch_size == 0) filled.push_back("train_batch_size");
  if (given.train_micro_batch_size_per_gpu == 0) filled.push_back("train_micro_batch_size_per_gpu");
  if (given.gradient_accumulation_steps == 0) filled.push_back("gradient_accumulation_steps");
  std::string text =
      fmt::format("{} a step = micro-batch {} x accumulation {} x {}", counted(config.train_batch_size, "sample"),
                  with_commas(config.train_micro_batch_size_per_gpu), with_commas(config.gradient_accumulation_steps),
                  counted(checked.ranks, "rank"));
  if (!filled.empty()) text += fmt::format("; filled in: {}", fmt::join(filled, ", "));
  return text;
}

std::string loss_scale_text(const Config::Fp16& fp16) {
  if (fp16.loss_scale != 0) return fmt::format("loss scale {:g}, static", fp16.loss_scale);
  return fmt::format(
      "loss scale dynamic: from {:g}, doubled after {} without overflow, halved at overflow {}{}, at "
      "least {:g}",
      std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power)), counted(fp16.loss_scale_window, "step"),
      fp16.hysteresis, fp16.consecutive_hysteresis ? " in a row" : "", fp16.min_loss_scale);
}

std::string precision_text(const Config& config) {
  std::string text(dtype_name(config.param_dtype()));
  if (config.has_16_bit_masters()) {
    text += " without other master weights";
    if (config.zerotorch.stochastic_rounding) text += ", rounded stochastically";
  } else if (config.param_dtype() != DType::kFloat32) {
    text += " with fp32 master weights";
  }
  if (config.sum_dtype() != DType::kFloat32)
    text += fmt::format("; gradients are summed in {}", dtype_name(config.sum_dtype()));
  if (config.fp16.enabled) text += "; " + loss_scale_text(config.fp16);
  if (config.skips_non_finite()) text += "; a step with a gradient that is not finite is skipped";
  const DType sent = config.communication_dtype.value_or(config.param_dtype());
  if (sent != config.param_dtype()) text += fmt::format("; gradients travel in {}", dtype_name(sent));
  return text;
}

std::string states_text(const Config& config) {
  const plan::OptimizerStates states = plan::optimizer_states(config);
  if (!states.names_of_tensors.empty()) {
    return fmt::format("states of rows and columns only ({})", fmt::join(states.names_of_tensors, ", "));
  }
  if (states.names.empty()) return "no states";
  std::string text = fmt::format("{:g} bytes of states a parameter ({})", states.nbytes, fmt::join(states.names, ", "));
  if (!states.names_of_rest.empty()) {
    text +=
        fmt::format(" of a matrix, {:g} ({}) of others", states.nbytes_of_rest, fmt::join(states.names_of_rest, ", "));
  }
  const bool has_masters = config.param_dtype() != DType::kFloat32 && !config.has_16_bit_masters();
  return has_masters ? text + ", besides its fp32 master weight" : text;
}

/// The steps after which the schedule stays as it is or is over; 0: it has no end of its own.
std::int64_t steps_of(const Scheduler& schedule) {
  using Type = Scheduler::Type;
  switch (schedule.type) {
    case Type::kWarmupLR:
      return schedule.warmup_num_steps + 1;
    case Type::kWarmupDecayLR:
    case Type::kWarmupCosineLR:
      return schedule.total_num_steps;
    case Type::kOneCycle:
      return schedule.cycle_first_step_size + schedule.cycle_second_step_size.value_or(schedule.cycle_first_step_size) +
             1;
    case Type::kLinearLR:
    case Type::kPolynomialLR:
      return schedule.total_iters + 1;
    case Type::kCosineAnnealingLR:
      return schedule.t_max + 1;
    default:
      return 0;
  }
}

/// Where the rate is highest. Of a longer run not every step is looked at, but all at which a schedule turns.
std::int64_t peak_step(const Config& config, std::int64_t steps) {
  constexpr std::int64_t kLooks = 100'000;
  const Scheduler& schedule = config.scheduler;
  std::set<std::int64_t> places = {schedule.warmup_num_steps, schedule.warmup_num_steps + 1,
                                   schedule.cycle_first_step_size, steps - 1};
  for (std::int64_t step = 0; step < steps; step += std::max<std::int64_t>(1, steps / kLooks)) places.insert(step);
  std::int64_t best = 0;
  for (const std::int64_t step : places) {
    if (step < steps && plan::learning_rate_at(config, step) > plan::learning_rate_at(config, best)) best = step;
  }
  return best;
}

std::string rate_text(const Config& config, std::int64_t step) {
  return fmt::format("{:.6g} at step {}", plan::learning_rate_at(config, step), with_commas(step + 1));
}

std::string rates_text(const Config& config, std::optional<std::int64_t> run_steps) {
  const std::int64_t steps = run_steps.value_or(steps_of(config.scheduler));
  if (steps == 0) return fmt::format("rate {}; --steps N says what it comes to", rate_text(config, 0));
  return fmt::format("rate {}, highest {}, {} {}", rate_text(config, 0), rate_text(config, peak_step(config, steps)),
                     run_steps || config.scheduler.total_num_steps > 0 ? "last" : "then", rate_text(config, steps - 1));
}

std::string stage_text(const CheckedConfig& checked) {
  constexpr std::string_view kSharded[] = {"nothing is sharded", "optimizer states are sharded",
                                           "optimizer states and gradients are sharded",
                                           "optimizer states, gradients and parameters are sharded"};
  const Config& config = checked.resolved;
  const auto stage = static_cast<std::size_t>(config.zero_optimization.stage);
  std::string text = fmt::format("{}: {}", stage, kSharded[stage]);
  if (stage > 0) text += fmt::format(" over {}", counted(checked.ranks, "rank"));
  if (config.zero_optimization.overlaps_comm()) text += "; communication overlaps computation";
  if (const auto updates = update_summary(config.zerotorch.update); !updates.empty())
    text += fmt::format("; {}", updates);
  return text;
}

std::string clipping_text(const Config& config) {
  if (config.gradient_clipping == 0) return "off";
  return fmt::format("the norm of all gradients is at most {:g}", config.gradient_clipping);
}

std::string files_text(const Config& config) {
  namespace fs = std::filesystem;
  std::string text;
  const auto add = [&text](std::string_view what, const fs::path& folder, const std::string& job) {
    text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", what, (folder / job).string());
  };
  const auto& events = config.tensorboard;
  if (events.enabled)
    add("TensorBoard's events", events.output_path.empty() ? "runs" : events.output_path, events.job_name);
  if (config.csv_monitor.enabled) add("CSV files", config.csv_monitor.output_path, config.csv_monitor.job_name);
  return text;
}

}  // namespace

std::string config_text(const CheckedConfig& checked) {
  const Config& config = checked.resolved;
  const Json json = Json::parse(config.to_json());
  std::string text = fmt::format("{}: would run on {}\n\n", checked.file, counted(checked.ranks, "rank"));
  text += hanging("batch", batch_text(checked));
  text += hanging("precision", precision_text(config));
  std::string hyper = json.contains("optimizer") ? parameters_text(json.at("optimizer")) : "";
  if (hyper.empty()) hyper = fmt::format("lr {:g}, the other defaults of docs/optimizers.md", config.optimizer.lr);
  text += hanging("optimizer", fmt::format("{}{}: {}", config.optimizer.type,
                                           config.optimizer.given ? "" : " (no section in the file)", hyper));
  text += hanging("", states_text(config));
  if (config.scheduler.type == Scheduler::Type::kNone) {
    text += hanging("schedule", fmt::format("none: the rate stays {:g}", config.optimizer.lr));
  } else {
    const Json& section = json.at("scheduler");
    text += hanging("schedule", fmt::format("{}: {}", section.at("type").get<std::string>(), parameters_text(section)));
    text += hanging("", rates_text(config, checked.steps));
  }
  text += hanging("clipping", clipping_text(config));
  text += hanging("stage", stage_text(checked));
  if (const std::string files = files_text(config); !files.empty()) text += hanging("monitors", printable(files));
  std::string notices = config.notices.empty() ? "none" : "";
  for (const std::string& notice : config.notices) notices += (notices.empty() ? "" : "\n") + printable(notice);
  text += hanging("notices", notices);
  return text;
}

namespace {

/// "accepted: a b"; empty where any value is.
std::string accepted_text(const KeyInfo& key) {
  if (key.accepted_values.empty()) return "";
  std::string values(key.accepted_values);
  std::ranges::replace(values, '|', ' ');
  return fmt::format("accepted: {}", values);
}

}  // namespace

std::string key_text(const KeyInfo& key) {
  std::string text = fmt::format("{}  {}  {}", key.path, status_name(key.status), key.kind);
  if (!key.default_value.empty()) text += fmt::format("  default {}", key.default_value);
  if (!key.alias_of.empty()) text += fmt::format("  old name of {}", key.alias_of);
  if (!key.note.empty()) text += fmt::format("  {}", key.note);
  if (const std::string accepted = accepted_text(key); !accepted.empty()) text += fmt::format(" ({})", accepted);
  return text;
}

std::string wrapped_key_text(const KeyInfo& key) {
  std::string text = fmt::format("{}, {}", status_name(key.status), key.kind);
  if (!key.default_value.empty()) text += fmt::format(", default {}", key.default_value);
  if (!key.alias_of.empty()) text += fmt::format(", old name of {}", key.alias_of);
  if (!key.note.empty()) text += fmt::format("\n{}", key.note);
  if (const std::string accepted = accepted_text(key); !accepted.empty()) text += "\n" + accepted;
  return fmt::format("{}\n{}", key.path, wrapped("", text, 4));
}

std::string keys_json(const std::vector<KeyInfo>& keys) {
  const auto value_of = [](const std::string& text) {
    Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    return value.is_discarded() ? Json(text) : value;
  };
  Json all = Json::array();
  for (const KeyInfo& key : keys) {
    Json one = {{"path", key.path}, {"status", status_name(key.status)}, {"kind", key.kind}};
    if (!key.default_value.empty()) one["default"] = value_of(std::string(key.default_value));
    if (!key.alias_of.empty()) one["alias_of"] = key.alias_of;
    if (!key.note.empty()) one["note"] = key.note;
    std::istringstream values{std::string(key.accepted_values)};
    for (std::string value; std::getline(values, value, '|');) one["accepted_values"].push_back(value_of(value));
    all.push_back(std::move(one));
  }
  return all.dump(2);
}

}  // namespace zero::app
