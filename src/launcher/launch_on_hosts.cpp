// Which hosts take part, and how often the job is started.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "launcher/event_log.h"
#include "launcher/hosts_job.h"
#include "launcher/processes.h"
#include "launcher/remote_shell.h"
#include "zero/errors.h"
#include "zero/hosts.h"
#include "zero/launch.h"

namespace zero {
namespace {

constexpr std::chrono::seconds kProbeTimeout{8};

/// What mpirun says of itself; empty: there is none.
std::string mpirun_version() {
  FILE* const pipe = ::popen("mpirun --version 2>/dev/null", "r");
  if (!pipe) return "";
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  ::pclose(pipe);
  return text;
}

void check(const HostsOptions& options) {
  if (options.command.empty() || options.command[0].empty())
    throw ConfigError("launch: no program given; wanted `zero launch --hostfile FILE -- program arguments`.");
  if (options.hosts.empty()) throw ConfigError("launch: no hosts given");
  const int hosts = static_cast<int>(options.hosts.size());
  if (options.min_hosts < 0 || options.max_hosts < options.min_hosts || options.min_hosts > hosts)
    throw ConfigError(fmt::format("launch: {} to {} hosts are wanted, and {} are listed", options.min_hosts,
                                  options.max_hosts, hosts));
  if (options.ranks > 0 && options.max_hosts > 0)
    throw ConfigError("launch: a number of ranks and a number of hosts exclude each other: every slot gets a rank");
  if (mpirun_version().find("Open MPI") == std::string::npos)
    throw ConfigError(
        "--hostfile: ranks on several hosts are started by mpirun of Open MPI, which is not in PATH (Debian: "
        "openmpi-bin). Another MPI's own launcher starts the program as well");
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

/// By host, why it cannot take part; those that can are not there.
std::map<std::string, std::string> silent_hosts(const std::vector<HostSlots>& hosts) {
  std::map<std::string, std::string> silent;
  // There mpirun starts its part on each host by srun.
  const bool in_slurm = std::getenv("SLURM_JOB_ID") && !std::getenv("OMPI_MCA_plm_rsh_agent");
  std::vector<std::string> names;
  for (const HostSlots& host : hosts)
    if (!in_slurm && !launcher::is_this_host(host.host)) names.push_back(host.host);
  const std::string shell = launcher::remote_shell()[0];
  for (const HostAnswer& answer : run_on_hosts(names, {"true"}, kProbeTimeout)) {
    if (answer.in_time && answer.exit_code == 0) continue;
    silent[answer.host] =
        answer.in_time
            ? fmt::format("`{} {} true` ended with exit code {}{}", shell, answer.host, answer.exit_code,
                          answer.error.empty() ? "" : ": " + last_line(answer.error))
            : fmt::format("`{} {} true` did not answer within {} s", shell, answer.host, kProbeTimeout.count());
  }
  return silent;
}

struct Choice {
  std::vector<HostSlots> hosts;  ///< empty: `problem`
  std::string problem;
};

Choice choose_hosts(const HostsOptions& options, launcher::EventLog& events) {
  const bool may_differ = options.max_hosts > 0;
  const std::vector<HostSlots> wanted = may_differ ? options.hosts : first_slots(options.hosts, options.ranks);
  const auto silent = silent_hosts(wanted);
  Choice choice;
  for (const HostSlots& host : wanted) {
    const auto found = silent.find(host.host);
    const bool enough = may_differ && static_cast<int>(choice.hosts.size()) == options.max_hosts;
    if (found == silent.end() && !enough) choice.hosts.push_back(host);
    if (found == silent.end()) continue;
    events.add("host_left_out", {{"host", host.host}, {"why", found->second}});
    choice.problem +=
        fmt::format("{}host {} does not answer: {}", choice.problem.empty() ? "" : "; ", host.host, found->second);
  }
  const int fewest = may_differ ? options.min_hosts : static_cast<int>(wanted.size());
  if (static_cast<int>(choice.hosts.size()) >= fewest) {
    if (!choice.problem.empty()) launcher::write_line(options.name, choice.problem + "; it is left out");
    return choice;
  }
  choice.problem += may_differ
                        ? fmt::format(". {} of the {} hosts that are needed answer", choice.hosts.size(), fewest)
                        : ". Give it a login without a password, or name it no more; --nnodes MIN:MAX leaves out "
                          "hosts that do not answer";
  choice.hosts.clear();
  return choice;
}

}  // namespace

int launch_on_hosts(const HostsOptions& given) {
  HostsOptions options = given;
  check(options);
  if (options.agent.empty()) options.agent = {own_command()[0], "launch", "--as-rank", "--"};
  launcher::EventLog events(options.log_dir);
  int code = 1;
  RestartPauses pauses;
  for (int restarts = 0;; ++restarts) {
    const auto begin = std::chrono::steady_clock::now();
    const Choice choice = choose_hosts(options, events);
    bool may_start_again = restarts > 0;
    if (!choice.hosts.empty()) {
      launcher::HostsJob job(options, choice.hosts, restarts, events);
      code = job.run();
      may_start_again = job.may_start_again();
    } else if (restarts == 0) {
      events.add("end", {{"exit_code", 1}, {"text", choice.problem}});
      throw ConfigError(choice.problem);
    } else {
      launcher::write_line(options.name, choice.problem);
      events.add("end", {{"exit_code", code}, {"text", choice.problem}});
    }
    if (restarts == options.max_restarts || !may_start_again) return code;
    launcher::write_line(options.name,
                         fmt::format("starting all ranks again ({} of {})", restarts + 1, options.max_restarts));
    std::this_thread::sleep_for(pauses.next(std::chrono::steady_clock::now() - begin));
  }
}

}  // namespace zero
