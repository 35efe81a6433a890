#pragma once
// One monotonic clock, for measuring, time-outs and the flight recorder.
#include <chrono>
#include <cstdint>

namespace zero::base {

/// Monotonic seconds.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Nanoseconds of CLOCK_MONOTONIC: comparable between processes of one host. Local, thread-safe.
inline std::int64_t monotonic_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

inline constexpr std::int64_t kNanosPerMilli = 1'000'000;
inline constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace zero::base
