#pragma once
// Starts the ranks of a job on this host and looks after them: a program that starts its own ranks, and the work
// behind `zero launch`.
//
//   int main(int argc, char** argv) {
//     return zero::run_on_ranks(4, [&] { return train(argv[1]); });  // train() calls zero::init_distributed()
//   }
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zero {

struct LaunchOptions {
  int nproc = 1;                     ///< ranks, 1 or more
  std::vector<std::string> command;  ///< program (looked up in PATH) and its arguments
  /// True: every line of the ranks' output begins with "[rank] ". False: they inherit the descriptors.
  bool prefix_output = true;
  /// Set for the ranks on top of this process's environment; wins over what launch() sets.
  std::map<std::string, std::string> environment = {};
  /// How long the ranks may go on after a stop signal before they get SIGTERM: for the running step and a checkpoint.
  int grace_ms = 8'000;
  /// How long the other ranks may go on after the first failure, where that is less than `grace_ms`. They usually end
  /// by themselves, with an error that names the failed rank; those that are stopped (SIGSTOP) get no time.
  int failure_grace_ms = 5'000;
  int kill_after_ms = 3'000;  ///< from SIGTERM to SIGKILL
  /// A rank that somebody has stopped (SIGSTOP, a debugger) for so long while others run is a failure; 0: never.
  int stopped_limit_ms = 0;
  /// The command that its own lines on standard error begin with.
  std::string name = "zero launch";
  /// Says so when a rank ends with an exit code other than 0. False where ranks say themselves what went wrong; a rank
  /// that a signal has killed is told of in any case.
  bool report_exit_codes = true;
  /// Called as soon as the first rank has failed; `by_signal`: with a line of this process to follow.
  std::function<void(bool by_signal)> on_failure = {};
};

/// Runs the job to its end and returns its exit code: 0, or that of the first rank that failed (128 + signal
/// for one killed by a signal). Each rank gets ZERO_RANK, ZERO_WORLD_SIZE, ZERO_LOCAL_RANK,
/// ZERO_LOCAL_WORLD_SIZE and ZERO_JOB_ID, the same as RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, a free
/// MASTER_ADDR and MASTER_PORT, OMP_NUM_THREADS = cores / ranks unless that is set, OMP_WAIT_POLICY =
/// passive unless that or GOMP_SPINCOUNT is set; its own process group; /dev/null as input, but for rank 0, which gets
/// this process's where that is a file or a pipe.
///
/// SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to all ranks; a second SIGINT or SIGTERM kills
/// them, and the exit code is 128 + that. SIGTSTP (Ctrl-Z) stops the ranks, then this process; they go on together.
/// Where nobody reads standard output any more, the ranks get SIGHUP. Ranks die with this process. When it returns no
/// process of the job is left, nor its files in /dev/shm, nor those of jobs that were killed before. Which rank failed
/// first, and how, goes to standard error. Call from the main thread: the ranks live as long as the calling thread.
/// Throws ConfigError when the program cannot be started.
int launch(const LaunchOptions& options);

/// Runs `run_rank` in this process and returns what it returned where a launcher (zero launch, torchrun, mpirun,
/// srun) has started this process as a rank, or where one rank is wanted; else launch()es this program again as
/// `nproc` ranks. `options.nproc` is ignored, and `options.command` is own_command() unless it is given. Call it
/// first in main(): what comes before it happens in the launching process too. Throws what `run_rank` and
/// launch() throw.
int run_on_ranks(int nproc, const std::function<int()>& run_rank, LaunchOptions options = {});

/// A rank, as its launcher describes it.
struct LaunchedRank {
  std::string launcher;  ///< "zero launch", "torchrun", ...
  int rank = 0;
  int size = 1;
};
/// What the environment says of this process; nothing when no launcher has started it. Local. Throws ConfigError as
/// init_distributed().
std::optional<LaunchedRank> launched_rank();

/// The program of this process, an absolute path, and the arguments it was started with. Local. Throws IoError.
std::vector<std::string> own_command();

/// Hardware threads this process may run on, and the cores they belong to: by its affinity mask. Local.
int usable_cpus();
int usable_cores();

}  // namespace zero
