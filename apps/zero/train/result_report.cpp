// The end of a run: the other half of report_tables.h.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "text/text_format.h"
#include "train/report_tables.h"
#include "zero/train.h"

namespace zero::app {
namespace {

using nlohmann::ordered_json;

double tokens_per_s(const RunResult& result) {
  return result.training_seconds > 0 ? static_cast<double>(result.tokens) / result.training_seconds : 0;
}

/// Relative to the working folder where that is shorter.
std::string folder_name(const TrainPlan& plan) {
  std::error_code error;
  const std::string relative = std::filesystem::proximate(plan.run_folder, error).string();
  return !error && relative.size() < plan.run_folder.size() && !relative.starts_with("..")
             ? relative
             : short_path(plan.run_folder);
}

std::string perplexity_text(double nats) {
  constexpr double kLong = 1e7;
  const double perplexity = std::exp(nats);
  return perplexity < kLong ? fmt::format("perplexity {:.2f}", perplexity)
                            : fmt::format("perplexity {:.3g}", perplexity);
}

std::string percent_of_unigram(const TrainPlan& plan, double nats) {
  if (!std::isfinite(nats)) return "not to be compared with unigram";
  return fmt::format("{:.0f} % of unigram", 100 * nats / plan.baseline_nats);
}

/// The rest of a line about a loss: what the unigram entropy is to it.
std::string beside_baseline(const TrainPlan& plan, double nats) {
  if (plan.token_nbytes > 1) return perplexity_text(nats);
  return std::isfinite(nats) ? fmt::format("{:.0f} % of the unigram entropy", 100 * nats / plan.baseline_nats)
                             : "not to be compared with the unigram entropy";
}

std::string describe_validation(const TrainPlan& plan, const RunResult& result) {
  if (result.steps_done == 0 && !result.last_validation) return "";
  std::string text;
  if (!result.last_validation || result.last_validation_step < result.steps_done) {
    text =
        hanging("result", fmt::format("training loss (average) {} after {}, {}", nats_text(plan, result.last_loss, 3),
                                      counted(result.steps_done, "step"), beside_baseline(plan, result.last_loss)));
  }
  if (!result.last_validation || (result.last_validation_step == 0 && result.steps_done > 0)) return text;
  const double nats = *result.last_validation;
  const std::string baseline = plan.token_nbytes > 1 ? "" : fmt::format(" of {:.3f} nats", plan.baseline_nats);
  return text + hanging(text.empty() ? "result" : "",
                        fmt::format("validation loss {} after {}, {}{}; it was {:.3f} before step 1",
                                    nats_text(plan, nats, 3), counted(result.last_validation_step, "step"),
                                    beside_baseline(plan, nats), baseline, *result.first_validation));
}

std::string describe_times_briefly(const RunResult& result) {
  const double each = 1e3 / static_cast<double>(result.steps_here);
  const StepTotals& t = result.totals;
  return fmt::format("time       {:.1f} ms a step: data {:.1f}, forward {:.1f}, backward {:.1f}, step {:.1f}\n",
                     each * t.seconds(), each * t.data, each * t.forward, each * t.backward, each * t.step);
}

std::string describe_times(const RunResult& result) {
  const double each = 1e3 / static_cast<double>(result.steps_here);
  const StepTotals& t = result.totals;
  const StepBreakdown& inside = t.inside;
  return hanging(
      "time", fmt::format("{:.1f} ms a step, the mean over ranks: data {:.1f}, forward {:.1f}, backward {:.1f}, "
                          "step {:.1f}; in these gradient copies {:.1f}, reduction {:.1f}, waiting for parameters "
                          "{:.1f}, for ranks {:.1f}, norm {:.1f}, update {:.1f}, publishing {:.1f}{}",
                          each * t.seconds(), each * t.data, each * t.forward, each * t.backward, each * t.step,
                          each * inside.gradient_copy, each * inside.reduce, each * inside.gather, each * inside.wait,
                          each * inside.norm, each * inside.update, each * inside.publish,
                          inside.islands > 0 ? fmt::format(", islands {:.1f}", each * inside.islands) : ""));
}

/// Of offload; empty where nothing moved.
std::string describe_disk(const RunResult& result) {
  const StepTotals& t = result.totals;
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, result.steps_here - 1));
  const auto each = [&](double nbytes) { return human_nbytes(std::llround(nbytes / steps)); };
  if (t.disk_read_nbytes + t.disk_written_nbytes == 0) return "";
  return hanging("disk",
                 fmt::format("{} read and {} written a step by each rank, which waited {:.1f} ms for it",
                             each(t.disk_read_nbytes), each(t.disk_written_nbytes), 1e3 * t.disk_waited / steps));
}

