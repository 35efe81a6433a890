#include "launch/hostfile.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "zero/errors.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

constexpr int kMostSlots = 4096;
constexpr std::string_view kSlots = "slots=";

HostSlots read_line(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  HostSlots found;
  std::string slots, more;
  words >> found.host >> slots;
  const std::string_view digits = std::string_view(slots).substr(std::min(kSlots.size(), slots.size()));
  const auto [stop, error] = std::from_chars(digits.begin(), digits.end(), found.slots);
  const bool whole = slots.starts_with(kSlots) && error == std::errc() && stop == digits.end();
  if (!whole || found.host.starts_with('-') || found.slots < 1 || found.slots > kMostSlots || words >> more) {
    throw ConfigError(
        fmt::format("{}: got '{}', want a host and its number of ranks, such as 'worker-1 slots=4'", where, line));
  }
  return found;
}

[[noreturn]] void replace_process(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  throw ConfigError(fmt::format("zero launch: cannot start '{}': {}", command[0], std::strerror(errno)));
}

/// What mpirun says of itself; empty: there is none.
std::string mpirun_version() {
  FILE* const pipe = ::popen("mpirun --version 2>/dev/null", "r");
  if (!pipe) return "";
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  ::pclose(pipe);
  return text;
}

/// Variables of this process that a rank needs to find its program and its settings.
std::vector<std::string> passed_on() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const bool wanted = name == "PATH" || name == "LD_LIBRARY_PATH" || name == "PYTHONPATH" || name == "VIRTUAL_ENV" ||
                        name.starts_with("ZERO_") || name.starts_with("OMP_") || name.starts_with("GOMP_");
    if (wanted) names.emplace_back(name);
  }
  return names;
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    const std::string where = fmt::format("{}:{}", path, number);
    hosts.push_back(read_line(line, where));
    const auto is_same = [&](const HostSlots& other) { return other.host == hosts.back().host; };
    if (std::count_if(hosts.begin(), hosts.end(), is_same) > 1) {
      throw ConfigError(fmt::format("{}: host '{}' is there twice", where, hosts.back().host));
    }
  }
  if (file.bad()) throw IoError(fmt::format("--hostfile {}: cannot be read", path));
  if (hosts.empty()) throw ConfigError(fmt::format("--hostfile {}: no hosts in it", path));
  return hosts;
}

std::vector<HostSlots> first_slots(std::vector<HostSlots> hosts, int ranks) {
  if (ranks == 0) return hosts;
  int left = ranks;
  std::vector<HostSlots> taken;
  for (HostSlots& host : hosts) {
    if (left == 0) break;
    host.slots = std::min(host.slots, left);
    left -= host.slots;
    taken.push_back(std::move(host));
  }
  if (left > 0) throw ConfigError(fmt::format("-n {}: the hosts have {} slots", ranks, ranks - left));
  return taken;
}

void start_on_hosts(const MpirunOptions& options) {
  if (mpirun_version().find("Open MPI") == std::string::npos) {
    throw ConfigError(
        "--hostfile: ranks on several hosts are started by mpirun of Open MPI, which is not in PATH (Debian: "
        "openmpi-bin). Another MPI's own launcher starts the program as well");
  }
  int ranks = 0;
  std::string hosts;
  for (const auto& [host, slots] : options.hosts) {
    ranks += slots;
    hosts += fmt::format("{}{}:{}", hosts.empty() ? "" : ",", host, slots);
  }
  // Our library pins ranks itself.
  std::vector<std::string> command = {"mpirun", "-np", std::to_string(ranks), "--host", hosts, "--bind-to", "none"};
  if (options.prefix_output) command.emplace_back("--tag-output");
  if (!options.log_dir.empty()) command.insert(command.end(), {"--output-filename", options.log_dir});
  for (const std::string& name : passed_on()) command.insert(command.end(), {"-x", name});
  for (const std::string& assignment : options.environment) {
    // By name, so that a value may hold anything.
    const auto equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    ::setenv(name.c_str(), assignment.c_str() + equals + 1, /*overwrite=*/1);
    if (std::find(command.begin(), command.end(), name) == command.end()) command.insert(command.end(), {"-x", name});
  }
  command.insert(command.end(), {own_command()[0], "launch", "--as-rank", "--"});
  command.insert(command.end(), options.command.begin(), options.command.end());
  replace_process(command);
}

void become_rank_of_host(const std::vector<std::string>& command) {
  const char* const text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const int ranks = text ? std::max(1, std::atoi(text)) : 1;
  ::setenv("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / ranks)).c_str(), /*overwrite=*/0);
  if (!std::getenv("GOMP_SPINCOUNT")) ::setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
  replace_process(command);
}

}  // namespace zero::app
