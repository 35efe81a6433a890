#pragma once
// Ranks as forked processes, for tests: spawn(n, fn) runs fn on every rank of a fresh group.
#include <sys/types.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "zero/group.h"

namespace zero::testing {

struct SpawnOptions {
  std::chrono::milliseconds timeout{60'000};   ///< then all ranks are killed
  std::chrono::milliseconds group_timeout{0};  ///< of collectives; 0: the default
  std::chrono::milliseconds rendezvous_timeout{20'000};
  /// Killed once all others have ended: a rank that a test stops or leaves hanging. -1: none.
  int expendable_rank = -1;
  /// Called in the parent once every rank has its group, with the pids by rank; for kill tests.
  std::function<void(const std::vector<pid_t>& pids)> on_started;
};

struct RankResult {
  int rank = -1;
  pid_t pid = 0;
  bool ok = false;         ///< fn returned, no gtest assertion failed
  int exit_code = -1;      ///< -1: ended by a signal
  int signal = 0;          ///< 0: exited
  bool timed_out = false;  ///< killed because of SpawnOptions::timeout
  double seconds = 0;      ///< from the start of all ranks to this one's end
  std::string error;       ///< what() of the exception, or the failed assertions
};

/// Forks n processes (1 or more; the caller must be single-threaded); each joins an shm group and runs `fn`.
/// Failed gtest assertions and exceptions of a rank arrive in its result. Exit codes: 0 well, 1
/// exception, 2 failed assertion. Returns when all have ended; leaves no process behind.
std::vector<RankResult> spawn(int n, const std::function<void(Group group)>& fn, const SpawnOptions& options = {});

/// The same with ranks as threads; an exception of a rank arrives in its result, assertions go to gtest.
std::vector<RankResult> spawn_threads(int n, const std::function<void(Group group)>& fn);

/// Adds a gtest failure for every rank that is not ok.
void expect_all_ok(const std::vector<RankResult>& results);

/// Ranks started meanwhile count as being on hosts of so many ranks.
class OneHostAsSeveral {
 public:
  explicit OneHostAsSeveral(int ranks_per_host) {
    setenv("ZERO_RANKS_PER_NODE", std::to_string(ranks_per_host).c_str(), 1);
  }
  ~OneHostAsSeveral() { unsetenv("ZERO_RANKS_PER_NODE"); }
};

/// Names of files of this library in /dev/shm whose job id holds this process's pid, as that of spawn()
/// does. For tests that nothing is left behind.
std::vector<std::string> leftover_shm_names();

}  // namespace zero::testing
