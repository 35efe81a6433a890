#include "rank_setup.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "base/cores.h"
#include "base/log.h"
#include "engine/bind_cores.h"
#include "rank_totals.h"
#include "stop_signal.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero::app {

int rank_exit_code(int rank, const std::function<int()>& run) {
  const std::string who = rank == 0 ? "" : fmt::format("rank {}: ", rank);
  try {
    const int signal = run();
    return signal == 0 ? 0 : 128 + signal;
  } catch (const ConfigError& error) {
    if (rank == 0) fmt::print(stderr, "zero: error: {}\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "zero: error: {}out of memory; take a smaller --preset, --seq or micro-batch\n", who);
  } catch (const std::exception& error) {
    fmt::print(stderr, "zero: error: {}{}\n", who, error.what());
  }
  return 1;
}

void set_up_process(std::int64_t seed, const Config& config, const Group& group, bool announce_stop) {
  const int cores = config.zerotorch.bind_cores_to_rank
                        ? engine::bind_cores(group)
                        : base::count_cores(base::usable_cpus()) / group.local_size();
  // As many threads on every rank, or their kernels may round differently.
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  const double mine = std::max(1, wanted ? std::atoi(wanted) : cores);
  const std::vector<double> all = gather_doubles(group, {&mine, 1}, "threads of the ranks");
  at::set_num_threads(static_cast<int>(*std::min_element(all.begin(), all.end())));
  storage::keep_freed_memory();
  watch_stop_signals(/*announce=*/announce_stop && group.rank() == 0);
  // What the library says at start is part of our own words.
  base::set_log_level(base::LogLevel::kWarning);
  at::manual_seed(static_cast<std::uint64_t>(seed));
}

GPT build_model(const TrainPlan& plan) { return GPT(gpt_options(plan)); }

ParameterGroup no_decay_group() {
  return {.names = {"*.bias", "*.ln1.weight", "*.ln2.weight", "lnf.weight"}, .weight_decay = 0.0};
}

}  // namespace zero::app
