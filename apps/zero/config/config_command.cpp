#include "config/config_command.h"

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

#include "config/config_convert.h"
#include "config/config_text.h"
#include "text/console.h"
#include "text/number_check.h"
#include "text/text_format.h"
#include "train/train_config.h"
#include "train/train_plan.h"
#include "zero/config.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

struct ConfigArguments {
  std::string file, pattern;
  int ranks = 1;
  bool ranks_given = false;
  std::optional<std::int64_t> steps;
  bool json = false;
  TrainerArguments trainer;
  TrainOptions starter;
};

std::string read_all(std::istream& file) { return {std::istreambuf_iterator<char>(file), {}}; }

int check(const ConfigArguments& arguments) {
  std::string source;  // of problems that have no line
  CheckedConfig checked{.file = arguments.file, .ranks = arguments.ranks, .steps = arguments.steps};
  try {
    const bool is_piped = arguments.file == "-";
    if (is_piped) checked.file = "standard input";
    checked.given = is_piped ? Config::from_text(read_all(std::cin), checked.file) : Config::from_file(arguments.file);
    checked.resolved = checked.given;
    source = checked.file + ": ";
    checked.resolved.resolve_batch(arguments.ranks);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}{}\n", source, error.what());
    if (!source.empty() && !arguments.ranks_given)
      fmt::print(stderr, "checked for {}; use -n N for another number\n", counted(arguments.ranks, "rank"));
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
    config.resolve_batch(arguments.ranks);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

int init(const ConfigArguments& arguments) {
  const TrainOptions& options = arguments.starter;
  const std::int64_t dim = choose_model(options).dim;
  make_config(options, dim, arguments.ranks);  // checks
  Console(true).print(builtin_config(options, dim, arguments.ranks) + "\n");
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

void add_convert(CLI::App& command, const std::shared_ptr<ConfigArguments>& arguments, int& exit_code) {
  CLI::App* converting = command.add_subcommand(
      "convert", "fill in the \"auto\" values of a JSON for Hugging Face's Trainer; decisions go to standard error");
  TrainerArguments& trainer = arguments->trainer;
  const auto number = [&](const char* name, std::optional<std::int64_t>& to, const char* help) {
    converting->add_option(name, to, help)->transform(whole_number(1))->type_name("N");
  };
  const auto real = [&](const char* name, std::optional<double>& to, const char* help) {
    converting->add_option(name, to, help)->check(real_number(0, 1e6))->type_name("X");
  };
  converting->add_option("file", arguments->file, "DeepSpeed JSON; - for standard input")->required();
  converting->add_option("-n,--ranks", arguments->ranks, "ranks in all (default 1)")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N");
  number("--steps", arguments->steps, "optimizer steps, for schedules that end");
  number("--micro-batch", trainer.micro_batch, "samples that each rank takes at a time (default 8)");
  number("--accumulation", trainer.accumulation, "micro-batches a step (default 1)");
  number("--warmup-steps", trainer.warmup_steps, "steps of warm-up (default 2)");
  number("--hidden-size", trainer.hidden_size, "the model's, for sizes of buckets (default: chosen here)");
  real("--lr", trainer.lr, "learning rate (default 5e-5)");
  real("--weight-decay", trainer.weight_decay, "weight decay (default 0)");
  real("--clipping", trainer.clipping, "gradient clipping (default 1)");
  converting->add_option("--dtype", trainer.dtype, "of parameters and activations (default fp32)")
      ->check(one_of({"fp32", "bf16", "fp16"}))
      ->type_name("fp32|bf16|fp16");
  converting->callback([arguments, &exit_code] { exit_code = convert(*arguments); });
}

void add_init(CLI::App& command, const std::shared_ptr<ConfigArguments>& arguments, int& exit_code) {
  CLI::App* starting = command.add_subcommand("init", "print a configuration to begin with, that of `zero train`");
  TrainOptions& options = arguments->starter;
  starting->add_option("-n,--ranks", arguments->ranks, "ranks in all (default 1)")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N");
  starting->add_option("--stage", options.stage, "ZeRO stage (default 3)")
      ->transform(whole_number(0, 3))
      ->type_name("0|1|2|3");
  starting->add_option("--steps", options.steps, "optimizer steps, for the schedule (default 220)")
      ->transform(whole_number(1))
      ->type_name("N");
  add_override_options(*starting, options);
  starting->callback([arguments, &exit_code] { exit_code = init(*arguments); });
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ConfigArguments>();
  CLI::App* command = app.add_subcommand("config", "check, convert or begin a DeepSpeed JSON, and list its keys");
  command->require_subcommand(1);
  CLI::App* checking = command->add_subcommand(
      "check", "what a file means here, or everything that is wrong with it; exit code 1 when it would not run");
  checking->add_option("file", arguments->file, "DeepSpeed JSON; - for standard input")->required();
  checking->add_option("-n,--ranks", arguments->ranks, "ranks in all")
      ->transform(whole_number(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  checking->add_option("--steps", arguments->steps, "optimizer steps of the run, where the schedule does not say")
      ->transform(whole_number(1, 1'000'000'000'000))
      ->type_name("N");
  checking->add_flag("--json", arguments->json, "print the configuration with its defaults, as a DeepSpeed JSON");
  checking->callback([arguments, checking, &exit_code] {
    arguments->ranks_given = checking->count("--ranks") > 0;
    exit_code = check(*arguments);
  });
  add_convert(*command, arguments, exit_code);
  add_init(*command, arguments, exit_code);
  CLI::App* listing =
      command->add_subcommand("keys", "every key with what becomes of it, one a line where a program reads it");
  listing->add_option("pattern", arguments->pattern, "only those with this in their name, in any case");
  listing->add_flag("--json", arguments->json, "print JSON, for scripts");
  listing->callback([arguments, &exit_code] { exit_code = keys(*arguments); });
}

}  // namespace zero::app
