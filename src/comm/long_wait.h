#pragma once
// A word about a wait that lasts long, well before its time-out: a rank that waits in another library's collective, or
// for data, is not in this group's table, and only those that wait for it can say so.
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "comm/backend.h"

namespace zero::comm {

class LongWait {
 public:
  /// A rank that is waited for.
  struct Missing {
    int rank = 0;
    pid_t pid = 0;
    bool on_this_host = true;
    std::string position;  ///< a sentence about its last call
  };

  /// `notice_ns`: after which a first wait is told of; one of ZERO_WAIT_NOTICE_S seconds by default. Throws
  /// ConfigError.
  static LongWait from_environment();

  /// Whether the wait that lasts `waited_ns` is to be told of now: once, and next time only of one twice as long, so
  /// that ranks that are slow in every step are not told of in every step.
  bool is_due(std::int64_t waited_ns);

  /// Logs whom `rank` waits for. A missing rank of this host is sent SIGURG, which processes ignore by default; the
  /// Python package prints its stack on it.
  static void tell(int rank, const Blocker& blocker, std::int64_t waited_ns, std::span<const Missing> missing);
  /// What the group fails with when the wait has lasted its time-out.
  static std::string timeout(int rank, const Blocker& blocker, std::int64_t waited_ns,
                             std::span<const Missing> missing);

 private:
  std::int64_t notice_ns_ = 0;
};

/// The rank that speaks for all that wait for `missing`, of `size`: the lowest that is not among them.
int speaker_of(std::span<const int> missing, int size);

}  // namespace zero::comm
