#include "launch.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "number_check.h"
#include "zero/launch.h"

namespace {

struct Arguments {
  int nproc = 1;
  bool no_prefix = false;
  std::string log_dir;
  std::optional<double> grace_s;
  std::vector<std::string> environment;
  std::string program;
};

/// `rest`: the program's arguments.
zero::LaunchOptions to_options(const Arguments& arguments, std::vector<std::string> rest) {
  std::vector<std::string> command;
  if (!arguments.program.empty()) command.push_back(arguments.program);
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  command.insert(command.end(), rest.begin(), rest.end());
  zero::LaunchOptions options;
  options.nproc = arguments.nproc;
  options.command = std::move(command);
  options.prefix_output = !arguments.no_prefix;
  options.log_dir = arguments.log_dir;
  if (arguments.grace_s) options.grace_ms = options.failure_grace_ms = static_cast<int>(*arguments.grace_s * 1000);
  for (const std::string& assignment : arguments.environment) {
    const auto equals = assignment.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw CLI::ValidationError("--env", "got \"" + assignment + "\", wanted NAME=VALUE");
    }
    options.environment[assignment.substr(0, equals)] = assignment.substr(equals + 1);
  }
  return options;
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("launch", "start the ranks of a job on this host and look after them");
  command->add_option("-n,--nproc", arguments->nproc, "number of ranks")
      ->required()
      ->transform(zero::app::whole_number(1, 4096))
      ->type_name("N");
  command->add_flag("--no-prefix", arguments->no_prefix, "do not begin each line of output with the rank");
  command
      ->add_option("--log-dir", arguments->log_dir, "folder where each rank's output is also appended to rank<N>.log")
      ->type_name("DIR");
  command
      ->add_option("--grace", arguments->grace_s,
                   "seconds the ranks may go on after a stop signal (default 8) or the first failure (default 5)")
      ->check(zero::app::real_number(0, 3600))
      ->type_name("S");
  command->add_option("--env", arguments->environment, "NAME=VALUE for the ranks; may be repeated")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("program", arguments->program, "program; what follows is its own");
  command->footer(
      "The first word that is no option of ours is the program; what follows is its own.\n"
      "Example:  zero launch -n 2 ./train --config ds.json");
  command->prefix_command();
  command->callback(
      [command, arguments, &exit_code] { exit_code = zero::launch(to_options(*arguments, command->remaining())); });
}
