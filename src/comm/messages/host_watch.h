#pragma once
// Who of a job on several hosts is still there: heartbeats over TCP connections of their own, so that a rank that is
// killed, stopped, frozen or cut off is found in seconds, whatever the others do meanwhile.
//
// The processes make a tree: rank 0, the first rank of each other host, and the other ranks of each host. Each end of a
// connection sends four beats a second. What is found goes to rank 0, and from there to all. A connection tells apart:
//   closed without a farewell             the process has ended (killed, crashed, _exit)
//   no beat, and the kernel acknowledges  the process is stopped or frozen
//   no beat, and nothing acknowledges     the host is cut off, or gone
// A rank that is slow still sends beats: only one whose thread does not run for all that time is taken for lost. A link
// that comes back within the limit changes nothing. That a process has ended fails the groups that wait for it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/process.h"

namespace zero::comm {

class Messenger;

struct WatchedRank {
  ProcessId process;
  int first_of_host = 0;  ///< the lowest rank on its host
};

class HostWatch {
 public:
  /// *Collective* over all ranks of the job, `ranks`, on several hosts, before a backend uses the messenger. Null where
  /// ZERO_LOST_HOST_S is 0 (seconds after which a silent host counts as lost; 7 by default). A rank that cannot reach
  /// rank 0 says so in the log and goes without. Throws ConfigError, CommError.
  static std::shared_ptr<HostWatch> begin(Messenger& messenger, std::vector<WatchedRank> ranks);
  /// Says farewell.
  virtual ~HostWatch() = default;

  /// True once the job has failed. Local, thread-safe, cheap.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Why; valid once failed(). Local, thread-safe.
  virtual std::string failure() = 0;
  /// The program has been told that its group has failed, and ends by itself. Local, thread-safe.
  virtual void told() = 0;
  /// True when ranks are lost that no message will ever reach, or come from. Local, thread-safe.
  virtual bool lost_a_host() const = 0;
  /// What the process of a rank of the job has done that will not come back, as the end of a sentence about it; empty:
  /// nothing. Local, thread-safe.
  virtual std::string problem_of(int world_rank) const = 0;
  /// Tells all ranks that the job has failed. Local, thread-safe.
  virtual void report(const std::string& failure) noexcept = 0;

 protected:
  std::atomic<bool> failed_{false};
};

}  // namespace zero::comm
