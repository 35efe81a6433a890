#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "config/config_convert.h"
#include "config/config_text.h"
#include "text/console.h"
#include "text/options.h"
#include "text/text_format.h"
#include "train/train_config.h"
#include "train/train_plan.h"
#include "zero/config.h"
#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::app {
namespace {

struct ConfigArguments {
  std::string file, pattern;
  std::optional<int> ranks;
  std::optional<std::int64_t> steps;
  bool json = false;
  TrainerArguments trainer;
  TrainOptions starter;
};

std::string read_all(std::istream& file) { return {std::istreambuf_iterator<char>(file), {}}; }

/// What an engine refuses of it, whose module is on a GPU or on the CPU; empty: nothing.
std::string refusal(const Config& config, const plan::Cluster& cluster) {
  try {
    plan::plan_memory(plan::model_of_numel(1'000'000), config, cluster);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

/// Throws ConfigError for settings that an engine refuses wherever its module is.
void check_engine(Config config, int ranks) {
  config.zerotorch.unit_names.clear();  // of a model that is not known
  config.zero_optimization.leaf_module_names.clear();
  config.zero_optimization.leaf_module_name_suffixes.clear();
  const std::string on_cpu = refusal(config, {.ranks = ranks});
  if (!on_cpu.empty() && !refusal(config, {.ranks = ranks, .gpus = true}).empty()) throw ConfigError(on_cpu);
}

int check(const ConfigArguments& arguments) {
  std::string source;  // of problems that have no line
  CheckedConfig checked{.file = arguments.file, .ranks = arguments.ranks.value_or(1), .steps = arguments.steps};
  try {
    const bool is_piped = arguments.file == "-";
    if (is_piped) checked.file = "standard input";
    checked.given = is_piped ? Config::from_text(read_all(std::cin), checked.file) : Config::from_file(arguments.file);
    checked.resolved = checked.given;
    source = checked.file + ": ";
    checked.resolved.resolve_batch(checked.ranks);
    check_engine(checked.resolved, checked.ranks);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}{}\n", source, error.what());
    if (!source.empty() && !arguments.ranks)
      fmt::print(stderr, "checked for {}; use -n N for another number\n", counted(checked.ranks, "rank"));
    if (arguments.file != "-" && std::string_view(error.what()).find("\"auto\" is filled in") != std::string_view::npos)
      fmt::print(stderr, "{} config convert {} fills them in\n", program_name(), for_shell(arguments.file));
    return 1;
  }
  Console(true).print(arguments.json ? checked.resolved.to_json() : config_text(checked));
  return 0;
}

int convert(const ConfigArguments& arguments) {
  const bool is_piped = arguments.file == "-";
  const std::string name = is_piped ? "standard input" : arguments.file;
  std::ifstream file;
  if (!is_piped) file.open(arguments.file);
  if (!file) throw IoError(fmt::format("{}: cannot be read", name));
  const std::string text = read_all(is_piped ? std::cin : file);
  TrainerArguments given = arguments.trainer;
  given.steps = arguments.steps;
  const Converted converted = convert_trainer_json(text, name, given);
  for (const std::string& decision : converted.decisions) fmt::print(stderr, "{}\n", decision);
  Console(true).print(converted.json + "\n");
  try {
    Config config = Config::from_text(converted.json, "what became of it");
    config.resolve_batch(arguments.ranks.value_or(1));
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

int init(const ConfigArguments& arguments) {
  const TrainOptions& options = arguments.starter;
  const std::int64_t dim = choose_model(options).dim;
  make_config(options, dim, arguments.ranks.value_or(1));  // checks
  Console(true).print(builtin_config(options, dim, arguments.ranks.value_or(1)) + "\n");
  return 0;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

int keys(const ConfigArguments& arguments) {
  const std::string wanted = lower(arguments.pattern);
  std::vector<KeyInfo> found;
  for (const KeyInfo& key : schema()) {
    if (lower(key.path).find(wanted) != std::string::npos) found.push_back(key);
  }
  if (found.empty()) {
    fmt::print(stderr, "zero config keys: no key has '{}' in its name\n", arguments.pattern);
    return 1;
  }
  const Console console(true);
  if (arguments.json) {
    console.print(keys_json(found) + "\n");
    return 0;
  }
  // Programs get a line each.
  const bool has_reader = ::isatty(STDOUT_FILENO) != 0;
  for (const KeyInfo& key : found) console.print(has_reader ? wrapped_key_text(key) : key_text(key) + "\n");
  return 0;
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ConfigArguments>();
  ConfigArguments& to = *arguments;
  CLI::App* command = app.add_subcommand("config", "check, convert or begin a DeepSpeed JSON, and list its keys");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*run)(const ConfigArguments&),
                       const std::vector<OptionRow>& rows) {
    CLI::App* sub = command->add_subcommand(name, help);
    add_options(*sub, rows);
    sub->callback([arguments, run, &exit_code] { exit_code = run(*arguments); });
  };
  const OptionRow file{.names = "file",
                       .to = &to.file,
                       .values = {"FILE"},
                       .help = "DeepSpeed JSON; - for standard input",
                       .is_required = true};
  const OptionRow ranks{"-n,--ranks", &to.ranks, whole(1, 1'000'000), "ranks in all (default: 1)"};
  const OptionRow json{"--json", &to.json, Values{}, "print JSON, for scripts"};
  add("check", "what a file means here, or everything that is wrong with it; exit code 1 when it would not run", check,
      {file,
       ranks,
       {"--steps", &to.steps, whole(1, 1'000'000'000'000), "optimizer steps, where the schedule does not say"},
       {"--json", &to.json, Values{}, "print the configuration with its defaults, as a DeepSpeed JSON"}});
  TrainerArguments& trainer = to.trainer;
  add("convert", "fill in the \"auto\" values of a JSON for Hugging Face's Trainer; decisions go to standard error",
      convert,
      {file,
       ranks,
       {"--steps", &to.steps, whole(1), "optimizer steps, for schedules that end"},
       {"--micro-batch", &trainer.micro_batch, whole(1), "samples that each rank takes at a time (default 8)"},
       {"--accumulation", &trainer.accumulation, whole(1), "micro-batches a step (default 1)"},
       {"--warmup-steps", &trainer.warmup_steps, whole(1), "steps of warm-up (default 2)"},
       {"--hidden-size", &trainer.hidden_size, whole(1), "the model's, for sizes of buckets (default: chosen here)"},
       {"--lr", &trainer.lr, real(0, 1e6), "learning rate (default 5e-5)"},
       {"--weight-decay", &trainer.weight_decay, real(0, 1e6), "weight decay (default 0)"},
       {"--clipping", &trainer.clipping, real(0, 1e6), "gradient clipping (default 1)"},
       {"--dtype", &trainer.dtype, choice("fp32|bf16|fp16"), "of parameters and activations (default fp32)"}});
  std::vector<OptionRow> starter =
      pick(train_rows(to.starter), {{"--stage", "ZeRO stage (default 3)"},
                                    {"--steps", "optimizer steps, for the schedule (default 220)"},
                                    {"--lr"},
                                    {"--batch-size"},
                                    {"--micro-batch"},
                                    {"--dtype"}});
  starter.insert(starter.begin(), ranks);
  add("init", "print a configuration to begin with, that of `zero train`", init, starter);
  add("keys", "every key with what becomes of it, one a line where a program reads it", keys,
      {{"pattern", &to.pattern, Values{"TEXT"}, "only those with this in their name, in any case"}, json});
}

}  // namespace zero::app
