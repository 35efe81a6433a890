// zerotorch-launch: starts the ranks of a job on several hosts for `python -m zerotorch.run --hostfile`, and is what mpirun
// starts next to each rank. A program without libtorch, so that it costs a host nothing beside the ranks.
//
//   zerotorch-launch JSON              the members of zero::HostsOptions
//   zerotorch-launch --as-rank PROGRAM ARGUMENT...
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "zero/hosts.h"

namespace {

zero::HostsOptions options_from(const nlohmann::json& json, const char* program) {
  zero::HostsOptions options;
  for (const auto& [host, slots] : json.at("hosts").get<std::vector<std::pair<std::string, int>>>())
    options.hosts.push_back({host, slots});
  json.at("command").get_to(options.command);
  json.at("environment").get_to(options.environment);
  json.at("ranks").get_to(options.ranks);
  json.at("min_hosts").get_to(options.min_hosts);
  json.at("max_hosts").get_to(options.max_hosts);
  json.at("prefix_output").get_to(options.prefix_output);
  json.at("log_dir").get_to(options.log_dir);
  json.at("max_restarts").get_to(options.max_restarts);
  json.at("name").get_to(options.name);
  if (json.contains("grace_ms")) options.grace_ms = options.failure_grace_ms = json.at("grace_ms").get<int>();
  options.agent = {program, "--as-rank"};
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() > 1 && arguments[0] == "--as-rank")
      return zero::run_rank_of_host({arguments.begin() + 1, arguments.end()});
    if (arguments.size() == 1) return zero::launch_on_hosts(options_from(nlohmann::json::parse(arguments[0]), argv[0]));
    std::fputs("zerotorch-launch: called by python -m zerotorch.run --hostfile FILE\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zerotorch: error: %s\n", error.what());
  }
  return 1;
}
