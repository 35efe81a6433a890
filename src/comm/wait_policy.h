#pragma once
// How a rank waits: how long it spins before it gives its CPU away, and how often it looks after its peers.
#include <sys/types.h>

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "comm/process.h"

namespace zero::comm {

struct WaitPolicy {
  std::int64_t spin_ns = 0;
  int yields = 0;                                             ///< after spinning, before sleeping
  std::int64_t slice_ns = 100 * base::kNanosPerMilli;         ///< longest sleep between two looks at the peers
  std::int64_t stopped_limit_ns = 3 * base::kNanosPerSecond;  ///< a peer stopped for longer fails the group

  /// For the ranks of this host: spins long when there is a CPU for each, hardly when they must share. A
  /// launcher may have bound every rank to a CPU of its own, so all their CPUs count. ZERO_STOPPED_LIMIT_S
  /// overrides how long a rank may be stopped (raise it to work with a debugger). Throws ConfigError. Local.
  static WaitPolicy for_local_ranks(std::span<const pid_t> ranks);
};

inline double to_seconds(std::int64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(base::kNanosPerSecond);
}

/// Tells the CPU that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace zero::comm