ordered_json disk_json(const RunResult& result) {
  const StepTotals& t = result.totals;
  const double each = 1 / static_cast<double>(std::max<std::int64_t>(1, result.steps_here - 1));
  std::int64_t reserved = 0;
  for (const MemoryReport& rank : result.memory) reserved += rank.nvme_nbytes;
  return {{"reserved_nbytes", reserved},
          {"read_nbytes_per_step", each * t.disk_read_nbytes},
          {"written_nbytes_per_step", each * t.disk_written_nbytes},
          {"waited_ms_per_step", 1e3 * each * t.disk_waited}};
}

std::string describe_traffic(const RunResult& result) {
  if (result.ranks == 1) return "";
  const auto steps = static_cast<double>(result.steps_here);
  const StepTotals& t = result.totals;
  const std::string whole =
      t.whole_numel > 0 ? fmt::format(", whole tensors {}", human_count(t.whole_numel / steps)) : "";
  return hanging("traffic", fmt::format("{} elements a step to each rank: gathered {}, reduced {}, published {}{}\n"
                                        "= {:.2f} x P (N-1)/N with P = {} parameters as laid out, N = {} ranks",
                                        human_count(t.moved_numel() / steps), human_count(t.gathered_numel / steps),
                                        human_count(t.reduced_numel / steps), human_count(t.published_numel / steps),
                                        whole, traffic_in_model_sizes(result),
                                        human_count(static_cast<double>(result.padded_numel)), result.ranks));
}

ordered_json memory_json(const RunResult& result) {
  ordered_json ranks = ordered_json::array();
  for (const MemoryReport& report : result.memory) ranks.push_back(kinds_json(report));
  ordered_json json = {{"by_rank", ranks},
                       {"ddp_states_nbytes_per_rank", states_nbytes(result.ddp)},
                       {"host_pss_nbytes", result.host_nbytes}};
  if (has_devices(result.devices)) json["device_by_rank"] = devices_json(result.devices);
  return json;
}

ordered_json times_json(const RunResult& result) {
  const double each = result.steps_here > 0 ? 1e3 / static_cast<double>(result.steps_here) : 0;
  const StepTotals& t = result.totals;
  ordered_json json = {{"total", each * t.seconds()},
                       {"data", each * t.data},
                       {"forward", each * t.forward},
                       {"backward", each * t.backward},
                       {"step", each * t.step}};
  json.update(breakdown_json(t.inside, each));
  return json;
}

}  // namespace

bool has_devices(const std::vector<DeviceMemory>& by_rank) {
  return std::ranges::any_of(by_rank, [](const DeviceMemory& one) { return one.peak_reserved_nbytes > 0; });
}

const DeviceMemory& fullest(const std::vector<DeviceMemory>& by_rank) {
  return *std::ranges::max_element(by_rank, {}, &DeviceMemory::peak_reserved_nbytes);
}

ordered_json devices_json(const std::vector<DeviceMemory>& by_rank) {
  ordered_json ranks = ordered_json::array();
  for (const DeviceMemory& one : by_rank) {
    ranks.push_back({{"allocated_nbytes", one.allocated_nbytes},
                     {"peak_allocated_nbytes", one.peak_allocated_nbytes},
                     {"reserved_nbytes", one.reserved_nbytes},
                     {"peak_reserved_nbytes", one.peak_reserved_nbytes}});
  }
  return ranks;
}

std::string describe_devices(const std::vector<DeviceMemory>& by_rank) {
  const DeviceMemory& most = fullest(by_rank);
  return fmt::format("{}{} of the device at most, {} of it by tensors at a time (libtorch's allocator)",
                     by_rank.size() == 1 ? "" : fmt::format("rank {}: ", &most - by_rank.data()),
                     human_nbytes(most.peak_reserved_nbytes), human_nbytes(most.peak_allocated_nbytes));
}

std::string memory_key(MemoryKind kind) {
  const std::string_view name = memory_kind_name(kind);
  return std::string(name.substr(0, name.find(' ')));
}

