#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "commands.h"
#include "compare/compare_case.h"
#include "compare/compare_options.h"
#include "compare/compare_report.h"
#include "host/cpu_share.h"
#include "host/host_facts.h"
#include "host/machine_speed.h"
#include "host/rank_device.h"
#include "host/rank_setup.h"
#include "host/side_programs.h"
#include "model/corpus_choice.h"
#include "plan/plan_fit.h"
#include "runs/run_folder.h"
#include "text/console.h"
#include "text/progress.h"
#include "text/text_format.h"
#include "train/train_config.h"
#include "train/train_loop.h"
#include "zero/errors.h"
#include "zero/launch.h"
#include "zero/train.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kCaseVariable = "ZERO_COMPARE_CASE";
constexpr const char* kResult = "compare.json";

std::vector<std::string> modes_of(const std::string& list) {
  std::vector<std::string> modes;
  std::stringstream stream(list);
  for (std::string mode; std::getline(stream, mode, ',');) modes.push_back(mode);
  return modes;
}

/// The run of one mode: model and text of all, and its own stage and store.
TrainPlan plan_of(const TrainPlan& base, TrainOptions options, const std::string& mode) {
  TrainPlan plan = base;
  // The first steps of the schedule that zero train has, not a schedule in so few steps.
  options.steps = std::max(plan.steps, kDefaultSteps);
  if (mode != "compute") {
    options.stage = mode[5] - '0';
    if (mode.ends_with("-copying")) options.store = "copying";
  }
  const Config config = make_config(options, plan.dim, plan.ranks);
  plan.config = config.to_json();
  plan.seed = *config.zerotorch.seed;
  return plan;
}

/// Whether the mode fits this host: an error for the table when not. And what it is planned to take.
std::string check_memory(const TrainPlan& plan, const CompareOptions& options, ordered_json& result) {
  const Config config = Config::from_text(plan.config, "configuration of the comparison");
  plan::Cluster cluster;
  cluster.ranks = plan.ranks;
  cluster.gpus = plan.device != "cpu";
  const plan::ModelShape model = gpt_shape(gpt_options(plan), plan.preset);  // built on every rank
  const plan::Plan planned = plan::plan_memory(model, config, cluster);
  result["planned_nbytes"] = static_cast<double>(cluster.gpus ? planned.training_nbytes : planned.node_training_nbytes);
  cluster.node_memory_nbytes = available_memory_nbytes();
  try {
    check_fits_here(model, config, cluster, options.train.force);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

/// Runs one mode's ranks to their end. 128 + signal when they were stopped; a failure is in the result.
int run_mode(const CompareCase& one, ordered_json& result) {
  const CpuShare share;
  std::filesystem::remove(one.result_file);
  int asked_to_stop = 0;
  const int code = launch_own_ranks("zero compare", {.nproc = one.plan.ranks,
                                                     .command = {own_command()[0], "compare", "--as-rank"},
                                                     .environment = {{kCaseVariable, nlohmann::json(one).dump()}},
                                                     .on_stop = [&](int signal) { asked_to_stop = signal; }});
  std::ifstream file(one.result_file);
  auto found = ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (found.is_object()) {
    const int signal = found.value("stop_signal", 0);
    result["rounds"] = {{{"seconds", found["seconds"]}, {"others_cpu_share", share.of_others()}}};
    found.erase("seconds");
    result.update(found);
    return signal == 0 ? 0 : 128 + signal;
  }
  result["error"] = fmt::format("its ranks ended with exit code {}", code);
  return asked_to_stop == 0 ? 0 : 128 + asked_to_stop;
}

fs::path make_folder(const CompareOptions& options) {
  const fs::path wanted = options.out.empty() ? fresh_path("comparisons", options.train.preset.value_or(kDefaultPreset))
                                              : fs::path(options.out);
  const fs::path folder = fs::absolute(wanted).lexically_normal();
  if (fs::exists(folder / kResult)) {
    throw ConfigError(fmt::format("--out {}: it already holds a comparison; give another folder", folder.string()));
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(fmt::format("--out {}: {}", folder.string(), error.message()));
  return folder;
}

/// How long it will take, and what to do about it where that is long. Of a comparison on the CPU of this host; else "".
std::string describe_its_time(const TrainPlan& plan, const Config& config, const CompareOptions& options) {
  if (plan.device != "cpu") return "";
  const auto runs = static_cast<std::int64_t>(modes_of(options.modes).size()) * options.rounds;
  return describe_time(config, plan.ranks,
                       {.model = size_of(gpt_options(plan)), .steps = runs * plan.steps, .validated = 0},
                       "a smaller --preset, fewer --steps, --rounds 1 or fewer --modes end it sooner");
}

TrainPlan prepare(const CompareOptions& options, const Console& console) {
  TrainPlan plan = choose_model(options.train);
  check_device(plan.device);
  plan.ranks = options.train.ranks.value_or(default_ranks(plan.device, kDefaultRanks));
  plan.steps = options.train.steps.value_or(kCompareSteps);
  if (options.warmup >= plan.steps) {
    throw ConfigError(fmt::format("--warmup {}: want less than the {} steps", options.warmup, plan.steps));
  }
  Progress progress(console, 0, 0);
  progress.busy("reading the text ...");
  const Clock clock;
  const CorpusInfo corpus =
      pack_and_check(choose_corpus(options.train.data, options.train.cache_dir, options.train.suffixes), plan.seq);
  progress.finish();
  plan.corpus_folder = corpus.folder.string();
  plan.corpus_hash = corpus.hash;
  plan = plan_of(plan, options.train, "stage3");
  const Config config = Config::from_text(plan.config, "configuration of the comparison");
  console.print(fmt::format("zerotorch {}, libtorch {}\n\n", zerotorch_version(), libtorch_version()));
  console.print(describe_corpus(corpus, clock.seconds()) + describe_model(plan));
  console.print(
      hanging("training",
              fmt::format("{} of {} ({} x micro-batch {} x accumulation {}), {}, on {}", counted(plan.steps, "step"),
                          counted(config.train_batch_size, "sequence"), counted(plan.ranks, "rank"),
                          config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps,
                          dtype_name(config.param_dtype()), plan.device == "cpu" ? cpu_name() : plan.device)));
  if (console.enabled()) console.print(describe_its_time(plan, config, options));
  console.print("\n");
  return plan;
}

/// The pictures, or how to get them.
std::string draw(const CompareOptions& options, const fs::path& folder) {
  if (options.no_plot) return "";
  const std::string python = find_python(options.python, {"matplotlib"});
  const std::string script = find_side_program("plot_compare.py").string();
  if (python.empty()) {
    return fmt::format(
        "             no picture: no Python with matplotlib was found (`make compare` installs it); later:\n"
        "             python {} {}\n",
        script, short_path(folder.string()));
  }
  std::vector<std::string> command = python_script(python, script);
  command.push_back(folder.string());
  const int code = run_program(command);
  return code == 0 ? "             compare.png, compare.svg\n"
                   : fmt::format("             no picture: {} ended with {}\n", script, code);
}

/// A run of one mode, its result among the others'. 0, or 128 + signal when it was stopped.
int run_once(const CompareOptions& options, const std::string& mode, const fs::path& folder, Comparison& comparison,
             ordered_json& result) {
  CompareCase one;
  one.plan = plan_of(comparison.plan, options.train, mode);
  one.plan.quiet = options.train.quiet;
  one.mode = mode;
  one.warmup = options.warmup;
  one.result_file = (folder / (mode + ".json")).string();
  const Config config = Config::from_text(one.plan.config, "configuration of the comparison");
  result = {{"mode", mode}, {"tokens_per_step", config.train_batch_size * one.plan.seq}};
  const std::string unfit = mode == "compute" ? "" : check_memory(one.plan, options, result);
  if (!unfit.empty()) result["error"] = unfit;
  return unfit.empty() ? run_mode(one, result) : 0;
}

/// The signal that came between two modes; while a mode runs its launcher has them.
volatile std::sig_atomic_t g_stop_signal = 0;

/// Every mode as often as there are rounds, each round the other way round than the one before. 0, or 128 + signal.
int run_modes(const CompareOptions& options, std::vector<std::string> modes, const fs::path& folder,
              const Console& console, Comparison& comparison) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int received) { g_stop_signal = received; });
  for (std::int64_t round = 0; round < comparison.rounds; ++round) {
    if (round > 0) console.print(fmt::format("\n  round {} of {}\n", round + 1, comparison.rounds));
    for (const std::string& mode : modes) {
      const auto known = std::find_if(comparison.modes.begin(), comparison.modes.end(),
                                      [&](const auto& one) { return one["mode"] == mode; });
      if (known != comparison.modes.end() && known->contains("error")) continue;
      ordered_json result;
      if (const int stopped = run_once(options, mode, folder, comparison, result); stopped != 0) return stopped;
      if (g_stop_signal != 0) return 128 + g_stop_signal;
      console.print(describe_mode(comparison, result));
      if (known == comparison.modes.end()) {
        comparison.modes.push_back(std::move(result));
      } else {
        add_round(*known, result);
      }
    }
    std::reverse(modes.begin(), modes.end());
  }
  return 0;
}

