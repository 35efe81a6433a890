#include "config_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "config_text.h"
#include "console.h"
#include "number_check.h"
#include "zero/config.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

struct Arguments {
  std::string file, pattern;
  int ranks = 1;
  std::optional<std::int64_t> steps;
  bool json = false;
};

int check(const Arguments& arguments) {
  std::string source;  // of problems that have no line
  CheckedConfig checked{.file = arguments.file, .ranks = arguments.ranks, .steps = arguments.steps};
  try {
    checked.given = Config::from_file(arguments.file);
    checked.resolved = checked.given;
    source = arguments.file + ": ";
    checked.resolved.resolve_batch(arguments.ranks);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}{}\n", source, error.what());
    return 1;
  }
  Console(true).print(arguments.json ? checked.resolved.to_json() : config_text(checked));
  return 0;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

int keys(const Arguments& arguments) {
  const std::string wanted = lower(arguments.pattern);
  std::string text;
  for (const KeyInfo& key : schema()) {
    if (lower(key.path).find(wanted) != std::string::npos) text += key_text(key) + "\n";
  }
  if (text.empty()) {
    fmt::print(stderr, "zero config keys: no key has '{}' in its name\n", arguments.pattern);
    return 1;
  }
  Console(true).print(text);
  return 0;
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("config", "check a DeepSpeed JSON, and list its keys");
  command->require_subcommand(1);
  CLI::App* checking = command->add_subcommand(
      "check", "what a file means here, or everything that is wrong with it; exit code 1 when it would not run");
  checking->add_option("file", arguments->file, "DeepSpeed JSON")->required();
  checking->add_option("-n,--ranks", arguments->ranks, "ranks in all")
      ->transform(whole_number(1, 1'000'000))
      ->capture_default_str();
  checking->add_option("--steps", arguments->steps, "optimizer steps of the run, where the schedule does not say")
      ->transform(whole_number(1, 1'000'000'000'000));
  checking->add_flag("--json", arguments->json, "print the configuration with its defaults, as a DeepSpeed JSON");
  checking->callback([arguments, &exit_code] { exit_code = check(*arguments); });
  CLI::App* listing = command->add_subcommand("keys", "every key with what becomes of it, one a line");
  listing->add_option("pattern", arguments->pattern, "only those with this in their name, in any case");
  listing->callback([arguments, &exit_code] { exit_code = keys(*arguments); });
}

}  // namespace zero::app
