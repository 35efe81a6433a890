#include "comm/wait_policy.h"

#include <limits>

#include "base/environment.h"

namespace zero::comm {
namespace {

constexpr std::int64_t kSpinNs = 50'000;
constexpr std::int64_t kSharedSpinNs = 1'000;
constexpr int kSharedYields = 4;

}  // namespace

WaitPolicy WaitPolicy::for_local_ranks(std::span<const pid_t> ranks) {
  WaitPolicy policy;
  const bool own_cpu = static_cast<int>(ranks.size()) <= available_cpus(ranks);
  policy.spin_ns = own_cpu ? kSpinNs : kSharedSpinNs;
  policy.yields = own_cpu ? 0 : kSharedYields;
  policy.stopped_limit_ns = static_cast<std::int64_t>(
      base::seconds_from("ZERO_STOPPED_LIMIT_S", to_seconds(policy.stopped_limit_ns),
                         std::numeric_limits<double>::denorm_min(), 1e9,
                         "a number of seconds above 0 (how long a rank may be stopped before the group fails).") *
      static_cast<double>(base::kNanosPerSecond));
  return policy;
}

}  // namespace zero::comm
