#include "train/train_rank.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "host/host_facts.h"
#include "host/rank_device.h"
#include "host/rank_setup.h"
#include "runs/run_folder.h"
#include "text/text_format.h"
#include "train/report_tables.h"
#include "train/train_loop.h"
#include "zero/device_memory.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {
namespace {

std::string describe_device(at::Device device, int ranks) {
  if (device.is_cpu()) return cpu_name();
  return ranks == 1 ? device.str() : c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

void print_start(const Console& console, const TrainPlan& plan, const Engine& engine, double seconds) {
  Group group = engine.group();
  const auto before = gather_memory(group, engine.memory_before_initialize());
  const auto after = gather_memory(group, engine.memory_report());
  const int stage = engine.config().zero_optimization.stage;
  const auto& config = engine.config();
  const int threads = at::get_num_threads();
  console.print(hanging("ranks", fmt::format("{} ({}), {} thread{} each, on {}; ready after {}", group.size(),
                                             group.backend(), threads, threads == 1 ? "" : "s",
                                             describe_device(engine.device(), group.size()), duration(seconds))) +
                "\n");
  if (!engine.device().is_cpu()) {
    for (const std::string& notice : config.notices) console.print(hanging("config", notice));
  }
  console.print(
      memory_table(before, after, ddp_memory(plan.parameters_numel, plan.trained_numel, config.param_dtype()), stage) +
      "\n");
}

RunResult collect_result(const TrainPlan& plan, Engine& engine, const TrainLoop& loop) {
  Group group = engine.group();
  RunResult result = loop.result();
  result.totals = mean_over_ranks(group, loop.totals());
  result.memory = gather_memory(group, engine.memory_report());
  result.padded_numel = engine.communication_report().padded_numel;
  result.ranks = group.size();
  result.stage = engine.config().zero_optimization.stage;
  result.skipped_steps = engine.skipped_steps();
  result.ddp = ddp_memory(plan.parameters_numel, plan.trained_numel, engine.config().param_dtype());
  result.devices = gather_memory(group, device_memory(engine.device()));
  const double mine = static_cast<double>(process_memory().proportional_nbytes);
  for (const double one : gather_values(group, {&mine, 1}, "memory in use"))
    result.host_nbytes += static_cast<std::int64_t>(one);
  return result;
}

std::string frame_sample(const TrainPlan& plan, const Sample& sample) {
  std::string indented;
  std::string line;
  for (const char c : printable(sample.prompt + sample.text) + "\n") {
    line += c;
    if (c == '\n') indented += "  | " + std::exchange(line, "");
  }
  if (plan.token_nbytes > 1) {
    return fmt::format("sample     {} tokens at temperature {:g}, after the beginning of the validation text\n\n{}\n",
                       plan.sample_length, kSampleTemperature, indented);
  }
  return fmt::format("sample     {} bytes at temperature {:g}, after the prompt {}\n\n{}\n", plan.sample_length,
                     kSampleTemperature, nlohmann::json(printable(plan.prompt)).dump(), indented);
}

/// A run that must not be taken for a good one ends with an error, after everything is said and written.
void check_went_well(const RunResult& result) {
  if (!result.save_problem.empty())
    throw CheckpointError(fmt::format("the last checkpoint could not be written: {}", result.save_problem));
  if (!result.diverged) return;
  // A run that was told to train on may have saved what was lost already.
  const bool at_once = result.steps_here <= 1 && result.steps_done > 1;
  const std::string folder = short_path(result.checkpoint);
  std::string checkpoint = fmt::format("The last checkpoint is of before: {}", folder);
  if (result.checkpoint.empty()) {
    checkpoint = "There is no checkpoint of before";
  } else if (at_once) {
    checkpoint = fmt::format(
        "It went on from {}, which may be lost already: write the tag of an earlier one into 'latest'", folder);
  }
  throw ModelError(fmt::format(
      "the loss of step {} or its gradient is not a number: the run has diverged and was stopped. {}. A smaller "
      "learning rate, a longer warm-up or gradient clipping may help; --keep-going trains on",
      result.steps_done, checkpoint));
}

void write_sample(const TrainPlan& plan, const Sample& sample) {
  try {
    replace_text(plan.run_folder + "/sample.txt", sample.prompt + sample.text);
  } catch (const IoError& error) {  // it is printed, too
    fmt::print(stderr, "zero train: {}\n", error.what());
  }
}

/// A disk that is full takes nothing of a result that is on the screen. Where there was nothing left to do, what was
/// measured before stays.
void write_summary(const TrainPlan& plan, const RunResult& result) {
  const auto before = read_run_json(plan.run_folder, kSummary);
  if (result.steps_here == 0 && before.value("finished", false) && before.value("steps", -1) == result.steps_done)
    return;
  try {
    write_run_json(plan.run_folder, kSummary, summary_json(plan, result));
  } catch (const IoError& error) {
    fmt::print(stderr, "zero train: {}\n", error.what());
  }
}

/// The summary of a run that an error ends, without what needs the other ranks.
void write_failure(const TrainPlan& plan, RunResult result, const std::string& error) {
  if (result.steps_here == 0) return;  // nothing has happened to it
  result.ranks = plan.ranks;
  auto summary = summary_json(plan, result);
  summary["finished"] = false;
  summary["error"] = error;
  try {
    write_run_json(plan.run_folder, kSummary, summary);
  } catch (const std::exception&) {  // the error is on its way
  }
}

/// Of the weights that are exported.
std::int64_t exported_step(const RunResult& result) {
  const bool is_here = result.best_checkpoint.empty() || result.best_validation_step == result.steps_done;
  return is_here ? result.steps_done : result.best_checkpoint_step();
}

/// Traces of an earlier start stay, under another name: those of fewer ranks would not replace them all.
void keep_old_trace(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return;
  int number = 1;
  while (std::filesystem::exists(fmt::format("{}.{}", folder, number), error)) ++number;
  std::filesystem::rename(folder, fmt::format("{}.{}", folder, number), error);
}

/// The weights of the best validation, where they are kept. *Collective.*
void take_best(const RunResult& result, Engine& engine) {
  if (exported_step(result) == result.steps_done) return;
  const std::filesystem::path path = result.best_checkpoint;
  engine.load_checkpoint(path.parent_path().string(), path.filename().string(), {.module_only = true});
}

}  // namespace

int train_rank(const TrainPlan& plan, Group group) {
  const Clock clock;
  const at::Device device = device_of_rank(plan.device, group);
  Config config = Config::from_text(plan.config, "configuration of the run");
  config.tensorboard.enabled = false;  // the run writes its own events
  const bool trace_is_the_runs = std::filesystem::path(config.zerotorch.trace.path).is_relative();
  config.zerotorch.trace.path = (std::filesystem::path(plan.run_folder) / config.zerotorch.trace.path).string();
  if (config.zerotorch.trace.enabled && trace_is_the_runs && group.rank() == 0)
    keep_old_trace(config.zerotorch.trace.path);
  // What the library says at start is part of our own words.
  set_up_process(group, config, {.quiet = true, .device = device});
  const bool first = group.rank() == 0;
  const Console console(first && !plan.quiet);

  LanguageModel model(plan, device);
  Engine engine = model.initialize(config, {.group = group, .parameter_groups = {no_decay_group()}});
  if (!plan.goes_on) {
    if (!plan.init_from.empty()) model.load_weights(engine, plan.init_from);
    if (!plan.weights.empty()) engine.load_full_weights(plan.weights);
  }
  Progress progress(console, plan.steps, config.steps_per_print);
  TrainLoop loop(plan, model, engine, console, progress);
  print_start(console, plan, engine, clock.seconds());
  if (const std::int64_t local = config.zerotorch.local_steps.steps; first && local > 0 && plan.steps % local != 0) {
    print_error(
        fmt::format("zero train: warning: the last {} of {} steps are not exchanged between the islands: take a "
                    "multiple of {} (zerotorch.local_steps)\n",
                    plan.steps % local, plan.steps, local));
  }

  try {
    loop.run([&] {
      write_run_json(plan.run_folder, "config.json", nlohmann::ordered_json::parse(plan.config));
      if (plan.resume || plan.restart) write_start(plan);
    });
  } catch (const std::exception& error) {
    if (first) write_failure(plan, loop.result(), error.what());
    throw;
  }
  const Sample sample = loop.sample();
  progress.finish();
  console.print("\n");
  if (!sample.text.empty()) {
    if (first) write_sample(plan, sample);
    console.print(frame_sample(plan, sample));
  }
  RunResult result = collect_result(plan, engine, loop);
  result.total_seconds = clock.seconds();
  if (first) {
    Console(true).print(plan.json    ? summary_json(plan, result).dump(2) + "\n"
                        : plan.quiet ? describe_result_briefly(plan, result)
                                     : describe_result(plan, result));
    write_summary(plan, result);
    if (const std::string lost = lost_output(); plan.json && !lost.empty())
      throw IoError(lost + " summary.json in the run's folder has it");
  }
  if (first) check_went_well(result);
  if (result.steps_done == plan.steps && !result.diverged && result.save_problem.empty() &&
      !plan.export_folder.empty()) {
    take_best(result, engine);
    model.export_weights(plan, engine);
    const bool adapters = !plan.lora.empty() && !plan.merge;
    console.print(fmt::format("export     {}: {}{}\n", short_path(plan.export_folder),
                              adapters ? "the adapters, as PEFT's" : "the model, as a Hugging Face folder",
                              plan.keep_best ? fmt::format(", of step {}", exported_step(result)) : ""));
    if (first && plan.keep_best && exported_step(result) != result.best_validation_step) {
      print_error(
          fmt::format("zero train: warning: the export is of step {}; of the best validation, after {} steps, there is "
                      "no checkpoint\n",
                      exported_step(result), result.best_validation_step));
    }
  }
  return result.stop_signal;
}

}  // namespace zero::app
