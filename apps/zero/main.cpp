// The command line `zero`.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/bench_command.h"
#include "ckpt/ckpt_command.h"
#include "compare/compare_command.h"
#include "config/config_command.h"
#include "describe/describe_command.h"
#include "doctor/doctor_command.h"
#include "eval/eval_command.h"
#include "generate/generate_command.h"
#include "host/host_facts.h"
#include "host/side_programs.h"
#include "launch/launch.h"
#include "plan/plan_command.h"
#include "runs/runs_command.h"
#include "text/console.h"
#include "text/help_text.h"
#include "text/usage.h"
#include "train/train_command.h"
#include "zero/errors.h"

namespace {

constexpr int kBadInput = 2;

std::string version_text() {
  return fmt::format("zerotorch {}, libtorch {}", zero::app::zerotorch_version(), zero::app::libtorch_version());
}

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("ZeRO for libtorch: train models that do not fit one process", "zero");
  app.set_version_flag("-V,--version", version_text());
  app.require_subcommand(1);
  app.formatter(zero::app::help_formatter());  // of the commands, too, as they are added after it
  zero::app::add_train_command(app, exit_code);
  zero::app::add_generate_command(app, exit_code);
  zero::app::add_eval_command(app, exit_code);
  add_launch_command(app, exit_code);
  zero::app::add_ckpt_command(app, exit_code);
  zero::app::add_plan_command(app, exit_code);
  zero::app::add_config_command(app, exit_code);
  zero::app::add_compare_command(app, exit_code);
  zero::app::add_bench_command(app, exit_code);
  zero::app::add_doctor_command(app, exit_code);
  zero::app::add_runs_command(app, exit_code);
  bool as_json = false;
  CLI::App* const version = app.add_subcommand("version", "print the versions");
  version->add_flag("--json", as_json, "all that host and build are, as JSON, for scripts");
  version->callback([&as_json] {
    zero::app::Console(true).print((as_json ? zero::app::host_facts().dump(2) : version_text()) + "\n");
  });
  zero::app::add_describe_commands(app);
  const std::vector<std::string> arguments =
      zero::app::with_program_marked(*app.get_subcommand("launch"), zero::app::with_help(app, {argv + 1, argv + argc}));
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    // What a run has to say is in its folder, too.
    const bool must_be_read = !app.got_subcommand("train") && !app.got_subcommand("launch");
    const int of_output = must_be_read ? zero::app::exit_code_of_output() : 0;
    return exit_code != 0 ? exit_code : of_output;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text);
      zero::app::Console(true).print(text.str());
      return zero::app::exit_code_of_output();
    }
    zero::app::print_error(fmt::format("zero: error: {}\n", zero::app::explain(error, app, arguments)));
    return kBadInput;
  }
}

/// Where one of the three is closed, the next file that is opened would be taken for it: so that writes fail instead.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  try {
    return run(argc, argv);
  } catch (const zero::app::ProgramStopped& stopped) {
    return stopped.exit_code();
  } catch (const zero::Error& error) {
    zero::app::print_error(fmt::format("zero: error: {}\n", error.what()));
    return kBadInput;
  } catch (const std::exception& error) {
    zero::app::print_error(fmt::format("zero: error: {}\n", error.what()));
    return 1;
  }
}
