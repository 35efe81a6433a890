#include "compare/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "host/host_facts.h"
#include "text/text_format.h"
#include "train/report_tables.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

constexpr int kTitle = 14;
/// Of the CPU time, from which on what others do is said.
constexpr double kBusy = 0.05;

bool failed(const ordered_json& result) { return result.contains("error"); }
bool is_stage(const ordered_json& result) { return result["mode"].get<std::string>().starts_with("stage"); }

const ordered_json* first_stage(const Comparison& comparison) {
  for (const auto& result : comparison.modes) {
    if (!failed(result) && is_stage(result)) return &result;
  }
  return nullptr;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Medians of the steps after the warm-up, of every round.
std::vector<double> seconds_by_round(const ordered_json& result, std::int64_t warmup) {
  std::vector<double> medians;
  for (const auto& round : result["rounds"]) {
    auto seconds = round["seconds"].get<std::vector<double>>();
    const auto skipped = std::min(static_cast<std::size_t>(warmup), seconds.size() - 1);
    seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(skipped));
    medians.push_back(median(seconds));
  }
  return medians;
}

/// Of a step, in the fastest round: what others do on the machine only slows down.
double step_seconds(const ordered_json& result, std::int64_t warmup) {
  const std::vector<double> seconds = seconds_by_round(result, warmup);
  return *std::min_element(seconds.begin(), seconds.end());
}

/// Seconds of forward and backward alone; 0 when that was not measured.
double compute_seconds(const Comparison& comparison) {
  for (const auto& result : comparison.modes) {
    if (!failed(result) && result["mode"] == "compute") return step_seconds(result, comparison.warmup);
  }
  return 0;
}

/// Milliseconds of a step in the fastest and in the slowest round.
std::string spread(const ordered_json& result, std::int64_t warmup) {
  const std::vector<double> seconds = seconds_by_round(result, warmup);
  const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  return seconds.size() < 2 ? "-" : fmt::format("{:.1f}-{:.1f}", *fastest * 1e3, *slowest * 1e3);
}

std::string ratio(double seconds, double compute) {
  return compute > 0 ? fmt::format("{:.2f}", seconds / compute) : "-";
}

/// Most over ranks.
double kind_nbytes(const ordered_json& result, MemoryKind kind, const char* which) {
  double most = 0;
  for (const auto& rank : result["memory"]["by_rank"]) {
    most = std::max(most, rank[memory_key(kind)][which].get<double>());
  }
  return most;
}

double buffers(const ordered_json& result) {
  return kind_nbytes(result, MemoryKind::kGather, "peak_nbytes") +
         kind_nbytes(result, MemoryKind::kBuckets, "peak_nbytes") +
         kind_nbytes(result, MemoryKind::kStaging, "current_nbytes");
}

/// Of the fullest device, where ranks are on devices; else of all processes.
double peak_nbytes(const ordered_json& result) {
  const auto& memory = result["memory"];
  return memory[memory.contains("peak_device_nbytes") ? "peak_device_nbytes" : "peak_pss_nbytes"].get<double>();
}

std::string memory_rows(const Comparison& comparison) {
  constexpr const char* kRow = "  {:<14}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}\n";
  std::string text = fmt::format(kRow, "MB, fullest", "params", "masters", "states", "grads", "buffers", "activ.",
                                 "in all", "planned");
  for (const auto& result : comparison.modes) {
    if (failed(result)) continue;
    const auto now = [&](MemoryKind kind) { return megabytes(kind_nbytes(result, kind, "current_nbytes")); };
    text += fmt::format(kRow, mode_title(result["mode"]), now(MemoryKind::kParameters), now(MemoryKind::kMaster),
                        now(MemoryKind::kOptimizer), now(MemoryKind::kGradients), megabytes(buffers(result)),
                        megabytes(kind_nbytes(result, MemoryKind::kActivations, "peak_nbytes")),
                        megabytes(peak_nbytes(result)), megabytes(result.value("planned_nbytes", 0.0)));
  }
  if (comparison.plan.device != "cpu") {
    return text +
           "  Of the rank that holds most, by kind (activ.: of the CPU). In all: the most that\n"
           "  libtorch had of a device in training. Planned: what zero plan says of a GPU.\n\n";
  }
  return text +
         "  Of the rank that holds most, by kind (activ.: activations). In all: the most\n"
         "  that all processes held in training (PSS). Planned: what zero plan says of it.\n\n";
}

std::string time_rows(const Comparison& comparison) {
  const double compute = compute_seconds(comparison);
  constexpr const char* kRow = "  {:<14}{:>11}{:>16}{:>11}{:>13}{:>12}\n";
  std::string text = fmt::format(kRow, "", "ms a step", "of the rounds", "x fwd+bwd", "MB received", "tokens/s");
  for (const auto& result : comparison.modes) {
    if (failed(result)) {
      text += fmt::format("  {:<{}} {}\n", mode_title(result["mode"]), kTitle, result["error"].get<std::string>());
      continue;
    }
    const double seconds = step_seconds(result, comparison.warmup);
    const auto tokens = result["tokens_per_step"].get<double>();
    text += fmt::format(kRow, mode_title(result["mode"]), fmt::format("{:.1f}", seconds * 1e3),
                        spread(result, comparison.warmup), ratio(seconds, compute),
                        megabytes(result["received_nbytes_per_step"]), with_commas(std::llround(tokens / seconds)));
  }
  return text + "\n";
}

