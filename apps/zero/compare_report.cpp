#include "compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "host_facts.h"
#include "text_format.h"
#include "zero/memory.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

bool failed(const ordered_json& result) { return result.contains("error"); }
bool is_stage(const ordered_json& result) { return result["mode"].get<std::string>().starts_with("stage"); }

const ordered_json* first_stage(const Comparison& comparison) {
  for (const auto& result : comparison.modes) {
    if (!failed(result) && is_stage(result)) return &result;
  }
  return nullptr;
}

/// Seconds of forward and backward alone; 0 when that was not measured.
double compute_seconds(const Comparison& comparison) {
  for (const auto& result : comparison.modes) {
    if (!failed(result) && result["mode"] == "compute") return median_seconds(result, comparison.warmup);
  }
  return 0;
}

std::string ratio(double seconds, double compute) {
  return compute > 0 ? fmt::format("{:.2f}", seconds / compute) : "-";
}

/// Most over ranks.
double kind_nbytes(const ordered_json& result, MemoryKind kind, const char* which) {
  double most = 0;
  for (const auto& rank : result["memory"]["by_rank"]) {
    most = std::max(most, rank[std::string(memory_kind_name(kind))][which].get<double>());
  }
  return most;
}

double buffers(const ordered_json& result) {
  return kind_nbytes(result, MemoryKind::kGather, "peak_nbytes") +
         kind_nbytes(result, MemoryKind::kBuckets, "peak_nbytes") +
         kind_nbytes(result, MemoryKind::kStaging, "current_nbytes");
}

std::string memory_rows(const Comparison& comparison) {
  std::string text =
      fmt::format("  {:<24}{:>11}{:>9}{:>11}{:>11}{:>9}{:>13}{:>11}{:>10}\n", "MB of the fullest rank", "parameters",
                  "masters", "optimizer", "gradients", "buffers", "activations", "all ranks", "planned");
  for (const auto& result : comparison.modes) {
    if (failed(result)) continue;
    const auto now = [&](MemoryKind kind) { return megabytes(kind_nbytes(result, kind, "current_nbytes")); };
    text += fmt::format("  {:<24}{:>11}{:>9}{:>11}{:>11}{:>9}{:>13}{:>11}{:>10}\n", mode_title(result["mode"]),
                        now(MemoryKind::kParameters), now(MemoryKind::kMaster), now(MemoryKind::kOptimizer),
                        now(MemoryKind::kGradients), megabytes(buffers(result)),
                        megabytes(kind_nbytes(result, MemoryKind::kActivations, "peak_nbytes")),
                        megabytes(result["memory"]["peak_pss_nbytes"]), megabytes(result.value("planned_nbytes", 0.0)));
  }
  return text +
         "  All ranks: the most their processes held while training (PSS: shared pages count once);\n"
         "  planned: what zero plan says of that.\n\n";
}

std::string time_rows(const Comparison& comparison) {
  const double compute = compute_seconds(comparison);
  std::string text = fmt::format("  {:<24}{:>10}{:>20}{:>22}{:>16}\n", "time and traffic", "ms a step",
                                 "x forward+backward", "MB a step to a rank", "tokens/s");
  for (const auto& result : comparison.modes) {
    if (failed(result)) {
      text += fmt::format("  {:<24}{}\n", mode_title(result["mode"]), result["error"].get<std::string>());
      continue;
    }
    const double seconds = median_seconds(result, comparison.warmup);
    const auto tokens = result["tokens_per_step"].get<double>();
    text += fmt::format("  {:<24}{:>10.1f}{:>20}{:>22}{:>16}\n", mode_title(result["mode"]), seconds * 1e3,
                        ratio(seconds, compute), megabytes(result["received_nbytes_per_step"]),
                        with_commas(std::llround(tokens / seconds)));
  }
  return text + "\n";
}

std::string peer_title(const ordered_json& peer) {
  static const std::pair<const char*, const char*> kTitles[] = {{"compute", "PyTorch, no optimizer"},
                                                                {"ddp", "DDP"},
                                                                {"fsdp2", "FSDP2"},
                                                                {"zero1", "DeepSpeed ZeRO-1"},
                                                                {"zero2", "DeepSpeed ZeRO-2"},
                                                                {"zero3", "DeepSpeed ZeRO-3"}};
  std::string title = peer["mode"];
  for (const auto& [mode, name] : kTitles) {
    if (title == mode) {
      title = name;
      break;
    }
  }
  return peer["settings"] == "ours" ? title + ", our settings" : title;
}