int run_compare(CompareOptions options) {
  if (options.train.as_rank) return run_as_rank("compare", kCaseVariable, run_case);
  if (const auto launched = launched_rank()) {
    throw ConfigError(fmt::format("zero compare starts its own ranks; run it without {}", launched->launcher));
  }
  const std::vector<std::string> modes = modes_of(options.modes);
  options.train.quiet |= options.json;
  const Console console(!options.train.quiet), always(true);
  Comparison comparison;
  comparison.warmup = options.warmup;
  comparison.rounds = options.rounds;
  comparison.plan = prepare(options, console);
  const Config config = Config::from_text(comparison.plan.config, "configuration of the comparison");
  if (!options.python.empty() && find_python(options.python, {"json"}).empty())
    throw ConfigError(fmt::format("--python {}: is no Python that runs", options.python));
  const fs::path folder = make_folder(options);
  const int stopped = run_modes(options, modes, folder, console, comparison);
  if (stopped != 0) {
    // What is complete was not for nothing.
    const std::size_t complete = comparison.modes.size();
    print_error(fmt::format("stopped by {}: {}\n", stop_signal_name(stopped - 128),
                            complete == 0 ? "no result"
                                          : fmt::format("the result of {} that ended",
                                                        counted(static_cast<std::int64_t>(complete), "mode"))));
    if (complete == 0) return stopped;
  }
  const ordered_json result = comparison_json(comparison);
  write_run_json(folder.string(), kResult, result);
  const std::string pictures = draw(options, folder);
  if (options.json) {
    always.print(result.dump(2) + "\n");
  } else {
    always.print("\n" + describe_comparison(comparison) +
                 fmt::format("  results    {}: compare.json\n", short_path(folder.string())) + pictures);
  }
  const bool failed = std::any_of(comparison.modes.begin(), comparison.modes.end(),
                                  [](const auto& one) { return one.contains("error"); });
  if (stopped != 0) return stopped;
  return !same_losses(comparison) ? 1 : failed ? 3 : 0;
}

}  // namespace

void add_compare_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "the same training under ZeRO 0 to 3, side by side");
  add_compare_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = run_compare(*options); });
}

}  // namespace zero::app
