// The runs below a folder, and two of them side by side.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "commands.h"
#include "runs/run_folder.h"
#include "text/console.h"
#include "text/options.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct RunsArguments {
  std::string folder = "runs", first, second;
  bool json = false;
};

void say(const std::string& text) { Console(true).print(text + "\n"); }

/// What its files say of a run.
struct RunFacts {
  fs::path folder;
  std::string preset, state;
  std::int64_t ranks = 0, stage = 0, steps = 0, steps_wanted = 0, checkpoints = 0;
  std::optional<double> val_loss;
  std::int64_t val_step = 0;  ///< of val_loss
  fs::file_time_type written;
};

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "metrics.jsonl", error) || fs::exists(folder / "plan.json", error);
}

fs::file_time_type written_at(const fs::path& folder) {
  std::error_code error;
  const auto time = fs::last_write_time(folder / "metrics.jsonl", error);
  return error ? fs::last_write_time(folder) : time;
}

/// The last validation that metrics.jsonl has, and its step.
std::optional<std::pair<double, std::int64_t>> last_validation(const fs::path& folder) {
  std::optional<std::pair<double, std::int64_t>> last;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("val_loss") && json["val_loss"].is_number())
      last = {json["val_loss"], json.value("step", std::int64_t{0})};
  }
  return last;
}

/// A run that has not ended, by the lock that `zero train` holds on its metrics.
const char* state_of_unfinished(const fs::path& folder) {
  const int lock = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (lock < 0) return "running, or was killed";
  const bool is_held = ::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(lock);
  return is_held ? "running" : "was killed";
}

RunFacts facts_of(const fs::path& folder) {
  const ordered_json summary = read_run_json(folder, "summary.json"), plan = read_run_json(folder, "plan.json");
  const FoundRun found = find_run(folder.string());
  RunFacts facts{.folder = folder,
                 .preset = plan.value("preset", ""),
                 .state = {},
                 .ranks = plan.value("ranks", 0),
                 .stage = summary.value("stage", 0),
                 .steps = found.recorded_steps,
                 .steps_wanted = plan.value("steps", 0),
                 .checkpoints = static_cast<std::int64_t>(found.checkpoints.size()),
                 .val_loss = {},
                 .val_step = 0,
                 .written = written_at(folder)};
  if (summary.contains("val_loss") && summary["val_loss"].is_number()) facts.val_loss = summary["val_loss"];
  facts.val_step = summary.value("val_loss_step", facts.steps);
  if (const auto last = summary.empty() ? last_validation(folder) : std::nullopt)
    std::tie(facts.val_loss, facts.val_step) = *last;
  // A summary is of an earlier start where metrics have more steps.
  const bool is_of_now = summary.value("steps", std::int64_t{-1}) == facts.steps;
  facts.state = plan.empty()                       ? "no plan.json"
                : !found.problem.empty()           ? "checkpoints missing"
                : !is_of_now                       ? state_of_unfinished(folder)
                : summary.value("diverged", false) ? "diverged"
                : summary.contains("error")        ? "failed"
                : summary.contains("stopped_by") && !summary["stopped_by"].is_null()
                    ? fmt::format("stopped: {}", summary["stopped_by"].get<std::string>())
                : summary.value("finished", true) ? "finished"
                                                  : "failed";
  return facts;
}

std::vector<RunFacts> runs_below(const std::string& folder) {
  if (!fs::is_directory(folder))
    throw ConfigError(fmt::format("there is no folder '{}'; name it: zero runs list DIR", folder));
  std::vector<RunFacts> runs;
  if (is_run(folder)) runs.push_back(facts_of(folder));
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && is_run(entry.path())) runs.push_back(facts_of(entry.path()));
  }
  std::sort(runs.begin(), runs.end(), [](const RunFacts& a, const RunFacts& b) { return a.written < b.written; });
  return runs;
}

int list(const RunsArguments& arguments) {
  const auto runs = runs_below(arguments.folder);
  if (arguments.json) {
    auto all = ordered_json::array();
    for (const RunFacts& run : runs) {
      all.push_back({{"folder", run.folder.string()},
                     {"preset", run.preset},
                     {"ranks", run.ranks},
                     {"stage", run.stage},
                     {"steps", run.steps},
                     {"steps_wanted", run.steps_wanted},
                     {"checkpoints", run.checkpoints},
                     {"val_loss", run.val_loss ? ordered_json(*run.val_loss) : ordered_json()},
                     {"val_loss_step", run.val_step},
                     {"state", run.state}});
    }
    say(all.dump(2));
    return 0;
  }
  if (runs.empty()) say(fmt::format("no runs in {}", arguments.folder));
  std::size_t widest = 0;
  for (const RunFacts& run : runs) widest = std::max(widest, run.folder.filename().string().size());
  for (const RunFacts& run : runs) {
    const std::string before = run.val_step < run.steps ? fmt::format(" at {}", run.val_step) : "";
    say(fmt::format("{:<{}} step {:>5}/{:<5} val {:<13} {}", run.folder.filename().string(), widest, run.steps,
                    run.steps_wanted, run.val_loss ? fmt::format("{:.4f}{}", *run.val_loss, before) : "-", run.state));
  }
  return 0;
}

