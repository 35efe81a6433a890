#include "host/rank_totals.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "zero/train.h"

namespace zero::app {

static_assert(std::is_trivially_copyable_v<StepTotals> && sizeof(StepTotals) % sizeof(double) == 0);

nlohmann::ordered_json breakdown_json(const StepBreakdown& inside, double factor) {
  return {{"gradient_copy", factor * inside.gradient_copy},
          {"reduce", factor * inside.reduce},
          {"gather", factor * inside.gather},
          {"wait", factor * inside.wait},
          {"norm", factor * inside.norm},
          {"update", factor * inside.update},
          {"publish", factor * inside.publish},
          {"islands", factor * inside.islands}};
}

void add(StepBreakdown& sum, const StepBreakdown& one) {
  sum.gradient_copy += one.gradient_copy;
  sum.reduce += one.reduce;
  sum.gather += one.gather;
  sum.wait += one.wait;
  sum.norm += one.norm;
  sum.update += one.update;
  sum.publish += one.publish;
  sum.islands += one.islands;
}

StepTotals mean_over_ranks(Group group, const StepTotals& mine) {
  constexpr std::size_t kFields = sizeof(StepTotals) / sizeof(double);
  const auto* values = reinterpret_cast<const double*>(&mine);
  const std::vector<double> all = gather_values(group, {values, kFields}, "step totals");
  StepTotals mean;
  auto* means = reinterpret_cast<double*>(&mean);
  for (std::size_t i = 0; i < all.size(); ++i) means[i % kFields] += all[i] / group.size();
  return mean;
}

namespace {

template <class Report>
std::vector<Report> gather_reports(Group group, const Report& mine) {
  static_assert(std::is_trivially_copyable_v<Report>);
  std::vector<Report> all(static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> counts(all.size(), sizeof(Report));
  group.all_gather(&mine, all.data(), counts, DType::kByte, {.label = "memory reports"}).wait();
  return all;
}

}  // namespace

std::vector<MemoryReport> gather_memory(Group group, const MemoryReport& mine) {
  return gather_reports(std::move(group), mine);
}
std::vector<DeviceMemory> gather_memory(Group group, const DeviceMemory& mine) {
  return gather_reports(std::move(group), mine);
}

}  // namespace zero::app