ordered_json kinds_json(const MemoryReport& report) {
  ordered_json kinds = ordered_json::object();
  for (int i = 0; i < kMemoryKinds; ++i) {
    const MemoryUse& use = report.kinds[i];
    ordered_json& kind = kinds[memory_key(static_cast<MemoryKind>(i))];
    kind = {{"current_nbytes", use.current_nbytes}, {"peak_nbytes", use.peak_nbytes}};
    if (use.peak_device_nbytes == 0) continue;
    kind["device_nbytes"] = use.device_nbytes;
    kind["peak_device_nbytes"] = use.peak_device_nbytes;
  }
  return kinds;
}

double traffic_in_model_sizes(const RunResult& result) {
  if (result.ranks == 1 || result.steps_here == 0) return 0;
  const double unit = static_cast<double>(result.padded_numel) * (result.ranks - 1) / result.ranks;
  return result.totals.moved_numel() / static_cast<double>(result.steps_here) / unit;
}

const char* token_name(const TrainPlan& plan) { return plan.token_nbytes > 1 ? "token" : "byte"; }

std::optional<double> bits_per_byte(const TrainPlan& plan, double nats) {
  return plan.text_nbytes > 0 ? std::optional(to_bits(nats) / plan.text_nbytes) : std::nullopt;
}

std::string nats_text(const TrainPlan& plan, double nats, int digits) {
  if (!std::isfinite(nats)) return "not a number";
  const auto bits = bits_per_byte(plan, nats);
  return fmt::format("{:.{}f} nats{}{}", nats, digits, plan.token_nbytes > 1 ? " a token" : "",
                     bits ? fmt::format(" = {:.3f} bits per byte", *bits) : "");
}

std::string loss_text(const TrainPlan& plan, double nats, int digits) {
  const std::string loss = nats_text(plan, nats, digits);
  if (!std::isfinite(nats)) return loss;
  return fmt::format("{}, {}", loss, plan.token_nbytes > 1 ? perplexity_text(nats) : percent_of_unigram(plan, nats));
}

std::int64_t RunResult::best_checkpoint_step() const {
  constexpr std::string_view kTag = "global_step";
  const std::string tag = std::filesystem::path(best_checkpoint).filename().string();
  return tag.starts_with(kTag) ? std::strtoll(tag.c_str() + kTag.size(), nullptr, 10) : 0;
}

std::string describe_result(const TrainPlan& plan, const RunResult& result) {
  std::string text;
  if (result.stop_signal != 0) {
    text += fmt::format("stopped by {} after {} of {} steps\n", stop_signal_name(result.stop_signal), result.steps_done,
                        plan.steps);
  }
  if (result.time_is_up) {
    text += fmt::format("stopped after {:g} minutes and {} of {} steps, as --max-minutes says\n", plan.max_minutes,
                        result.steps_done, plan.steps);
  }
  if (result.diverged) text += fmt::format("diverged at step {} of {}\n", result.steps_done, plan.steps);
  text += describe_validation(plan, result);
  if (!result.best_checkpoint.empty()) {
    const std::int64_t kept = result.best_checkpoint_step();
    const std::string other =
        kept == result.best_validation_step ? "" : fmt::format("           not kept; here is that of step {}:\n", kept);
    text += fmt::format("best       validation loss {} after {}:\n{}           {}\n",
                        nats_text(plan, *result.best_validation, 3), counted(result.best_validation_step, "step"),
                        other, short_path(result.best_checkpoint));
  }
  if (result.steps_done > 0) {
    const std::string here =
        result.steps_here < result.steps_done ? fmt::format("; this time {}", result.steps_here) : "";
    text += fmt::format("speed      {} tokens/s; {} in {}{}, all in {}\n",
                        with_commas(std::llround(tokens_per_s(result))), counted(result.steps_done, "step"),
                        duration(result.training_seconds), here, duration(result.total_seconds));
    if (result.steps_here > 0) {
      text += plan.verbose ? describe_times(result) + describe_traffic(result) : describe_times_briefly(result);
      text += describe_disk(result);
    }
  }
  if (result.skipped_steps > 0) {
    text += fmt::format("           {} skipped: the gradient was not finite\n", counted(result.skipped_steps, "step"));
  }
  text += fmt::format("memory     {} on this host for {} at the end (PSS)\n", human_nbytes(result.host_nbytes),
                      result.ranks == 1 ? "the run" : fmt::format("all {} ranks", result.ranks));
  if (has_devices(result.devices)) text += "           " + describe_devices(result.devices) + "\n";
  text += fmt::format("run        {}: metrics.jsonl, summary.json, config.json\n", folder_name(plan));
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(plan.run_folder) / "trace" / "rank0.json", error))
    text += "           trace/rank0.json, ...: open them in https://ui.perfetto.dev\n";
  if (!result.checkpoint.empty()) {
    text += result.stop_signal != 0 || result.time_is_up
                ? fmt::format("           {} train --resume --run-dir {} goes on\n", program_name(),
                              for_shell(plan.run_folder))
                : fmt::format("           {} ckpt export {} DIR writes the weights\n", program_name(),
                              for_shell(result.checkpoint));
  }
  if (!plan.tensorboard_folder.empty()) {
    text +=
        fmt::format("           tensorboard --logdir {}\n",
                    for_shell(plan.tensorboard_folder.starts_with(plan.run_folder + "/") ? plan.run_folder
                                                                                         : plan.tensorboard_folder));
  }
  return text;
}

