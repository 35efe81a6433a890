#pragma once
// What the benchmarks share: medians, ranks on cores, starting their own ranks.
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include "comm/launcher.h"

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

/// Runs `run_rank` in this process where it is a rank already (of mpirun's, say) or there is one only; else starts the
/// same command line as `ranks` ranks. Returns the exit code; errors are said under `name`.
inline int run_on_ranks(const char* name, int ranks, int argc, char** argv, const std::function<int()>& run_rank) {
  try {
    const auto is_set = [](const char* variable) { return std::getenv(variable) != nullptr; };
    if (ranks <= 1 || is_set("ZERO_RANK") || is_set("OMPI_COMM_WORLD_RANK") || is_set("PMI_RANK")) return run_rank();
    zero::comm::LaunchOptions launch;
    launch.nproc = ranks;
    launch.command.assign(argv, argv + argc);
    launch.prefix_output = false;
    return zero::comm::launch(launch);
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << "\n";
    return 2;
  }
}

}  // namespace bench
