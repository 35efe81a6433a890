#pragma once
// `zero launch --hostfile`: ranks on several hosts, started by mpirun.
#include <string>
#include <vector>

namespace zero::app {

struct HostSlots {
  std::string host;
  int slots = 0;  ///< ranks
};

/// Reads lines such as "worker-1 slots=4"; "#" begins a comment. Throws ConfigError, with file and line, for lines that
/// are not of this form and for hosts that come twice, IoError.
std::vector<HostSlots> read_hostfile(const std::string& path);

/// The first `ranks` slots, in the order of the file; 0: all. Throws ConfigError where there are fewer.
std::vector<HostSlots> first_slots(std::vector<HostSlots> hosts, int ranks);

struct MpirunOptions {
  std::vector<HostSlots> hosts;
  std::vector<std::string> command;      ///< program and arguments
  std::vector<std::string> environment;  ///< NAME=VALUE
  bool prefix_output = true;
  std::string log_dir;  ///< empty: none
};

/// Replaces this process by mpirun with the ranks. Throws ConfigError where there is no mpirun of Open MPI in PATH.
[[noreturn]] void start_on_hosts(const MpirunOptions& options);

/// What mpirun starts on each host: sets the number of threads to this rank's share of its host's cores, unless
/// OMP_NUM_THREADS is set, and replaces this process by `command`. Throws ConfigError.
[[noreturn]] void become_rank_of_host(const std::vector<std::string>& command);

}  // namespace zero::app
