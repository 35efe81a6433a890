#include "storage/ledger.h"

#include <fmt/format.h>

#include "storage/cpu_allocator.h"

namespace zero {

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParameters:
      return "parameters";
    case MemoryKind::kGather:
      return "gather buffers";
    case MemoryKind::kMaster:
      return "master weights";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kBuckets:
      return "buckets";
    case MemoryKind::kStaging:
      return "staging";
    case MemoryKind::kOffload:
      return "offload buffers";
    case MemoryKind::kActivations:
      return "activations";
  }
  return "?";
}

std::int64_t MemoryReport::total_nbytes() const {
  std::int64_t sum = 0;
  for (const auto& kind : kinds) sum += kind.current_nbytes;
  return sum;
}

std::string MemoryReport::to_string() const {
  std::string text;
  for (int i = 0; i < kMemoryKinds; ++i) {
    text += fmt::format("{:<15}{:>10.2f} MB (peak {:.2f} MB)\n", memory_kind_name(static_cast<MemoryKind>(i)),
                        kinds[i].current_nbytes / 1e6, kinds[i].peak_nbytes / 1e6);
  }
  if (nvme_nbytes > 0) text += fmt::format("{:<15}{:>10.2f} MB\n", "on NVMe", nvme_nbytes / 1e6);
  return text;
}

namespace storage {

void Ledger::Count::add(std::int64_t nbytes) {
  const std::int64_t now = current.fetch_add(nbytes) + nbytes;
  std::int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
}

void Ledger::add(MemoryKind kind, std::int64_t nbytes, bool on_device) {
  auto& entry = entries_[static_cast<int>(kind)];
  entry.all.add(nbytes);
  if (on_device) entry.on_device.add(nbytes);
}

void Ledger::add_idle(MemoryKind kind, std::int64_t nbytes) { entries_[static_cast<int>(kind)].idle.fetch_add(nbytes); }

MemoryReport Ledger::report() const {
  MemoryReport report;
  for (int i = 0; i < kMemoryKinds; ++i) {
    const auto& [all, on_device, idle] = entries_[i];
    const std::int64_t held = all.current.load();
    report.kinds[i] = {held, all.peak.load(), held - idle.load(), on_device.current.load(), on_device.peak.load()};
  }
  report[MemoryKind::kActivations] = activation_use();
  report.nvme_nbytes = nvme_nbytes_.load();
  return report;
}

}  // namespace storage
}  // namespace zero
