// The command line `zero`.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "host/host_facts.h"
#include "host/side_programs.h"
#include "text/command_line.h"
#include "text/console.h"
#include "text/options.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

constexpr int kBadInput = 2;

std::string version_text() { return fmt::format("zerotorch {}, libtorch {}", zerotorch_version(), libtorch_version()); }

void add_commands(CLI::App& app, int& exit_code) {
  for (const auto add : {add_train_command, add_generate_command, add_eval_command, add_launch_command,
                         add_ckpt_command, add_plan_command, add_config_command, add_compare_command, add_bench_command,
                         add_doctor_command, add_runs_command})
    add(app, exit_code);
  auto as_json = std::make_shared<bool>(false);
  CLI::App* const version = app.add_subcommand("version", "print the versions");
  add_options(*version, {{"--json", as_json.get(), Values{}, "all that host and build are, as JSON, for scripts"}});
  version->callback([as_json] { Console(true).print((*as_json ? host_facts().dump(2) : version_text()) + "\n"); });
  add_describe_commands(app);
}

int run(std::vector<std::string> words) {
  int exit_code = 0;
  CLI::App app("ZeRO for libtorch: train models that do not fit one process", "zero");
  app.set_version_flag("-V,--version", version_text());
  app.require_subcommand(1);
  app.formatter(help_formatter());  // of the commands, too, as they are added after it
  add_commands(app, exit_code);
  if (!words.empty() && words.front() == "__complete") {  // by the scripts of `zero completion`
    for (const std::string& one : completions(app, {words.begin() + 1, words.end()})) Console(true).print(one + "\n");
    return 0;
  }
  words = checked_words(app, with_help(app, std::move(words)));
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    // What a run has to say is in its folder, too.
    const bool must_be_read = !app.got_subcommand("train") && !app.got_subcommand("launch");
    const int of_output = must_be_read ? exit_code_of_output() : 0;
    return exit_code != 0 ? exit_code : of_output;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw ConfigError(explain(error, app));
    std::ostringstream text;  // --help, --version
    app.exit(error, text);
    Console(true).print(text.str());
    return exit_code_of_output();
  }
}

/// Where one of the three is closed, the next file that is opened would be taken for it: so that writes fail instead.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
}

}  // namespace
}  // namespace zero::app

int main(int argc, char** argv) {
  zero::app::open_standard_streams();
  try {
    return zero::app::run({argv + 1, argv + argc});
  } catch (const zero::app::ProgramStopped& stopped) {
    return stopped.exit_code();
  } catch (const zero::Error& error) {
    zero::app::print_error(fmt::format("zero: error: {}\n", error.what()));
    return zero::app::kBadInput;
  } catch (const std::exception& error) {
    zero::app::print_error(fmt::format("zero: error: {}\n", error.what()));
    return 1;
  }
}
