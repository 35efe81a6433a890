#include "comm/long_wait.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/environment.h"
#include "base/log.h"
#include "comm/wait_policy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

std::string lines_of(const Blocker& blocker, std::span<const LongWait::Missing> missing) {
  std::string text;
  for (const LongWait::Missing& one : missing) {
    text += fmt::format("\n  rank {} (pid {}) {}. {}", one.rank, one.pid, blocker.lack, one.position);
  }
  return text;
}

}  // namespace

LongWait LongWait::from_environment() {
  constexpr double kDefault = 30;
  const double seconds =
      base::seconds_from("ZERO_WAIT_NOTICE_S", kDefault, std::numeric_limits<double>::denorm_min(), 1e9,
                         "a number of seconds above 0 (after which a rank says whom it waits for).");
  LongWait wait;
  wait.notice_ns_ = static_cast<std::int64_t>(seconds * static_cast<double>(base::kNanosPerSecond));
  return wait;
}

bool LongWait::is_due(std::int64_t waited_ns) {
  if (waited_ns < notice_ns_) return false;
  notice_ns_ = 2 * waited_ns;
  return true;
}

void LongWait::tell(int rank, const Blocker& blocker, std::int64_t waited_ns, std::span<const Missing> missing) {
  base::log_warning(
      "rank {} has waited {:.0f} s in {}.{}\n  It may wait elsewhere: in a collective of torch.distributed or MPI, or "
      "for data. Under Python its stack follows.",
      rank, to_seconds(waited_ns), blocker.what, lines_of(blocker, missing));
  for (const Missing& one : missing) {
    if (one.on_this_host && one.pid > 0) ::kill(one.pid, SIGURG);
  }
}

std::string LongWait::timeout(int rank, const Blocker& blocker, std::int64_t waited_ns,
                              std::span<const Missing> missing) {
  return fmt::format(
      "timeout: rank {} waited {:.1f} s in {}.{}\n  If the ranks are only slow, raise the timeout "
      "(ZERO_TIMEOUT_S, Group::set_timeout).",
      rank, to_seconds(waited_ns), blocker.what, lines_of(blocker, missing));
}

int speaker_of(std::span<const int> missing, int size) {
  for (int rank = 0; rank < size; ++rank) {
    if (std::ranges::find(missing, rank) == missing.end()) return rank;
  }
  return 0;
}

}  // namespace zero::comm
