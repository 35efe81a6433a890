#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "commands.h"
#include "host/rank_setup.h"
#include "text/options.h"
#include "train/train_options.h"
#include "zero/errors.h"
#include "zero/hosts.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

struct LaunchArguments {
  std::optional<int> nproc;
  std::string hostfile, nnodes;
  bool no_prefix = false;
  std::string log_dir;
  int max_restarts = 0;
  std::optional<double> grace_s;
  std::vector<std::string> environment;
  std::string program;
  bool rank_of_host = false;
};

/// `rest`: the program's arguments.
std::vector<std::string> command_of(const LaunchArguments& arguments, std::vector<std::string> rest) {
  std::vector<std::string> command;
  if (!arguments.program.empty()) command.push_back(arguments.program);
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  command.insert(command.end(), rest.begin(), rest.end());
  if (command.empty()) throw ConfigError("zero launch: no program given; want `zero launch -n N PROGRAM ...`");
  return command;
}

/// What zero launch and mpirun say to each rank of itself.
constexpr const char* kOfRank[] = {"ZERO_RANK",
                                   "ZERO_LOCAL_RANK",
                                   "RANK",
                                   "LOCAL_RANK",
                                   "ROLE_RANK",
                                   "ZERO_WORLD_SIZE",
                                   "WORLD_SIZE",
                                   "ZERO_LOCAL_WORLD_SIZE",
                                   "GROUP_RANK",
                                   "LOCAL_WORLD_SIZE",
                                   "ROLE_WORLD_SIZE",
                                   "ZERO_RESTART_COUNT",
                                   "TORCHELASTIC_RESTART_COUNT"};

/// What is wrong with NAME=VALUE; empty: nothing.
std::string problem_with_assignment(const std::string& assignment) {
  const std::string name = assignment.substr(0, assignment.find('='));
  const bool starts_well = !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0;
  const bool is_name = starts_well && std::ranges::all_of(name, [](char c) {
                         return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
                       });
  if (!is_name || name.size() == assignment.size()) return "got '" + assignment + "', want NAME=VALUE";
  const bool is_of_rank = std::ranges::find(kOfRank, name) != std::end(kOfRank);
  return is_of_rank ? name + " says to each rank which it is: zero launch sets it (see -n)" : "";
}

LaunchOptions local_options(const LaunchArguments& arguments, std::vector<std::string> command) {
  LaunchOptions options;
  options.nproc = arguments.nproc.value_or(kDefaultRanks);
  options.command = std::move(command);
  options.prefix_output = !arguments.no_prefix;
  options.log_dir = arguments.log_dir;
  options.max_restarts = arguments.max_restarts;
  options.stopped_limit_ms = stopped_limit_ms();
  if (arguments.grace_s) options.grace_ms = options.failure_grace_ms = static_cast<int>(*arguments.grace_s * 1000);
  for (const std::string& assignment : arguments.environment) {
    const auto equals = assignment.find('=');
    options.environment[assignment.substr(0, equals)] = assignment.substr(equals + 1);
  }
  return options;
}

/// "2" or "1:4".
std::pair<int, int> numbers_of_hosts(const std::string& text) {
  int first = 0, last = 0;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, first);
  last = first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == ':') read = std::from_chars(read.ptr + 1, end, last);
  if (read.ec != std::errc() || read.ptr != end || first < 1 || last < first)
    throw ConfigError("--nnodes: got '" + text + "', want a number of hosts or the fewest and the most, such as 2:4");
  return {first, last};
}

HostsOptions hosts_options(const LaunchArguments& arguments, std::vector<std::string> command) {
  const LaunchOptions local = local_options(arguments, std::move(command));
  HostsOptions options;
  options.hosts = read_hostfile(arguments.hostfile);
  options.ranks = arguments.nproc.value_or(0);
  options.command = local.command;
  if (!arguments.nnodes.empty()) std::tie(options.min_hosts, options.max_hosts) = numbers_of_hosts(arguments.nnodes);
  options.prefix_output = local.prefix_output;
  options.log_dir = local.log_dir;
  options.environment = local.environment;
  options.grace_ms = local.grace_ms;
  options.failure_grace_ms = local.failure_grace_ms;
  options.max_restarts = local.max_restarts;
  options.stopped_limit_ms = local.stopped_limit_ms;
  return options;
}

int run(const LaunchArguments& arguments, std::vector<std::string> rest) {
  std::vector<std::string> command = command_of(arguments, std::move(rest));
  if (arguments.rank_of_host) return run_rank_of_host(command);
  if (!arguments.hostfile.empty()) return launch_on_hosts(hosts_options(arguments, std::move(command)));
  if (!arguments.nnodes.empty()) throw ConfigError("--nnodes: how many hosts of --hostfile FILE, which is not given");
  return launch(local_options(arguments, std::move(command)));
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<LaunchArguments>();
  LaunchArguments& to = *arguments;
  CLI::App* command = app.add_subcommand("launch", "start the ranks of a job and look after them");
  add_options(
      *command,
      {{"-n,--nproc,--ranks", &to.nproc, whole(1, 4096), "number of ranks (default 2; with --hostfile: all its slots)"},
       {"--hostfile", &to.hostfile, Values{"FILE"},
        "start them on several hosts by mpirun; lines such as 'worker-1 slots=4'"},
       {"--nnodes", &to.nnodes, not_empty("MIN:MAX", "numbers of hosts"),
        "as many hosts of the file; those that do not answer are left out"},
       {"--max-restarts", &to.max_restarts, whole(0, 1'000'000), "start all ranks again after a failure, so often"},
       {"--no-prefix", &to.no_prefix, Values{}, "do not begin each line of output with the rank"},
       {"--log-dir", &to.log_dir, not_empty("DIR", "a folder"),
        "folder where each rank's output is also appended to rank<N>.log; with --hostfile launch.jsonl, too"},
       {"--grace", &to.grace_s, real(0, 3600, "S"),
        "seconds the ranks may go on after a stop signal (default 8) or the first failure (default 5)"},
       {"--env", &to.environment, Values{"NAME=VALUE", problem_with_assignment}, "for the ranks; may be repeated"},
       {"--as-rank", &to.rank_of_host, Values{}, "this process is what mpirun starts", ""},
       {"program", &to.program, Values{"PROGRAM"}, "program; what follows is its own"}});
  command->footer(
      "The first word that is no option of ours is the program; the rest is its own.\n"
      "Examples:\n"
      "  zero launch -n 2 ./train --config ds.json\n"
      "  zero launch --hostfile hosts ./train --config ds.json\n"
      "  zero launch --hostfile hosts --nnodes 2:4 --max-restarts 3 ./train ds.json\n"
      "Under Slurm, srun starts the program on the hosts of an allocation:\n"
      "  srun --mpi=pmix --kill-on-bad-exit=1 ./train --config ds.json");
  command->prefix_command();
  command->callback([command, arguments, &exit_code] { exit_code = run(*arguments, command->remaining()); });
}

}  // namespace zero::app