/// Losses by step.
std::map<std::int64_t, std::pair<double, double>> curve_of(const fs::path& folder) {
  std::map<std::int64_t, std::pair<double, double>> curve;
  std::ifstream file(folder / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto number = [&](const char* name) {
      return json.contains(name) && json[name].is_number() ? json[name].get<double>() : std::nan("");
    };
    if (json.is_object() && json.contains("loss"))
      curve[json.value("step", std::int64_t{0})] = {number("loss"), number("grad_norm")};
  }
  return curve;
}

/// Keys of the configuration that differ: "zero_optimization.stage: 3 and 1".
std::vector<std::string> differing_keys(const fs::path& a, const fs::path& b) {
  const auto flat_a = read_run_json(a, "config.json").flatten(), flat_b = read_run_json(b, "config.json").flatten();
  std::set<std::string> names;
  for (const auto& item : flat_a.items()) names.insert(item.key());
  for (const auto& item : flat_b.items()) names.insert(item.key());
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    const ordered_json mine = flat_a.value(name, ordered_json()), other = flat_b.value(name, ordered_json());
    if (mine == other) continue;
    std::string key = name.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    lines.push_back(fmt::format("{}: {} and {}", key, mine.dump(), other.dump()));
  }
  return lines;
}

/// What curves depend on beside the configuration, where two runs differ in it.
std::vector<std::string> differing_surroundings(const fs::path& a, const fs::path& b) {
  struct Fact {
    std::string_view what, file, path;
  };
  constexpr std::array kFacts{Fact{"threads a rank", "summary.json", "/threads_per_rank"},
                              Fact{"CPU", "environment.json", "/host/cpu"},
                              Fact{"libtorch's instruction set", "environment.json", "/host/libtorch_instruction_set"},
                              Fact{"libtorch", "environment.json", "/versions/libtorch"},
                              Fact{"text", "environment.json", "/run/corpus_hash"},
                              Fact{"model", "summary.json", "/preset"}};
  std::vector<std::string> lines;
  for (const Fact& fact : kFacts) {
    const auto value_in = [&](const fs::path& folder) {
      return read_run_json(folder, std::string(fact.file))
          .value(ordered_json::json_pointer(std::string(fact.path)), ordered_json());
    };
    const ordered_json mine = value_in(a), other = value_in(b);
    if (mine == other || mine.is_null() || other.is_null()) continue;
    lines.push_back(fmt::format("{}: {} and {}", fact.what, mine.dump(), other.dump()));
  }
  return lines;
}

int compare(const RunsArguments& arguments) {
  for (const std::string& folder : {arguments.first, arguments.second})
    if (!is_run(folder) || !fs::exists(fs::path(folder) / "plan.json"))
      throw ConfigError(fmt::format("'{}' holds no run (metrics.jsonl, plan.json)", folder));
  const auto keys = differing_keys(arguments.first, arguments.second);
  const auto surroundings = differing_surroundings(arguments.first, arguments.second);
  const auto a = curve_of(arguments.first), b = curve_of(arguments.second);
  std::int64_t common = 0, equal = 0, first_difference = -1;
  double largest = 0;
  for (const auto& [step, values] : a) {
    const auto other = b.find(step);
    if (other == b.end()) continue;
    ++common;
    // The same bits, or both no numbers.
    const auto same = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    if (same(values.first, other->second.first) && same(values.second, other->second.second)) {
      ++equal;
      continue;
    }
    if (first_difference < 0) first_difference = step;
    largest = std::max(largest, std::abs(values.first - other->second.first));
  }
  if (arguments.json) {
    say(ordered_json({{"config", keys},
                      {"surroundings", surroundings},
                      {"steps", {a.size(), b.size()}},
                      {"common_steps", common},
                      {"equal_steps", equal},
                      {"first_difference", first_difference < 0 ? ordered_json() : ordered_json(first_difference)},
                      {"largest_loss_difference", largest}})
            .dump(2));
  } else {
    for (const auto* lines : {&keys, &surroundings})
      for (const std::string& line : *lines) say("  " + line);
    say(fmt::format("{} steps and {}; of {} in both, {} have the same loss and norm, bit for bit", a.size(), b.size(),
                    common, equal));
    if (a.size() != b.size()) say("the curves differ in their length");
    if (first_difference >= 0)
      say(fmt::format("the first that differs is step {}; losses differ by {:.3g} at most", first_difference, largest));
    if (first_difference >= 0 && !surroundings.empty())
      say("libtorch's kernels add in another order with other threads, CPUs, versions: compare runs that share them");
  }
  return common == equal && a.size() == b.size() ? 0 : 1;
}

}  // namespace

void add_runs_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<RunsArguments>();
  CLI::App* command = app.add_subcommand("runs", "list runs, or compare two");
  command->require_subcommand(1);
  RunsArguments& to = *arguments;
  const OptionRow json{"--json", &to.json, Values{}, "print JSON, for scripts"};
  CLI::App* listing = command->add_subcommand("list", "runs of a folder, the newest last");
  add_options(*listing, {{"folder", &to.folder, Values{"FOLDER"}, "folder of runs"}, json});
  listing->callback([arguments, &exit_code] { exit_code = list(*arguments); });
  CLI::App* comparing =
      command->add_subcommand("compare", "configuration and curves of two runs; exit code 1 when the curves differ");
  add_options(
      *comparing,
      {{.names = "first", .to = &to.first, .values = {"RUN"}, .help = "folder of a run", .is_required = true},
       {.names = "second", .to = &to.second, .values = {"RUN"}, .help = "folder of another", .is_required = true},
       json});
  comparing->callback([arguments, &exit_code] { exit_code = compare(*arguments); });
}

}  // namespace zero::app
