#include "plan/traffic.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/update_kind.h"
#include "plan/sizes.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

/// Of what a rank receives from all others alike, the share that comes from other hosts; mean over ranks.
double share_of_other_hosts(int ranks, int ranks_per_node) {
  if (ranks <= ranks_per_node) return 0;
  const double world = ranks, full = ranks / ranks_per_node, last = ranks % ranks_per_node;
  const auto received = [&](double on_host) { return on_host * (world - on_host); };  // by the ranks of a host
  return (full * received(ranks_per_node) + received(last)) / (world * (world - 1));
}

/// Multiplications and additions of the forward pass for a token, by what is computed again in backward.
struct Forward {
  double attention = 0, products = 0, head = 0;
};

Forward forward_of(const Transformer& t) {
  const auto dim = static_cast<double>(t.dim), layers = static_cast<double>(t.layers);
  const auto attended = static_cast<double>(t.heads * t.head_dim),
             shared = static_cast<double>(t.kv_heads * t.head_dim);
  const double matrices = t.style == Transformer::Style::kGpt ? 2 : 3;
  return {.attention = 4 * layers * static_cast<double>(t.seq) * attended,
          .products = 2 * layers * dim * (2 * attended + 2 * shared + matrices * static_cast<double>(t.mlp_dim)),
          .head = 2 * dim * static_cast<double>(t.vocab)};
}

double seconds(double amount, double speed) { return speed > 0 ? amount / speed : 0; }

}  // namespace

Islands islands_of(const Config& config, int ranks, int ranks_per_node) {
  const auto& local = config.zerotorch.local_steps;
  if (local.steps == 0) return {1, ranks, ranks_per_node};
  const auto wanted = local.ranks_per_island > 0 ? local.ranks_per_island : std::int64_t{ranks_per_node};
  if (ranks % wanted != 0) {
    throw ConfigError(
        fmt::format("zerotorch.local_steps.ranks_per_island: {} ranks cannot make islands of {}", ranks, wanted));
  }
  const auto size = static_cast<int>(wanted);
  return {ranks / size, size, std::min(size, ranks_per_node)};
}

double exchanged_between_hosts(double nbytes, const Islands& islands, int ranks_per_node) {
  return nbytes * share_of_other_hosts(islands.count, std::max(1, ranks_per_node / islands.ranks));
}

Traffic traffic_of(const sharding::StepTraffic& step, const sharding::DiskUse& disk, const Cluster& cluster,
                   const Islands& islands) {
  const int per_node = cluster.ranks_per_node > 0 ? cluster.ranks_per_node : cluster.ranks;
  Traffic traffic;
  traffic.gathered_numel = step.gathered_numel;
  traffic.reduced_numel = step.reduced_numel;
  traffic.published_numel = step.published_numel;
  traffic.whole_numel = step.whole_numel;
  traffic.islands_numel = step.islands_numel;
  traffic.nbytes = step.from_ranks_nbytes + step.by_rings_nbytes + step.to_hosts_nbytes + step.beside_nbytes +
                   step.from_islands_nbytes;
  const double by_rings = islands.ranks > islands.ranks_per_node ? step.by_rings_nbytes / islands.ranks_per_node : 0;
  traffic.between_hosts_nbytes = step.from_ranks_nbytes * share_of_other_hosts(islands.ranks, islands.ranks_per_node) +
                                 by_rings + step.to_hosts_nbytes +
                                 exchanged_between_hosts(step.from_islands_nbytes, islands, per_node);
  traffic.seconds = seconds(traffic.nbytes, cluster.bandwidth_nbytes_per_s);
  traffic.nvme_nbytes = disk.read_nbytes;
  traffic.nvme_written_nbytes = disk.written_nbytes;
  traffic.nvme_update_nbytes = disk.update_nbytes;
  traffic.to_device_nbytes = step.to_device_nbytes;
  traffic.from_device_nbytes = step.from_device_nbytes;
  traffic.host_update_nbytes = step.host_update_nbytes;
  traffic.device_update_nbytes = step.device_update_nbytes;
  return traffic;
}

