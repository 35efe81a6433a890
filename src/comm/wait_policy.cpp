#include "comm/wait_policy.h"

#include <fmt/format.h>

#include <cstdlib>

#include "zero/errors.h"

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
  if (const char* text = std::getenv("ZERO_STOPPED_LIMIT_S"); text && *text != '\0') {
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end != '\0' || !(seconds > 0) || seconds > 1e9) {
      throw ConfigError(
          fmt::format("environment variable ZERO_STOPPED_LIMIT_S: got \"{}\", wanted a number of seconds "
                      "above 0 (how long a rank may be stopped before the group fails).",
                      text));
    }
    policy.stopped_limit_ns = static_cast<std::int64_t>(seconds * static_cast<double>(base::kNanosPerSecond));
  }
  return policy;
}

}  // namespace zero::comm
