#include "engine/observers.h"

#include <fmt/format.h>

#include <vector>

#include "engine/engine_impl.h"
#include "observe/comms_log.h"
#include "observe/debug_check.h"
#include "observe/flops_profiler.h"
#include "observe/raw_write_check.h"
#include "observe/step_monitor.h"
#include "observe/step_trace.h"

namespace zero::engine {
namespace {

/// The groups whose calls are recorded.
std::vector<observe::CommsLog::Part> watched_groups(const Engine::Impl& impl) {
  std::vector<observe::CommsLog::Part> parts = {{"data-parallel", impl.groups.data_parallel}};
  if (impl.groups.model_parallel) parts.push_back({"model-parallel", *impl.groups.model_parallel});
  if (impl.sharded.model.hosts) {
    parts.push_back({"within a host", impl.sharded.model.hosts->node});
    parts.push_back({"between hosts", impl.sharded.model.hosts->across});
  }
  return parts;
}

}  // namespace

void add_trace(Engine::Impl& impl) {
  const auto& options = impl.config.zerotorch.trace;
  if (!options.enabled) return;
  const int rank = impl.groups.all.rank(), number = impl.random.engine_number();
  auto& trace = impl.observers.add<observe::StepTrace>(
      options, number == 0 ? fmt::format("rank{}.json", rank) : fmt::format("rank{}_engine{}.json", rank, number),
      impl.sharded.ledger);
  impl.sharded.timeline.trace = &trace.recorder();
}

void add_checks(Engine::Impl& impl) {
  if (!impl.config.zerotorch.debug_observer) return;
  impl.observers.add<observe::DebugCheck>();
  // Updates in backward write past libtorch themselves.
  if (impl.keeps_gradients()) impl.observers.add<observe::RawWriteCheck>(impl.sharded.model);
}

void add_observers(Engine::Impl& impl) {
  const Config& config = impl.config;
  const bool is_first = impl.groups.is_first();
  if (observe::StepMonitor::is_wanted(config) && is_first) impl.observers.add<observe::StepMonitor>(config);
  if (config.comms_logger.enabled)
    impl.observers.add<observe::CommsLog>(config.comms_logger, watched_groups(impl), is_first);
  if (auto* const trace = impl.observers.find<observe::StepTrace>())
    trace->begin(impl.groups.all, watched_groups(impl));
  if (config.flops_profiler.enabled) {
    impl.observers.add<observe::FlopsProfiler>(config.flops_profiler, impl.sharded.model, &impl.uses,
                                               impl.trained.module.get(), is_first);
  }
}

}  // namespace zero::engine
