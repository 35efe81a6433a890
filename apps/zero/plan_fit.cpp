#include "plan_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/memory.h"
#include "text_format.h"
#include "zero/errors.h"
#include "zero/models.h"

namespace zero::app {

plan::ModelShape shape_of(const GPTOptions& options, const std::string& name) {
  plan::Transformer sizes;
  sizes.layers = options.layers;
  sizes.dim = options.dim;
  sizes.heads = options.heads;
  sizes.vocab = options.vocab;
  sizes.seq = options.seq;
  sizes.tied = options.tied;
  sizes.dropout = options.dropout > 0;
  sizes.fused_attention = !sizes.dropout;  // libtorch's fused kernel for the CPU knows no dropout
  return plan::transformer(sizes, name);
}

std::string describe_suggestion(const plan::ModelShape& model, const Config& config,
                                const plan::Cluster& cluster) {
  const auto suggestion = plan::suggest(model, config, cluster);
  if (!suggestion || suggestion->changes.empty()) return "";
  return fmt::format("{}, then a host needs {}", fmt::join(suggestion->changes, " and "),
                     human_nbytes(suggestion->plan.node_nbytes));
}

std::string check_fits(const GPTOptions& model, const Config& config, const plan::Cluster& cluster,
                       bool force) {
  constexpr double kTight = 0.9;
  const plan::ModelShape shape = shape_of(model, "gpt");
  const plan::Plan found = plan::plan_memory(shape, config, cluster);
  const auto available = static_cast<double>(cluster.node_memory_nbytes);
  if (available <= 0 || static_cast<double>(found.node_nbytes) <= kTight * available) return "";
  const std::string numbers =
      fmt::format("the run needs about {} on this host ({} rank{}, stage {}) and {} of memory are free",
                  human_nbytes(found.node_nbytes), found.ranks_per_node, found.ranks_per_node == 1 ? "" : "s",
                  found.stage, human_nbytes(cluster.node_memory_nbytes));
  if (plan::fits(found, cluster) || force) return fmt::format("warning: {}\n", numbers);
  const std::string remedy = describe_suggestion(shape, config, cluster);
  throw ConfigError(
      fmt::format("{}; {}; --force starts it all the same", numbers,
                  remedy.empty() ? "take a smaller model" : "the smallest change that fits: " + remedy));
}

std::string check_fits(const GPTOptions& model, const Config& config, int ranks, int ranks_per_node,
                       bool force) {
  plan::Cluster cluster;
  cluster.ranks = ranks;
  cluster.ranks_per_node = ranks_per_node;
  const std::uint64_t available = comm::available_memory_nbytes();
  cluster.node_memory_nbytes = available <= INT64_MAX ? static_cast<std::int64_t>(available) : 0;
  return check_fits(model, config, cluster, force);
}

}  // namespace zero::app
