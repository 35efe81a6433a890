#include "rank_totals.h"

#include <type_traits>

namespace zero::app {

static_assert(std::is_trivially_copyable_v<StepTotals> && sizeof(StepTotals) % sizeof(double) == 0);

void add(StepBreakdown& sum, const StepBreakdown& one) {
  sum.gradient_copy += one.gradient_copy;
  sum.reduce += one.reduce;
  sum.gather += one.gather;
  sum.wait += one.wait;
  sum.norm += one.norm;
  sum.update += one.update;
  sum.publish += one.publish;
}

std::vector<double> gather_doubles(Group group, std::span<const double> mine, const char* label) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<double> all(mine.size() * ranks);
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(mine.size()));
  group.all_gather(mine.data(), all.data(), counts, DType::kFloat64, {.label = label}).wait();
  return all;
}

StepTotals mean_over_ranks(Group group, const StepTotals& mine) {
  constexpr std::size_t kFields = sizeof(StepTotals) / sizeof(double);
  const auto* values = reinterpret_cast<const double*>(&mine);
  const std::vector<double> all = gather_doubles(group, {values, kFields}, "step totals");
  StepTotals mean;
  auto* means = reinterpret_cast<double*>(&mean);
  for (std::size_t i = 0; i < all.size(); ++i) means[i % kFields] += all[i] / group.size();
  return mean;
}

std::vector<MemoryReport> gather_memory(Group group, const MemoryReport& mine) {
  static_assert(std::is_trivially_copyable_v<MemoryReport>);
  std::vector<MemoryReport> all(static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> counts(all.size(), sizeof(MemoryReport));
  group.all_gather(&mine, all.data(), counts, DType::kByte, {.label = "memory reports"}).wait();
  return all;
}

}  // namespace zero::app
