// The memory half of report_tables.h.
#include <fmt/format.h>

#include <algorithm>

#include "text/text_format.h"
#include "train/report_tables.h"

namespace zero::app {
namespace {

constexpr std::size_t kMostColumns = 4;
constexpr MemoryKind kStates[] = {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer,
                                  MemoryKind::kGradients};
constexpr MemoryKind kBuffers[] = {MemoryKind::kGather, MemoryKind::kBuckets, MemoryKind::kOffload,
                                   MemoryKind::kStaging};

struct Column {
  std::string title;
  MemoryReport report;
};

/// Least or most of each kind over the ranks.
MemoryReport extreme(const std::vector<MemoryReport>& reports, bool most) {
  MemoryReport result = reports.front();
  for (const auto& report : reports) {
    for (int i = 0; i < kMemoryKinds; ++i) {
      auto& kept = result.kinds[i].current_nbytes;
      const auto seen = report.kinds[i].current_nbytes;
      kept = most ? std::max(kept, seen) : std::min(kept, seen);
    }
  }
  return result;
}

std::vector<Column> columns_of(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& after,
                               const MemoryReport& ddp) {
  std::vector<Column> columns = {{"as built", before.front()}};
  if (after.size() <= kMostColumns) {
    for (std::size_t r = 0; r < after.size(); ++r) columns.push_back({fmt::format("rank {}", r), after[r]});
  } else {
    columns.push_back({"least", extreme(after, false)});
    columns.push_back({"most", extreme(after, true)});
  }
  columns.push_back({"with DDP", ddp});
  return columns;
}

std::string row(std::string_view label, const std::vector<Column>& columns, auto value) {
  std::string text = fmt::format("  {:<18}", label);
  for (const Column& column : columns) text += fmt::format("{:>11}", value(column));
  return text + "\n";
}

}  // namespace

MemoryReport ddp_memory(std::int64_t parameters_numel, std::int64_t trained_numel, DType param_dtype) {
  MemoryReport report;
  const auto hold = [&](MemoryKind kind, std::int64_t each) {
    report[kind] = {each * trained_numel, each * trained_numel};
  };
  const auto element = static_cast<std::int64_t>(element_nbytes(param_dtype));
  report[MemoryKind::kParameters] = {element * parameters_numel, element * parameters_numel};
  hold(MemoryKind::kGradients, element);
  hold(MemoryKind::kMaster, param_dtype == DType::kFloat32 ? 0 : 4);
  hold(MemoryKind::kOptimizer, 8);
  return report;
}

std::int64_t states_nbytes(const MemoryReport& report) {
  std::int64_t sum = 0;
  for (const MemoryKind kind : kStates) sum += report[kind].current_nbytes;
  return sum;
}

std::int64_t buffers_peak_nbytes(const MemoryReport& report) {
  std::int64_t sum = 0;
  // The peak of staging is that of initialize().
  for (const MemoryKind kind : kBuffers) {
    sum += kind == MemoryKind::kStaging ? report[kind].current_nbytes : report[kind].peak_nbytes;
  }
  return sum;
}

std::string memory_table(const std::vector<MemoryReport>& before, const std::vector<MemoryReport>& after,
                         const MemoryReport& ddp, int stage) {
  const std::vector<Column> columns = columns_of(before, after, ddp);
  std::string text = row("memory in MB", columns, [](const Column& column) { return column.title; });
  std::vector<MemoryKind> kinds(std::begin(kStates), std::end(kStates));
  kinds.insert(kinds.end(), std::begin(kBuffers), std::end(kBuffers));
  for (const MemoryKind kind : kinds) {
    const auto value = [&](const Column& column) { return static_cast<double>(column.report[kind].current_nbytes); };
    if (std::all_of(columns.begin(), columns.end(), [&](const Column& c) { return value(c) == 0; })) continue;
    text += row(memory_kind_name(kind), columns, [&](const Column& column) { return megabytes(value(column)); });
  }
  const auto total = [&](const Column& column) {
    double sum = 0;
    for (const MemoryKind kind : kinds) sum += static_cast<double>(column.report[kind].current_nbytes);
    return sum;
  };
  text += row("total", columns, [&](const Column& column) { return megabytes(total(column)); });
  std::int64_t most = 0;
  for (const auto& report : after) most = std::max(most, states_nbytes(report));
  text += fmt::format(
      "  As built: what a rank had of the fp32 module before initialize(), which is\n"
      "  never whole (zero::deferred_init). With DDP each rank holds 16 bytes a trained\n"
      "  parameter ({}) and buckets.\n",
      ddp[MemoryKind::kMaster].current_nbytes > 0 ? "2 bf16 weight, 2 gradient, 4 fp32 master, 8 Adam"
                                                  : "4 fp32 weight, 4 gradient, 8 Adam");
  text += fmt::format("  ZeRO stage {} on {} rank{}: ", stage, after.size(), after.size() == 1 ? "" : "s");
  if (most == 0) return text + "all of the states are on the disk.\n";
  const double factor = static_cast<double>(states_nbytes(ddp)) / static_cast<double>(most);
  return text + fmt::format("the states of each take {:.2f} x {} than with DDP.\n", factor >= 1 ? factor : 1 / factor,
                            factor >= 1 ? "less" : "more");
}

std::string first_step_memory(const std::vector<MemoryReport>& reports, const MemoryReport& ddp) {
  const auto peak = [](const MemoryReport& report) {
    return states_nbytes(report) + buffers_peak_nbytes(report) + report[MemoryKind::kActivations].peak_nbytes;
  };
  const auto most =
      std::max_element(reports.begin(), reports.end(), [&](const auto& a, const auto& b) { return peak(a) < peak(b); });
  const std::int64_t activations = (*most)[MemoryKind::kActivations].peak_nbytes;
  return fmt::format(
      "memory     the first step took each rank at most {}:\n"
      "           states {} + buffers {} + activations {}\n"
      "           with DDP {}: states {} + the same activations, and buckets\n",
      human_nbytes(peak(*most)), human_nbytes(states_nbytes(*most)), human_nbytes(buffers_peak_nbytes(*most)),
      human_nbytes(activations), human_nbytes(states_nbytes(ddp) + activations), human_nbytes(states_nbytes(ddp)));
}

}  // namespace zero::app
