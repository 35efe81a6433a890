#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "zero/errors.h"
#include "zero/memory.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

std::string remedy(const ModelShape& model, const Config& config, const Cluster& cluster) {
  const auto suggestion = suggest(model, config, cluster);
  if (!suggestion || suggestion->changes.empty()) return "take a smaller model";
  return fmt::format("the smallest change that fits: {}, then {}", fmt::join(suggestion->changes, " and "),
                     needs(suggestion->plan, suggestion->cluster));
}

double share_of(std::int64_t nbytes, std::int64_t available) {
  return available > 0 ? static_cast<double>(nbytes) / static_cast<double>(available) : 0;
}

}  // namespace

std::string needs(const Plan& plan, const Cluster& cluster) {
  const bool of_gpu = cluster.gpus && cluster.gpu_memory_nbytes > 0;
  const bool of_host = !of_gpu || cluster.node_memory_nbytes > 0;
  std::string text;
  if (of_gpu)
    text =
        fmt::format("a GPU needs {} of {}", human_nbytes(plan.peak_nbytes()), human_nbytes(cluster.gpu_memory_nbytes));
  if (of_host) {
    text += fmt::format("{} {} of {}", of_gpu ? " and a host" : "a host needs", human_nbytes(plan.node_nbytes),
                        human_nbytes(cluster.node_memory_nbytes));
  } else if (!plan.shards_on_gpu) {
    text += fmt::format(" and a host {}", human_nbytes(plan.node_nbytes));
  }
  return text;
}

std::string check_fits(const ModelShape& model, const Config& config, const Cluster& cluster, bool force) {
  constexpr double kTight = 0.9;
  const Plan found = plan_memory(model, config, cluster);
  const double of_host = share_of(found.node_nbytes, cluster.node_memory_nbytes);
  const double of_gpu = cluster.gpus ? share_of(found.peak_nbytes(), cluster.gpu_memory_nbytes) : 0;
  if (std::max(of_host, of_gpu) <= kTight) return "";
  const bool is_gpu = of_gpu > of_host;
  const std::string numbers =
      fmt::format("the run needs about {} on {} ({} rank{}, stage {}) and {} of memory are free",
                  human_nbytes(is_gpu ? found.peak_nbytes() : found.node_nbytes), is_gpu ? "each GPU" : "this host",
                  found.ranks_per_node, found.ranks_per_node == 1 ? "" : "s", found.stage,
                  human_nbytes(is_gpu ? cluster.gpu_memory_nbytes : cluster.node_memory_nbytes));
  if (fits(found, cluster) || force) return numbers;
  throw ConfigError(fmt::format("{}; {}", numbers, remedy(model, config, cluster)));
}

}  // namespace zero::plan
