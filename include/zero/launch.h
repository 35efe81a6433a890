#pragma once
// Starts the ranks of a job on this host and supervises them: for `zero launch`, and for programs that start their own
// ranks.
//
//   int main(int argc, char** argv) {
//     return zero::run_on_ranks(4, [&] { return train(argv[1]); });  // train() calls zero::init_distributed()
//   }
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace zero {

struct LaunchOptions {
  int nproc = 1;                     ///< number of ranks, at least 1
  std::vector<std::string> command;  ///< program (looked up in PATH) and its arguments
  /// True: every output line of a rank is prefixed with "[rank] ". False: ranks inherit the descriptors
  /// (with `log_dir` their output is copied as it is).
  bool prefix_output = true;
  /// Folder (made if it is not there) in which rank N's output, both streams, is also appended to rank<N>.log, without
  /// prefixes; empty: nowhere.
  std::string log_dir = {};
  /// Variables added to the ranks' copy of this process's environment; they override what launch() sets.
  std::map<std::string, std::string> environment = {};
  /// Time between a stop signal and SIGTERM, for the running step and a checkpoint.
  int grace_ms = 8'000;
  /// Time the other ranks get after the first failure, if less than `grace_ms`. They usually end by themselves, with an
  /// error that names the failed rank; ranks that are stopped (SIGSTOP) get no time.
  int failure_grace_ms = 5'000;
  int kill_after_ms = 1'500;  ///< from SIGTERM to SIGKILL
  /// A job that fails is started again this often, all ranks anew, with an id and a port of their own: they go on from
  /// where they have saved. Not once a signal has asked it to stop, nor where nobody reads its output. What rank 0 has
  /// read of the input is gone.
  int max_restarts = 0;
  /// A rank that has been stopped (SIGSTOP, a debugger) for this long while others run counts as failed; 0: never.
  int stopped_limit_ms = 0;
  /// Prefix of the launcher's own lines on standard error.
  std::string name = "zero launch";
  /// Reports a rank that ends with an exit code other than 0. False if ranks report their own errors; a rank killed by
  /// a signal is always reported.
  bool report_exit_codes = true;
  /// Called as soon as the first rank has failed. `by_signal`: it did not exit by itself; a line of this process
  /// follows.
  std::function<void(bool by_signal)> on_failure = {};
  /// Called when a signal asks the job to stop, also one that fails already.
  std::function<void(int signal)> on_stop = {};
};

/// Runs the job to its end and returns its exit code: 0, or that of the first rank that failed (128 + signal if a
/// signal killed it). Each rank gets ZERO_RANK, ZERO_WORLD_SIZE, ZERO_LOCAL_RANK, ZERO_LOCAL_WORLD_SIZE and
/// ZERO_JOB_ID, the same as RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, a free MASTER_ADDR and MASTER_PORT, the
/// number of restarts so far as ZERO_RESTART_COUNT and TORCHELASTIC_RESTART_COUNT,
/// OMP_NUM_THREADS = cores / ranks unless that is set, OMP_WAIT_POLICY = passive unless that or GOMP_SPINCOUNT is set;
/// its own process group; and /dev/null as input, except rank 0, which gets this process's input if that is a file or a
/// pipe.
///
/// SIGINT, SIGTERM, SIGHUP and SIGUSR1 are forwarded to all ranks, also to those that are stopped, which go on for it;
/// a second SIGINT or SIGTERM, or SIGQUIT, kills them, and the exit code is 128 + that signal. SIGTSTP (Ctrl-Z) stops
/// the ranks, then this process; they resume together. When standard output has no reader any more, the ranks get
/// SIGHUP. Ranks die with this process. On return, no process of the job is left, nor its files in /dev/shm, nor those
/// of jobs that were killed earlier. Reports on standard error which rank failed first, and how. Call from the main
/// thread: the ranks live as long as the calling thread. Throws ConfigError if the program cannot be started, IoError
/// if a log cannot be written.
int launch(const LaunchOptions& options);

/// How long a supervisor waits before it starts ranks again: longer after each start that failed within a minute, up to
/// half a minute, as what has failed at once may take a while to mend; not at all after one that lasted. Local.
class RestartPauses {
 public:
  /// `lasted`: the start that has failed.
  std::chrono::seconds next(std::chrono::steady_clock::duration lasted);

 private:
  int short_starts_ = 0;  ///< in a row
};

/// If a launcher (zero launch, torchrun, mpirun, srun) started this process as a rank, or `nproc` is 1: runs `run_rank`
/// in this process and returns its result. Else launch()es this program again as `nproc` ranks. `options.nproc` is
/// ignored; `options.command` defaults to own_command(). Call it first in main(): code before it also runs in the
/// launching process. Throws what `run_rank` and launch() throw.
int run_on_ranks(int nproc, const std::function<int()>& run_rank, LaunchOptions options = {});

/// A rank as described by its launcher.
struct LaunchedRank {
  std::string launcher;  ///< "zero launch", "torchrun", ...
  int rank = 0;
  int size = 1;
};
/// This process's rank from the environment; nullopt if no launcher started it. Local. Throws ConfigError as
/// init_distributed().
std::optional<LaunchedRank> launched_rank();

/// This process's program (absolute path) and arguments. Local. Throws IoError.
std::vector<std::string> own_command();

/// Hardware threads and cores that this process's affinity mask allows. Local.
int usable_cpus();
int usable_cores();

}  // namespace zero
