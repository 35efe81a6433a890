#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/log.h"
#include "device/cuda_runtime.h"
#include "engine/bind_cores.h"
#include "storage/cpu_allocator.h"
#include "train/stop_signal.h"
#include "zero/train.h"

namespace zero {
namespace {

/// As many on every rank, or their kernels may round differently. *Collective.*
int common_threads(const Group& group, int cores) {
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  const double mine = std::max(1, wanted ? std::atoi(wanted) : cores);
  const std::vector<double> all = gather_values(group, {&mine, 1}, "threads of the ranks");
  return static_cast<int>(*std::min_element(all.begin(), all.end()));
}

}  // namespace

void set_up_process(Group group, const Config& config, const ProcessOptions& options) {
  const int cores = config.zerotorch.bind_cores_to_rank
                        ? engine::bind_cores(group, device::memory_node_of(options.device))
                        : engine::count_cores_of_rank(group);
  at::set_num_threads(common_threads(group, cores));
  storage::keep_freed_memory();
  if (options.watch_stop_signals) train::watch_stop_signals(options.announce_stop && group.rank() == 0);
  if (options.quiet) base::set_log_level(base::LogLevel::kWarning);
  if (config.zerotorch.seed) at::manual_seed(static_cast<std::uint64_t>(*config.zerotorch.seed));
}

}  // namespace zero
