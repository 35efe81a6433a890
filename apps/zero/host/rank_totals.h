#pragma once
// What a rank adds up over its steps, and how the ranks bring such things together.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "zero/group.h"
#include "zero/memory.h"
#include "zero/report.h"

namespace zero::app {

/// Seconds and elements of all steps so far; plain doubles, so that ranks can exchange them.
struct StepTotals {
  double data = 0, forward = 0, backward = 0, step = 0;
  StepBreakdown inside{};  ///< parts of backward and step
  double gathered_numel = 0, reduced_numel = 0, published_numel = 0, whole_numel = 0;
  double disk_read_nbytes = 0, disk_written_nbytes = 0, disk_waited = 0;  ///< OffloadReport's, from the second step on

  double seconds() const { return data + forward + backward + step; }
  double moved_numel() const { return gathered_numel + reduced_numel + published_numel + whole_numel; }
};

/// Its parts by name, each times `factor`.
nlohmann::ordered_json breakdown_json(const StepBreakdown& inside, double factor);
/// Adds the breakdown of one step.
void add(StepBreakdown& sum, const StepBreakdown& one);

/// *Collective.* The mean over ranks.
StepTotals mean_over_ranks(Group group, const StepTotals& mine);
/// *Collective.* Every rank's report, in rank order.
std::vector<MemoryReport> gather_memory(Group group, const MemoryReport& mine);
std::vector<DeviceMemory> gather_memory(Group group, const DeviceMemory& mine);

}  // namespace zero::app
