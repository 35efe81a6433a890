#pragma once
#include <chrono>

namespace zero::base {

/// Monotonic seconds.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace zero::base