double furthest(const ordered_json& losses, const ordered_json& others) {
  double most = 0;
  for (std::size_t i = 0; i < std::min(losses.size(), others.size()); ++i) {
    most = std::max(most, std::abs(losses[i].get<double>() - others[i].get<double>()));
  }
  return most;
}

std::string peer_rows(const Comparison& comparison) {
  if (comparison.peers.empty()) return "";
  std::string text = fmt::format("  {:<34}{:>10}{:>24}{:>11}{:>22}\n", "in Python", "ms a step",
                                 "x own forward+backward", "all ranks", "losses, at most apart");
  const ordered_json* ours = first_stage(comparison);
  for (const auto& peer : comparison.peers) {
    if (failed(peer)) {
      text += fmt::format("  {:<34}{}\n", peer_title(peer), peer["error"].get<std::string>());
      continue;
    }
    const bool trains = peer["mode"] != "compute";
    text += fmt::format("  {:<34}{:>10.1f}{:>24}{:>11}{:>22}\n", peer_title(peer), 1e3 * peer["step_s"].get<double>(),
                        peer.contains("ratio") ? fmt::format("{:.2f}", peer["ratio"].get<double>()) : "-",
                        megabytes(1e6 * peer["pss_mb_all_ranks"].get<double>()),
                        trains && ours ? fmt::format("{:.5f}", furthest((*ours)["losses"], peer["losses"])) : "-");
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

}  // namespace

double median_seconds(const ordered_json& result, std::int64_t warmup) {
  auto seconds = result["seconds"].get<std::vector<double>>();
  const auto skipped = std::min(static_cast<std::size_t>(warmup), seconds.size() - 1);
  seconds.erase(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(skipped));
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  return n % 2 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
}

std::string mode_title(const std::string& mode) {
  if (mode == "compute") return "forward+backward alone";
  if (mode == "stage0") return "ZeRO-0 (data parallel)";
  const std::string stage = "ZeRO-" + mode.substr(5, 1);
  return mode.ends_with("-copying") ? stage + ", copying store" : stage;
}

std::string describe_mode(const Comparison& comparison, const ordered_json& result) {
  if (failed(result)) {
    return fmt::format("  {:<24}{}\n", mode_title(result["mode"]), result["error"].get<std::string>());
  }
  return fmt::format("  {:<24}{:.1f} ms a step, {} in all, loss {:.4f}\n", mode_title(result["mode"]),
                     1e3 * median_seconds(result, comparison.warmup),
                     human_nbytes(std::llround(result["memory"]["peak_pss_nbytes"].get<double>())),
                     result["losses"].back().get<double>());
}

bool same_losses(const Comparison& comparison) {
  const ordered_json* first = first_stage(comparison);
  return std::all_of(comparison.modes.begin(), comparison.modes.end(), [&](const auto& one) {
    return failed(one) || !is_stage(one) || one["losses"] == (*first)["losses"];
  });
}

std::string describe_comparison(const Comparison& comparison) {
  return memory_rows(comparison) + time_rows(comparison) + peer_rows(comparison) + loss_line(comparison);
}

ordered_json comparison_json(const Comparison& comparison) {
  const TrainPlan& plan = comparison.plan;
  return {{"host", host_facts()},
          {"preset", plan.preset},
          {"parameters_numel", plan.parameters_numel},
          {"model", {{"layers", plan.layers}, {"dim", plan.dim}, {"heads", plan.heads}, {"seq", plan.seq}}},
          {"ranks", plan.ranks},
          {"steps", plan.steps},
          {"warmup", comparison.warmup},
          {"config", ordered_json::parse(plan.config)},
          {"corpus_hash", plan.corpus_hash},
          {"same_losses", same_losses(comparison)},
          {"modes", comparison.modes},
          {"peers", comparison.peers}};
}

}  // namespace zero::app
