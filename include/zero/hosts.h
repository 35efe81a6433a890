#pragma once
// Jobs on several hosts: hostfiles, commands on hosts, and ranks that mpirun starts there while this process supervises
// them. `zero launch --hostfile` is this.
#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace zero {

struct HostSlots {
  std::string host;
  int slots = 0;  ///< ranks
};

/// Reads lines such as "worker-1 slots=4"; "#" begins a comment. Local. Throws ConfigError, with file and line, for
/// lines that are not of this form and for hosts that come twice, IoError.
std::vector<HostSlots> read_hostfile(const std::string& path);

/// The first `ranks` slots, in the order of the file; 0: all. Local. Throws ConfigError where there are fewer.
std::vector<HostSlots> first_slots(std::vector<HostSlots> hosts, int ranks);

/// What became of a command on a host.
struct HostAnswer {
  std::string host;
  bool in_time = false;  ///< false: it had to be given up
  int exit_code = -1;    ///< 128 + signal for one that a signal has ended
  std::string out, error;
  double seconds = 0;
};

/// Runs a command on every host at once: here by itself where a name is this host's, elsewhere by what mpirun uses (the
/// variable OMPI_MCA_plm_rsh_agent, else ssh), which never asks for a password. A word of `command` reaches the host as
/// it is. Local. Throws IoError where no process can be started.
std::vector<HostAnswer> run_on_hosts(const std::vector<std::string>& hosts, const std::vector<std::string>& command,
                                     std::chrono::milliseconds timeout);

struct HostsOptions {
  std::vector<HostSlots> hosts;      ///< all that may take part, in the order of preference
  std::vector<std::string> command;  ///< program (looked up in PATH of each host) and its arguments
  int ranks = 0;                     ///< 0: all slots of the hosts that take part
  /// How many hosts take part; 0: as many as `ranks` needs. Where given, hosts that do not answer are left out, the
  /// next ones take their places, and `ranks` must be 0.
  int min_hosts = 0, max_hosts = 0;
  bool prefix_output = true;  ///< "[rank] " before each line
  /// Folder of this host for rank<N>.log and launch.jsonl, a record of what happened to the job; empty: none.
  std::string log_dir = {};
  std::map<std::string, std::string> environment = {};  ///< more variables of the ranks
  int grace_ms = 8'000;                                 ///< as in LaunchOptions
  int failure_grace_ms = 5'000;
  int kill_after_ms = 1'500;
  int max_restarts = 0;
  int stopped_limit_ms = 0;
  /// A host that is not heard of for so long is lost; 0: the default, 6 s, or ZERO_HOST_TIMEOUT_S.
  int host_timeout_ms = 0;
  std::string name = "zero launch";  ///< prefix of the launcher's own lines
  /// What mpirun starts as each rank, with `command` after it: a program that calls run_rank_of_host().
  std::vector<std::string> agent = {};
};

/// Runs the job to its end, as launch() does on one host, and returns its exit code: 0, or that of the first rank that
/// failed (128 + signal if a signal killed it), or 1 where a host was lost. mpirun of Open MPI starts the ranks; a
/// process next to each connects to this one, which passes on output, signals and exit codes, and starts all ranks
/// again up to `max_restarts` times. Ranks have the variables that torchrun gives, ZERO_RESTART_COUNT and those of
/// mpirun.
///
/// A rank that fails ends the job as launch() says. A host that is lost (no process of it left, its link cut, frozen)
/// ends it within ten seconds; what still runs there ends by itself in as long. Before each start hosts are asked
/// whether they answer (not inside an allocation of Slurm). The last line on standard error says what happened. Call it
/// from the main thread. Throws ConfigError where there is no mpirun of Open MPI in PATH, or hosts do not answer at
/// first.
int launch_on_hosts(const HostsOptions& options);

/// In the process that mpirun starts as a rank: runs `command` as the rank's program, supervised by launch_on_hosts()
/// of another process, and returns the exit code for mpirun. OMP_NUM_THREADS, unless it is set, is the rank's share of
/// its host's cores. Throws ConfigError where mpirun or launch_on_hosts() has not started this process, CommError where
/// no address of the latter can be reached.
int run_rank_of_host(const std::vector<std::string>& command);

}  // namespace zero
