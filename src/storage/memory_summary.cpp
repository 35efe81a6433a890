// Memory of all ranks as text.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "zero/memory.h"

namespace zero {
namespace {

constexpr std::size_t kMostColumns = 4;

struct Column {
  std::string title;
  MemoryReport before, now;
  ProcessMemory process;
  DeviceMemory device;
};

Column sum_of(const std::vector<Column>& ranks) {
  Column all{"all ranks", {}, {}, {}, {}};
  for (const Column& rank : ranks) {
    for (int i = 0; i < kMemoryKinds; ++i) {
      all.before.kinds[i].current_nbytes += rank.before.kinds[i].current_nbytes;
      all.now.kinds[i].current_nbytes += rank.now.kinds[i].current_nbytes;
      all.now.kinds[i].peak_nbytes += rank.now.kinds[i].peak_nbytes;
      all.now.kinds[i].in_use_nbytes += rank.now.kinds[i].in_use_nbytes;
      all.now.kinds[i].device_nbytes += rank.now.kinds[i].device_nbytes;
    }
    all.now.nvme_nbytes += rank.now.nvme_nbytes;
    all.process.resident_nbytes += rank.process.resident_nbytes;
    all.process.proportional_nbytes += rank.process.proportional_nbytes;
    all.process.peak_proportional_nbytes += rank.process.peak_proportional_nbytes;
    all.device.allocated_nbytes += rank.device.allocated_nbytes;
    all.device.reserved_nbytes += rank.device.reserved_nbytes;
    all.device.peak_reserved_nbytes += rank.device.peak_reserved_nbytes;
  }
  return all;
}

std::vector<Column> columns_of(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& now,
                               const std::vector<ProcessMemory>& processes, const std::vector<DeviceMemory>& devices) {
  std::vector<Column> ranks;
  for (std::size_t r = 0; r < now.size(); ++r) {
    ranks.push_back(
        {fmt::format("rank {}", r), before[r], now[r], processes[r], devices.empty() ? DeviceMemory{} : devices[r]});
  }
  const Column all = sum_of(ranks);
  if (ranks.size() > kMostColumns) {
    ranks = {*std::max_element(ranks.begin(), ranks.end(), [](const Column& a, const Column& b) {
      return a.now.total_nbytes() < b.now.total_nbytes();
    })};
    ranks.front().title += ", the fullest";
  }
  if (now.size() > 1) ranks.push_back(all);
  return ranks;
}

template <class Value>
std::string row(std::string_view label, const std::vector<Column>& columns, Value value) {
  std::string text = fmt::format("{:<18}", label);
  for (const Column& column : columns) {
    const MemoryUse use = value(column);
    for (const std::int64_t nbytes : {use.in_use_nbytes, use.current_nbytes, use.peak_nbytes})
      text += fmt::format("{:>10}", megabytes(static_cast<double>(nbytes)));
    text += "  ";
  }
  return text + "\n";
}

MemoryUse total_of(const MemoryReport& report) {
  MemoryUse total;
  for (const MemoryUse& kind : report.kinds) {
    total.current_nbytes += kind.current_nbytes;
    total.in_use_nbytes += kind.in_use_nbytes;
    total.device_nbytes += kind.device_nbytes;
  }
  return total;  // the kinds' peaks need not be of one moment
}

}  // namespace

std::string describe_memory(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& now,
                            const std::vector<ProcessMemory>& processes, const std::vector<DeviceMemory>& devices) {
  const std::vector<Column> columns = columns_of(before, now, processes, devices);
  std::string text = fmt::format("{:<18}", "memory in MB");
  for (const Column& column : columns) text += fmt::format("{:>30}  ", column.title);
  text += fmt::format("\n{:<18}", "");
  for (std::size_t i = 0; i < columns.size(); ++i)
    text += fmt::format("{:>10}{:>10}{:>10}  ", "in use", "held", "peak");
  text += '\n';
  text += row("before initialize", columns, [](const Column& column) {
    return MemoryUse{column.before.total_nbytes(), 0, 0};
  });
  for (int i = 0; i < kMemoryKinds; ++i) {
    text += row(memory_kind_name(static_cast<MemoryKind>(i)), columns,
                [i](const Column& column) { return column.now.kinds[i]; });
  }
  text += row("total", columns, [](const Column& column) { return total_of(column.now); });
  if (std::ranges::any_of(columns, [](const Column& column) { return total_of(column.now).device_nbytes > 0; })) {
    text += row("of it on devices", columns,
                [](const Column& column) { return MemoryUse{.current_nbytes = total_of(column.now).device_nbytes}; });
  }
  if (std::ranges::any_of(columns, [](const Column& column) { return column.now.nvme_nbytes > 0; })) {
    text += row("on NVMe, besides", columns, [](const Column& column) {
      return MemoryUse{column.now.nvme_nbytes, column.now.nvme_nbytes, column.now.nvme_nbytes};
    });
  }
  if (std::ranges::any_of(columns, [](const Column& column) { return column.device.reserved_nbytes > 0; })) {
    text += row("libtorch, device", columns, [](const Column& column) {
      const DeviceMemory& device = column.device;
      return MemoryUse{device.reserved_nbytes, device.peak_reserved_nbytes, device.allocated_nbytes};
    });
  }
  text += row("process, resident", columns, [](const Column& column) {
    return MemoryUse{column.process.resident_nbytes, 0, 0};
  });
  return text + row("process, PSS", columns, [](const Column& column) {
           return MemoryUse{column.process.proportional_nbytes, column.process.peak_proportional_nbytes, 0};
         });
}

}  // namespace zero
