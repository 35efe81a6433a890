#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <ratio>
#include <thread>

#include "commands.h"
#include "host/machine_speed.h"
#include "host/rank_device.h"
#include "host/rank_setup.h"
#include "model/corpus_choice.h"
#include "plan/plan_fit.h"
#include "runs/run_folder.h"
#include "text/console.h"
#include "text/text_format.h"
#include "train/train_config.h"
#include "train/train_options.h"
#include "train/train_plan.h"
#include "train/train_rank.h"
#include "zero/errors.h"
#include "zero/launch.h"
#include "zero/train.h"

namespace zero::app {
namespace {

constexpr const char* kPlanVariable = "ZERO_TRAIN_PLAN";

/// How often a launcher has started the ranks again.
int restart_count() {
  for (const char* name : {"ZERO_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"}) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return 0;
}

/// What goes on with the run in `folder`: from its newest checkpoint, or, before the first, over.
TrainOptions to_go_on(TrainOptions options, const std::string& folder) {
  options.run_dir = folder;
  options.resume.reset();
  options.restart.reset();
  (find_run(folder).is_fresh() ? options.restart : options.resume).emplace();
  return options;
}

/// A launcher starts ranks again with the command that has begun the run.
TrainOptions options_of_start(const TrainOptions& options) {
  if (restart_count() == 0) return options;
  const bool is_begun = options.restart || (!options.resume && !options.run_dir.empty() && holds_run(options.run_dir));
  if (is_begun) return to_go_on(options, find_run_folder(options.run_dir).string());
  if (options.run_dir.empty() && !options.resume) {
    throw ConfigError(
        "--run-dir: the ranks have been started again, and cannot tell which run they began; give its folder, so that "
        "they go on from its last checkpoint");
  }
  return options;
}

/// Ranks that torchrun, mpirun, srun or `zero launch` has started: rank 0 prepares, the others get its plan.
int run_under_launcher(const TrainOptions& given, int rank, const std::string& command_line) {
  return rank_exit_code(rank, [&] {
    Group group = init_distributed();
    const std::string text = from_rank_0(group, [&] {
      const TrainOptions options = options_of_start(given);
      const Ranks ranks{group.size(), group.local_size()};
      const nlohmann::json plan = options.resume || options.restart ? prepare_resume(options, ranks, command_line)
                                                                    : prepare_run(options, ranks, command_line);
      return plan.dump();
    });
    return train_rank(nlohmann::json::parse(text), group);
  });
}

struct Ended {
  int code = 0;
  int stop_signal = 0;  ///< that asked the ranks to stop; they may have failed for another reason
};

Ended launch_ranks(const TrainPlan& plan, double grace_s) {
  Ended ended;
  LaunchOptions local;
  local.nproc = plan.ranks;
  local.command = {own_command()[0], "train", "--as-rank"};
  local.environment = {{kPlanVariable, nlohmann::json(plan).dump()}};
  local.grace_ms = static_cast<int>(std::lround(grace_s * 1e3));
  local.on_stop = [&](int signal) { ended.stop_signal = signal; };
  ended.code = launch_own_ranks("zero train", local);
  return ended;
}

/// Whether a run that went on from a checkpoint did not come a step further, and its ranks have said why: another time
/// they would say it again.
bool is_stuck(const TrainPlan& plan, const Ended& ended) {
  const FoundRun found = find_run(plan.run_folder);
  return plan.goes_on && ended.code < 128 && saved_steps(found) == plan.begins_at &&
         found.recorded_steps <= plan.begins_at;
}

/// Whether ranks that ended so might get further another time: what is wrong with the input stays wrong, a run that
/// has diverged does so again, and who stopped it wants it stopped.
bool may_go_on(const Ended& ended, const TrainPlan& plan) {
  constexpr int kBadInput = 2;
  return ended.stop_signal == 0 && ended.code != 0 && ended.code != kBadInput && ended.code != 128 + SIGPIPE &&
         !is_stuck(plan, ended) && !read_run_json(plan.run_folder, kSummary).value("diverged", false);
}

void say_how_to_go_on(const TrainPlan& plan) {
  const std::int64_t newest = saved_steps(find_run(plan.run_folder));
  if (newest >= plan.steps) return;
  if (!plan.weights.empty() && !plan.restart && forget_unless_begun(plan.run_folder)) {  // they may be why
    print_error("zero train: the run made no step, and nothing of it is kept\n");
    return;
  }
  const std::string run = for_shell(plan.run_folder);
  print_error(newest > 0 ? fmt::format("zero train: `{} train --resume {}` goes on from the checkpoint after {}\n",
                                       program_name(), run, counted(newest, "step"))
                         : fmt::format("zero train: there is no checkpoint yet; `{} train --restart {}` begins it "
                                       "again\n",
                                       program_name(), run));
}

int run_locally(TrainOptions options, const std::string& command_line) {
  check_ranks_of_host(options.ranks.value_or(1));
  const auto given = options.ranks ? std::optional(Ranks{*options.ranks}) : std::nullopt;
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  const Minutes limit(options.max_minutes);  // of all starts together
  const auto start = std::chrono::steady_clock::now();
  TrainPlan plan =
      options.resume || options.restart
          ? prepare_resume(options, given, command_line)
          : prepare_run(options, given.value_or(Ranks{default_ranks(options.device, kDefaultRanks)}), command_line);
  RestartPauses pauses;
  auto begin = std::chrono::steady_clock::now();
  Ended ended = launch_ranks(plan, options.grace_s);
  for (int restarts = 0; restarts < options.max_restarts && may_go_on(ended, plan); ++restarts) {
    if (options.max_minutes > 0) {
      options.max_minutes = Minutes(limit - (std::chrono::steady_clock::now() - start)).count();
      if (options.max_minutes <= 0) {
        print_error("zero train: not started again: --max-minutes is over\n");
        break;
      }
    }
    print_error(fmt::format("zero train: starting all ranks again ({} of {})\n", restarts + 1, options.max_restarts));
    std::this_thread::sleep_for(pauses.next(std::chrono::steady_clock::now() - begin));
    options = to_go_on(options, plan.run_folder);
    plan = prepare_resume(options, Ranks{plan.ranks}, command_line);
    begin = std::chrono::steady_clock::now();
    ended = launch_ranks(plan, options.grace_s);
  }
  if (may_go_on(ended, plan)) say_how_to_go_on(plan);
  const int signal = ended.code == 0 ? read_run_json(plan.run_folder, kSummary).value("stop_signal", 0) : 0;
  return signal == 0 ? ended.code : 128 + signal;
}

void check_ranks_fit(const TrainOptions& options, const LaunchedRank& found) {
  if (options.max_restarts > 0) {
    throw ConfigError(
        fmt::format("--max-restarts: {} starts the ranks, and would have to start them again; give it "
                    "there, with zero train --run-dir DIR",
                    found.launcher));
  }
  if (!options.ranks || *options.ranks == found.size) return;
  throw ConfigError(fmt::format("-n {}, but {} started {}; leave -n away", *options.ranks, found.launcher, found.size));
}

/// What --print-config prints; the shortest form of it, where nothing but options has a say.
std::string config_to_print(TrainOptions options) {
  const int ranks = options.ranks.value_or(default_ranks(options.device, kDefaultRanks));
  choose_run_size(options, ranks);
  TrainPlan plan = choose_model(options);
  Config config = make_config(options, plan.dim, ranks);  // checked in any case
  if (options.fit) {
    plan.ranks = ranks;
    check_device(plan.device);
    print_error(fit_or_check(plan, config, options, {.world_size = ranks}, /*goes_on=*/false));
    return config.to_json();
  }
  if (!options.config.empty()) return config.to_json();
  const std::string brief = builtin_config(options, plan.dim, ranks);
  Config of_brief = Config::from_text(brief, "built-in configuration");
  of_brief.resolve_batch(ranks);
  return of_brief.to_json() == config.to_json() ? brief : config.to_json();
}

int run_train(const TrainOptions& options, const std::string& command_line) {
  const Console console(true);
  if (options.as_rank) return run_as_rank("train", kPlanVariable, train_rank);
  if (options.print_config) {
    console.print(config_to_print(options) + "\n");
    return exit_code_of_output();
  }
  if (options.pack_only) {
    const auto start = std::chrono::steady_clock::now();
    const CorpusInfo corpus = pack_only(options);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    console.print(options.json ? corpus_json(corpus).dump(2) + "\n"
                               : describe_corpus(corpus, seconds.count()) +
                                     fmt::format("packed     {}\n", short_path(corpus.folder)));
    return exit_code_of_output();
  }
  const auto launched = launched_rank();
  if (!launched) return run_locally(options, command_line);
  check_ranks_fit(options, *launched);
  return run_under_launcher(options, launched->rank, command_line);
}

/// The arguments of this process, with spaces between them.
std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "train a language model with ZeRO, and watch it learn");
  add_options(*command, train_rows(*options));
  command->footer(
      "Examples:\n"
      "  zero train                         two ranks, ZeRO-3, two to four minutes\n"
      "  zero train --data ~/books --preset gpt-25m --steps 2000\n"
      "  zero train -n 4 --config ds_config.json --stage 2\n"
      "  zero train --lr 1e-3 --batch-size 32 --dtype fp32 --checkpoint-every 100\n"
      "  zero train --init-from SmolLM2 --data tokens --lr 5e-5 --export tuned\n"
      "  zero train --resume                go on after Ctrl-C or a crash\n"
      "  mpirun -n 8 zero train --config ds_config.json");
  command->callback([command, options, &exit_code] {
    if (const auto count = command->count("--data"); count > 1) {  // a text is more than a number
      print_error(fmt::format("zero train: warning: --data: given {} times; the text is {}\n", count,
                              for_shell(options->data)));
    }
    if (const std::string run = options->resume.value_or("") + options->restart.value_or(""); !run.empty()) {
      if (!options->run_dir.empty()) throw ConfigError("--resume: the run is named twice; remove --run-dir");
      options->run_dir = run;
    }
    exit_code = run_train(*options, own_command_line());
  });
}

}  // namespace zero::app