std::string describe_result_briefly(const TrainPlan& plan, const RunResult& result) {
  const auto nats_each = [&](double nats) {
    return std::isfinite(nats) ? fmt::format("{:.4f} nats per {}", nats, token_name(plan)) : "not a number";
  };
  const std::string loss = result.last_validation && result.last_validation_step == result.steps_done
                               ? fmt::format("validation loss {} ({})", nats_each(*result.last_validation),
                                             percent_of_unigram(plan, *result.last_validation))
                           : result.steps_done == 0 ? "no loss yet"
                                                    : fmt::format("training loss {}", nats_each(result.last_loss));
  return fmt::format("{}{}, {}, {} tokens/s, {}: {}\n",
                     result.diverged           ? "diverged: "
                     : result.stop_signal != 0 ? fmt::format("stopped by {}: ", stop_signal_name(result.stop_signal))
                     : result.time_is_up       ? "stopped by --max-minutes: "
                                               : "",
                     counted(result.steps_done, "step"), loss, with_commas(std::llround(tokens_per_s(result))),
                     duration(result.total_seconds), folder_name(plan));
}

ordered_json summary_json(const TrainPlan& plan, const RunResult& result) {
  const auto or_null = [](const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(); };
  const ordered_json stopped_by = result.stop_signal != 0 ? ordered_json(stop_signal_name(result.stop_signal))
                                  : result.time_is_up     ? ordered_json("max_minutes")
                                                          : ordered_json();
  return {{"finished", result.stop_signal == 0 && !result.diverged && !result.time_is_up},
          {"diverged", result.diverged},
          {"save_problem", result.save_problem.empty() ? ordered_json() : ordered_json(result.save_problem)},
          {"stopped_by", stopped_by},
          {"stop_signal", result.stop_signal},
          {"steps", result.steps_done},
          {"steps_wanted", plan.steps},
          {"steps_since_resume", result.steps_here},
          {"checkpoint", result.checkpoint.empty() ? ordered_json() : ordered_json(result.checkpoint)},
          {"skipped_steps", result.skipped_steps},
          {"preset", plan.preset},
          {"parameters_numel", plan.parameters_numel},
          {"ranks", result.ranks},
          {"device", plan.device},
          {"threads_per_rank", at::get_num_threads()},
          {"stage", result.stage},
          {"train_loss", result.steps_done > 0 ? ordered_json(result.last_loss) : ordered_json()},
          {"train_loss_last_step", or_null(result.step_loss)},
          {"val_loss", or_null(result.last_validation)},
          {"val_loss_at_start", or_null(result.first_validation)},
          {"val_loss_step", result.last_validation_step},
          {"best_val_loss", or_null(result.best_validation)},
          {"best_val_loss_step", result.best_validation_step},
          {"best_checkpoint_step", result.best_checkpoint_step()},
          {"best_checkpoint", result.best_checkpoint.empty() ? ordered_json() : ordered_json(result.best_checkpoint)},
          {"baseline", plan.baseline_nats},
          {"tokens", result.tokens},
          {"tokens_per_s", tokens_per_s(result)},
          {"training_seconds", result.training_seconds},
          {"total_seconds", result.total_seconds},
          {"ms_per_step", result.steps_here > 0 ? times_json(result) : ordered_json()},
          {"received_per_step_in_model_sizes",
           result.steps_here > 0 ? ordered_json(traffic_in_model_sizes(result)) : ordered_json()},
          {"memory", memory_json(result)},
          {"disk", disk_json(result)}};
}

}  // namespace zero::app
