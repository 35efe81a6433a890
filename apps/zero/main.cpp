// The command line `zero`.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "bench_command.h"
#include "ckpt_command.h"
#include "compare_command.h"
#include "config_command.h"
#include "console.h"
#include "host_facts.h"
#include "launch.h"
#include "plan_command.h"
#include "train_command.h"
#include "zero/errors.h"

namespace {

constexpr int kBadInput = 2;

std::string version_text() {
  return fmt::format("zerotorch {}, libtorch {}", zero::app::zerotorch_version(),
                     zero::app::libtorch_version());
}

int run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("ZeRO for libtorch: train models that do not fit one process", "zero");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  zero::app::add_train_command(app, exit_code);
  add_launch_command(app, exit_code);
  zero::app::add_ckpt_command(app, exit_code);
  zero::app::add_plan_command(app, exit_code);
  zero::app::add_config_command(app, exit_code);
  zero::app::add_compare_command(app, exit_code);
  zero::app::add_bench_command(app, exit_code);
  app.add_subcommand("version", "print the versions")->callback([] {
    zero::app::Console(true).print(version_text() + "\n");
  });
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const bool names_command = argc > 1 && argv[1][0] != '-';
    const auto chosen = app.get_subcommands();
    if (names_command && chosen.empty()) {
      fmt::print(stderr,
                 "zero: error: there is no command '{}'; want train, launch, ckpt, plan, config, compare, "
                 "bench or version\nTry `zero --help`.\n",
                 argv[1]);
      return kBadInput;
    }
    const std::string command = chosen.empty() ? "zero" : "zero " + chosen.front()->get_name();
    fmt::print(stderr, "zero: error: {}\nTry `{} --help`.\n", error.what(), command);
    return kBadInput;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const zero::Error& error) {
    fmt::print(stderr, "zero: error: {}\n", error.what());
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "zero: error: {}\n", error.what());
    return 1;
  }
}
