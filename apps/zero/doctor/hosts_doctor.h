#pragma once
// `zero doctor --hosts FILE`: whether hosts can train together, found out by trying.
#include <string>

namespace zero::app {

struct HostsDoctorOptions {
  std::string hostfile;
  std::string run_dir;  ///< that all hosts have to see; empty: not looked at
  double timeout_s = 20;
  bool json = false;
};

/// Looks at all hosts at once, then at the links between the first and each other one, and prints what it finds.
/// Returns the exit code: 1 where something is wrong. Local. Throws ConfigError, IoError.
int examine_hosts(const HostsDoctorOptions& options);

/// On each host: prints its facts as a line of JSON. With a folder, looks for `token` in it and leaves a file there.
int print_facts_for_hosts_doctor(const std::string& run_dir, const std::string& token);

/// *Collective*, one rank per host: rank 0 prints latency and bandwidth of its link to each other rank, as a line of
/// JSON.
int measure_links();

}  // namespace zero::app