namespace {

/// Of a token.
struct Passes {
  double forward = 0, backward = 0;
};

Passes passes_of(const ModelShape& model) {
  const Transformer t = with_defaults(*model.transformer);
  const Forward forward = forward_of(t);
  double trained = 0, all = 0;
  for (const ParameterShape& parameter : model.parameters) {
    all += static_cast<double>(parameter.numel);
    trained += parameter.trainable ? static_cast<double>(parameter.numel) : 0;
  }
  // Backward: gradients of inputs, and of the weights that are trained.
  const double weights = all > 0 ? trained / all : 1;
  Passes passes{.forward = forward.products + forward.head + forward.attention};
  passes.backward = (forward.products + forward.head) * (1 + weights) + 2 * forward.attention;
  if (t.checkpointing && t.kept != KeptResults::kProducts) {
    const double again = forward.products + (t.kept == KeptResults::kNone ? forward.attention : 0);
    passes.backward += again / static_cast<double>(std::max<std::int64_t>(1, t.checkpoint_every));
  }
  return passes;
}

}  // namespace

double flops_of(const ModelShape& model, const Config& config) {
  if (!model.transformer) return 0;
  const Passes passes = passes_of(model);
  const std::int64_t seq = with_defaults(*model.transformer).seq;
  return (passes.forward + passes.backward) *
         static_cast<double>(seq * config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps);
}

std::vector<OperatorParts> operator_parts(const ModelShape& model, const std::vector<Use>& uses) {
  const auto is_matrix = [&](int p) {
    const auto& shape = model.parameters[static_cast<std::size_t>(p)].shape;
    return shape.empty() || shape.size() > 1;
  };
  std::vector<double> weights(uses.size(), 0);
  double all = 0;
  for (std::size_t u = 0; u < uses.size(); ++u) {
    if (!uses[u].in_backward) continue;  // a table is looked up
    for (const int p : uses[u].parameters)
      weights[u] += is_matrix(p) ? static_cast<double>(model.parameters[static_cast<std::size_t>(p)].numel) : 0;
    all += weights[u];
  }
  const Passes passes = model.transformer ? passes_of(model) : Passes{1, 2};
  std::vector<OperatorParts> parts(uses.size());
  for (std::size_t u = 0; u < uses.size() && all > 0; ++u) {
    const double part = weights[u] / all / (passes.forward + passes.backward);
    parts[u] = {part * passes.forward, part * passes.backward};
  }
  return parts;
}

StepTimes times_of(const Plan& plan, const Config& config, const Cluster& cluster) {
  const Speeds& speeds = cluster.speeds;
  const Traffic& traffic = plan.traffic;
  const double ranks = plan.ranks_per_node;
  StepTimes times;
  times.compute = seconds(plan.flops, speeds.flops_per_s);
  const double within_host = traffic.nbytes - traffic.between_hosts_nbytes;
  // What GPUs have in the memory of their host passes through that.
  const bool by_host = cluster.gpus && !plan.shards_on_gpu;
  times.between_ranks =
      by_host ? seconds(ranks * within_host, speeds.host_memory) : seconds(within_host, speeds.between_ranks);
  times.between_hosts = seconds(ranks * traffic.between_hosts_nbytes, speeds.between_hosts);
  times.to_device = seconds(traffic.to_device_nbytes, speeds.to_device);
  times.from_device = seconds(traffic.from_device_nbytes, speeds.to_device);
  times.update = std::max(seconds(traffic.device_update_nbytes, speeds.device_memory),
                          seconds(ranks * traffic.host_update_nbytes, speeds.host_memory));
  times.disk = seconds(ranks * (traffic.nvme_nbytes + traffic.nvme_written_nbytes), speeds.disk);
  times.disk_of_update = seconds(ranks * traffic.nvme_update_nbytes, speeds.disk);
  times.update_is_beside = config::kind_of(config.zerotorch.update).overlaps;
  return times;
}

double StepTimes::at_least() const {
  const double updating = std::max(update, disk_of_update);
  const double computing = update_is_beside ? std::max(compute, updating) : compute + updating;
  return std::max({computing, between_ranks, between_hosts, to_device, from_device, disk});
}

double StepTimes::in_turn() const {
  return compute + between_ranks + between_hosts + to_device + from_device + update + disk;
}

}  // namespace zero::plan