std::string loss_line(const Comparison& comparison) {
  const ordered_json* ours = first_stage(comparison);
  if (!ours) return "";
  const auto& losses = (*ours)["losses"];
  const auto stages = std::count_if(comparison.modes.begin(), comparison.modes.end(),
                                    [](const auto& one) { return !failed(one) && is_stage(one); });
  if (stages < 2) return "";
  return fmt::format(
      "  losses     {:.4f} -> {:.4f} nats: {}\n", losses.front().get<double>(), losses.back().get<double>(),
      same_losses(comparison) ? fmt::format("the same bits in all {} steps of all {} modes", losses.size(), stages)
                              : "NOT the same in all modes; see compare.json");
}

/// What speaks against the times.
std::string doubt_lines(const Comparison& comparison) {
  const double compute = compute_seconds(comparison);
  double busiest = 0;
  std::string text;
  for (const auto& result : comparison.modes) {
    if (failed(result)) continue;
    for (const auto& round : result["rounds"]) busiest = std::max(busiest, round["others_cpu_share"].get<double>());
    if (is_stage(result) && step_seconds(result, comparison.warmup) < 0.95 * compute) {
      text += fmt::format("  doubtful   {}: a step so much faster than its forward and backward\n",
                          mode_title(result["mode"]));
    }
  }
  if (busiest < kBusy) return text;
  return text + fmt::format(
                    "  doubtful   other programs had up to {:.0f} % of the CPU time:\n"
                    "             compare on an idle machine, or with more --rounds\n",
                    100 * busiest);
}

}  // namespace

void add_round(ordered_json& result, const ordered_json& another) {
  if (failed(another)) {
    result["error"] = another["error"];
    return;
  }
  const auto& losses = result["losses"];
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses[i] == another["losses"][i]) continue;
    result["error"] = fmt::format("the loss of step {} is {} in one round and {} in another", i + 1, losses[i].dump(),
                                  another["losses"][i].dump());
    result["repeats"] = false;
    return;
  }
  result["rounds"].push_back(another["rounds"][0]);
  for (const char* const which : {"peak_pss_nbytes", "peak_device_nbytes"}) {
    if (!result["memory"].contains(which)) continue;
    auto& peak = result["memory"][which];
    peak = std::max(peak.get<double>(), another["memory"][which].get<double>());
  }
}

std::string mode_title(const std::string& mode) {
  if (mode == "compute") return "fwd+bwd alone";
  if (mode == "stage0") return "ZeRO-0 (DP)";
  const std::string stage = "ZeRO-" + mode.substr(5, 1);
  return mode.ends_with("-copying") ? stage + " copying" : stage;
}

std::string describe_mode(const Comparison& comparison, const ordered_json& result) {
  if (failed(result)) {
    return fmt::format("  {:<{}} {}\n", mode_title(result["mode"]), kTitle, result["error"].get<std::string>());
  }
  return fmt::format("  {:<16}{:.1f} ms a step, {} in all, loss {:.4f}\n", mode_title(result["mode"]),
                     1e3 * step_seconds(result, comparison.warmup), human_nbytes(std::llround(peak_nbytes(result))),
                     result["losses"].back().get<double>());
}

bool same_losses(const Comparison& comparison) {
  const ordered_json* first = first_stage(comparison);
  return std::all_of(comparison.modes.begin(), comparison.modes.end(), [&](const auto& one) {
    return one.value("repeats", true) && (failed(one) || !is_stage(one) || one["losses"] == (*first)["losses"]);
  });
}

std::string describe_comparison(const Comparison& comparison) {
  return memory_rows(comparison) + time_rows(comparison) + loss_line(comparison) + doubt_lines(comparison);
}

ordered_json comparison_json(const Comparison& comparison) {
  const TrainPlan& plan = comparison.plan;
  return {{"host", host_facts()},
          {"preset", plan.preset},
          {"parameters_numel", plan.parameters_numel},
          {"model", {{"layers", plan.layers}, {"dim", plan.dim}, {"heads", plan.heads}, {"seq", plan.seq}}},
          {"ranks", plan.ranks},
          {"device", plan.device},
          {"steps", plan.steps},
          {"warmup", comparison.warmup},
          {"rounds", comparison.rounds},
          {"config", ordered_json::parse(plan.config)},
          {"corpus_hash", plan.corpus_hash},
          {"same_losses", same_losses(comparison)},
          {"modes", comparison.modes}};
}

}  // namespace zero::app
