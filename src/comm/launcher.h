#pragma once
// Starts the ranks of a job on this host and looks after them: the work behind `zero launch`.
#include <map>
#include <string>
#include <vector>

namespace zero::comm {

struct LaunchOptions {
  int nproc = 1;                     ///< ranks, 1 or more
  std::vector<std::string> command;  ///< program (looked up in PATH) and its arguments
  /// True: every line of the ranks' output begins with "[rank] ". False: they inherit the descriptors.
  bool prefix_output = true;
  /// Set for the ranks on top of this process's environment; wins over what launch() sets.
  std::map<std::string, std::string> environment;
  /// How long the other ranks may go on after the first failure (or after a signal) before they get
  /// SIGTERM. They usually end by themselves, with an error that names the failed rank.
  int grace_ms = 8'000;
  int kill_after_ms = 3'000;  ///< from SIGTERM to SIGKILL
};

/// Runs the job to its end and returns its exit code: 0, or that of the first rank that failed (128 + signal
/// for one killed by a signal). Each rank gets ZERO_RANK, ZERO_WORLD_SIZE, ZERO_LOCAL_RANK,
/// ZERO_LOCAL_WORLD_SIZE and ZERO_JOB_ID, the same as RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, a free
/// MASTER_ADDR and MASTER_PORT, OMP_NUM_THREADS = cores / ranks unless that is set, OMP_WAIT_POLICY =
/// passive unless that or GOMP_SPINCOUNT is set; its own process group; /dev/null as input.
///
/// SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to all ranks; a second SIGINT or SIGTERM kills
/// them, and the exit code is 128 + that. Ranks die with this process. When it returns no process of the job
/// is left, nor its files in /dev/shm. Which rank failed first, and how, goes to standard error. Call from
/// the main thread: the ranks live as long as the calling thread. Throws ConfigError when the program cannot
/// be started.
int launch(const LaunchOptions& options);

}  // namespace zero::comm
