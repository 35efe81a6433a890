#pragma once
// What the benchmarks share: medians, ranks on cores, starting their own ranks.
#include <sched.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include "zero/launch.h"

namespace bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// The calling thread runs on one core, modulo their number.
inline void pin_to_core(int index) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<unsigned>(index) % std::max(1u, std::thread::hardware_concurrency()), &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

/// zero::run_on_ranks(); errors are said under `name`.
inline int run_on_ranks(const char* name, int ranks, const std::function<int()>& run_rank) {
  try {
    return zero::run_on_ranks(ranks, run_rank, {.prefix_output = false});
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << "\n";
    return 2;
  }
}

}  // namespace bench
