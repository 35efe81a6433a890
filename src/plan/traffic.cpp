#include "plan/traffic.h"

#include <algorithm>

#include "config/update_kind.h"
#include "plan/sizes.h"

namespace zero::plan {
namespace {

double trainable_numel(const LaidOut& laid) { return static_cast<double>(laid.padded_numel(true)); }

/// Every rank learns the others' block sums and a hash of their order of use, as fp64.
double norm_nbytes(const LaidOut& laid) {
  const double blocks = trainable_numel(laid) / static_cast<double>(layout::kBlockNumel);
  const double world = laid.world_size;
  return 8 * (blocks + world) * (world - 1) / world;
}

/// Elements that are sent to all at the end of a step: updated parameters, or without sharded optimizer
/// states the gradients' sums.
double published_numel(const LaidOut& laid) {
  if (!laid.sharding.optimizer_states) return trainable_numel(laid);
  double numel = 0;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    if (laid.resident[u] && laid.units[u].trainable) numel += static_cast<double>(laid.units[u].numel);
  }
  return numel;
}

/// Of what a rank receives from all others alike, the share that comes from other hosts; mean over ranks.
double share_of_other_hosts(int ranks, int ranks_per_node) {
  if (ranks <= ranks_per_node) return 0;
  const double world = ranks, full = ranks / ranks_per_node, last = ranks % ranks_per_node;
  const auto received = [&](double on_host) { return on_host * (world - on_host); };  // by the ranks of a host
  return (full * received(ranks_per_node) + received(last)) / (world * (world - 1));
}

/// Elements of states that ranks update together, by where their states are.
struct Updated {
  double host = 0, device = 0;                ///< elements
  double host_nbytes = 0, device_nbytes = 0;  ///< of their states and masters
};

Updated updated_by_all(const LaidOut& laid) {
  Updated all;
  const double copies = laid.sharding.optimizer_states ? 1 : laid.world_size;
  for (std::size_t u = 0; u < laid.units.size(); ++u) {
    const layout::Unit& unit = laid.units[u];
    if (!unit.trainable) continue;
    const bool there = has_states_on_device(laid, u);
    const double numel = copies * static_cast<double>(unit.numel);
    (there ? all.device : all.host) += numel;
    (there ? all.device_nbytes : all.host_nbytes) +=
        copies * static_cast<double>(laid.state_nbytes(u, {0, unit.numel})) +
        numel * static_cast<double>(master_nbytes(laid, 0));
  }
  return all;
}

/// What an update reads and writes: sums and parameters once, masters and states both ways.
double update_nbytes(const LaidOut& laid, double numel, double states_nbytes) {
  return (numel * static_cast<double>(laid.sum_nbytes() + laid.low_nbytes()) + 2 * states_nbytes) / laid.world_size;
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

Traffic traffic_of(const LaidOut& laid, const Pools& pools, const Config& config, const Cluster& cluster) {
  Traffic traffic;
  const double world = laid.world_size, others = (world - 1) / world;
  const auto steps = static_cast<double>(config.gradient_accumulation_steps);
  const double low = static_cast<double>(laid.low_nbytes()), trainable = trainable_numel(laid);
  const auto gathered = static_cast<double>(pools.gather.gathered_numel);
  const Updated updated = updated_by_all(laid);
  traffic.device_update_nbytes = update_nbytes(laid, updated.device, updated.device_nbytes);
  traffic.host_update_nbytes = update_nbytes(laid, updated.host, updated.host_nbytes);
  if (laid.place.uploads()) {
    double whole = 0;
    for (std::size_t u = 0; u < laid.units.size(); ++u)
      whole += laid.resident[u] && laid.units[u].trainable ? static_cast<double>(laid.units[u].numel) : 0;
    // Of what is updated on the device the sums go up, and the parameters come down.
    const double apart = updated.device / world;
    traffic.to_device_nbytes = (whole + gathered) * low + apart * static_cast<double>(laid.sum_nbytes());
    traffic.from_device_nbytes = steps * trainable * static_cast<double>(laid.gradient_nbytes()) + apart * low;
  }
  if (laid.world_size == 1) return traffic;
  // From a disk nothing comes from other ranks, nor where a host has everything.
  const bool is_on_host = laid.place.uploads() && laid.place.parameters.tier == layout::Tier::kHostShared;
  if (!laid.place.parameters.is_on_disk() && !is_on_host) traffic.gathered_numel = gathered * others;
  traffic.reduced_numel = steps * trainable * others;
  const double to_all = is_on_host ? 0 : published_numel(laid) * others;
  // Parameters that exist once on every host: to each host once.
  const double to_hosts = laid.place.reads_in_place() ? trainable * (laid.hosts - 1) / world : 0;
  traffic.published_numel = to_all + to_hosts;
  traffic.whole_numel = static_cast<double>(laid.whole_moved_numel) / world;
  const double published = laid.sharding.optimizer_states ? low : static_cast<double>(laid.sum_nbytes());
  const double from_ranks = traffic.gathered_numel * low +
                            traffic.reduced_numel * static_cast<double>(laid.gradient_nbytes()) + to_all * published +
                            traffic.whole_numel * sizeof(float) + norm_nbytes(laid);
  traffic.nbytes = from_ranks + to_hosts * low;
  const int per_node = cluster.ranks_per_node > 0 ? cluster.ranks_per_node : cluster.ranks;
  traffic.between_hosts_nbytes = from_ranks * share_of_other_hosts(laid.world_size, per_node) + to_hosts * low;
  traffic.seconds = seconds(traffic.nbytes, cluster.bandwidth_nbytes_per_s);
  return traffic;
}

double flops_of(const ModelShape& model, const Config& config) {
  if (!model.transformer) return 0;
  const Transformer t = with_defaults(*model.transformer);
  const Forward forward = forward_of(t);
  double trained = 0, all = 0;
  for (const ParameterShape& parameter : model.parameters) {
    all += static_cast<double>(parameter.numel);
    trained += parameter.trainable ? static_cast<double>(parameter.numel) : 0;
  }
  // Backward: gradients of inputs, and of the weights that are trained.
  const double weights = all > 0 ? trained / all : 1;
  double flops = (forward.products + forward.head) * (2 + weights) + 3 * forward.attention;
  if (t.checkpointing && t.kept != KeptResults::kProducts) {
    const double again = forward.products + (t.kept == KeptResults::kNone ? forward.attention : 0);
    flops += again / static_cast<double>(std::max<std::int64_t>(1, t.checkpoint_every));
  }
  return flops *
         static_cast<double>(t.seq * config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps);
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
