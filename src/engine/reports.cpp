#include <fmt/format.h>

#include <vector>

#include "comm/gather_values.h"
#include "engine/engine_impl.h"
#include "observe/comms_log.h"
#include "observe/flops_profiler.h"
#include "zero/device_memory.h"
#include "zero/errors.h"

namespace zero {

MemoryReport Engine::memory_report() const { return impl_->sharded.ledger.report(); }
std::string Engine::memory_summary() const {
  // One rank's part of the table, as bytes.
  struct Part {
    MemoryReport before, now;
    ProcessMemory process;
    DeviceMemory device;
  };
  const Part mine{memory_before_initialize(), memory_report(), process_memory(), device_memory(device())};
  std::vector<MemoryReport> before, now;
  std::vector<ProcessMemory> processes;
  std::vector<DeviceMemory> devices;
  for (const Part& part : comm::gather_values(impl_->groups.all, mine, "memory summary")) {
    before.push_back(part.before);
    now.push_back(part.now);
    processes.push_back(part.process);
    devices.push_back(part.device);
  }
  return describe_memory(before, now, processes, devices);
}

MemoryReport Engine::memory_before_initialize() const { return impl_->trained.memory_before; }
StepBreakdown Engine::step_breakdown() const { return impl_->step.times; }

CommsSummary Engine::comms_summary() {
  auto* const log = impl_->observers.find<observe::CommsLog>();
  if (!log) throw ConfigError("comms_summary(): nothing is recorded; set comms_logger.enabled to true");
  return log->summary();
}

FlopsReport Engine::flops_report() const {
  const auto* const profiler = impl_->observers.find<observe::FlopsProfiler>();
  if (!profiler) throw ConfigError("flops_report(): nothing is counted; set flops_profiler.enabled to true");
  return profiler->report();
}

OffloadReport Engine::offload_report() const {
  OffloadReport report{.reserved_nbytes = impl_->sharded.ledger.report().nvme_nbytes};
  for (const auto& traffic : {impl_->sharded.optimizer->disk_traffic(), impl_->sharded.store->disk_traffic(),
                              impl_->sharded.reducer->disk_traffic()}) {
    if (!traffic) continue;
    report.read_nbytes += traffic->read_nbytes;
    report.written_nbytes += traffic->written_nbytes;
    report.waited_seconds += traffic->waited_seconds;
  }
  report.updates_kept = impl_->sharded.update->counts().kept;
  report.updates_undone = impl_->sharded.update->counts().undone;
  return report;
}

CommunicationReport Engine::communication_report() const {
  CommunicationReport report = impl_->sharded.store->counts();
  report.world_size = impl_->groups.data_parallel.size();
  for (const auto& parameter : impl_->sharded.model.parameters) report.parameters_numel += parameter.range.numel();
  report.padded_numel = impl_->sharded.model.padded_numel();
  report.reduced_numel = impl_->sharded.reducer->reduced_numel();
  report.published_numel += impl_->sharded.reducer->published_numel();
  report.reductions = impl_->sharded.reducer->reductions();
  report.copied_nbytes += impl_->sharded.reducer->copied_nbytes();
  report.whole_numel = impl_->sharded.optimizer->whole_received_numel();
  if (impl_->sharded.local_steps) report.islands_numel = impl_->sharded.local_steps->received_numel();
  report.control_nbytes =
      impl_->sharded.norm->received_nbytes() + impl_->sharded.reducer->agreement().received_nbytes();
  const auto& model = impl_->sharded.model;
  const auto low = static_cast<std::int64_t>(element_nbytes(model.param_dtype));
  // Without sharded optimizer states what is published are the sums of gradients.
  const auto sum = static_cast<std::int64_t>(element_nbytes(model.sum_dtype));
  const auto published = model.sharding.optimizer_states ? low : sum;
  report.received_nbytes += impl_->sharded.reducer->reduced_nbytes() + published * report.published_numel +
                            static_cast<std::int64_t>(sizeof(float)) * (report.whole_numel + report.islands_numel) +
                            report.control_nbytes;
  return report;
}

std::string CommunicationReport::to_string() const {
  return fmt::format(
      "{} ranks, {} parameters laid out in {} elements\n"
      "received by this rank: gathered {} in {} gathers ({} prefetched), reduced {} in {} reductions, "
      "published {}, whole tensors {}{} "
      "elements; control {} bytes\n"
      "most parameters live at once: {} elements; gathered ahead of use: {} at most\n",
      world_size, parameters_numel, padded_numel, gathered_numel, gathers, prefetched_gathers, reduced_numel,
      reductions, published_numel, whole_numel,
      islands_numel > 0 ? fmt::format(", other islands {}", islands_numel) : "", control_nbytes, peak_live_numel,
      prefetch_window_numel);
}

}  // namespace zero
