#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "zero/errors.h"
#include "zero/memory.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

std::string remedy(const ModelShape& model, const Config& config, const Cluster& cluster) {
  const auto suggestion = suggest(model, config, cluster);
  if (!suggestion || suggestion->changes.empty()) return "take a smaller model";
  return fmt::format("the smallest change that fits: {}, then a host needs {}", fmt::join(suggestion->changes, " and "),
                     human_nbytes(suggestion->plan.node_nbytes));
}

}  // namespace

std::string check_fits(const ModelShape& model, const Config& config, const Cluster& cluster, bool force) {
  constexpr double kTight = 0.9;
  const Plan found = plan_memory(model, config, cluster);
  const auto available = static_cast<double>(cluster.node_memory_nbytes);
  if (available <= 0 || static_cast<double>(found.node_nbytes) <= kTight * available) return "";
  const std::string numbers =
      fmt::format("the run needs about {} on this host ({} rank{}, stage {}) and {} of memory are free",
                  human_nbytes(found.node_nbytes), found.ranks_per_node, found.ranks_per_node == 1 ? "" : "s",
                  found.stage, human_nbytes(cluster.node_memory_nbytes));
  if (fits(found, cluster) || force) return numbers;
  throw ConfigError(fmt::format("{}; {}", numbers, remedy(model, config, cluster)));
}

}  // namespace zero::plan
