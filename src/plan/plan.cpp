// plan_memory(): one configuration on one cluster.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "layout/module_tree.h"
#include "plan/disk_use.h"
#include "plan/engine_memory.h"
#include "plan/sizes.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

/// Memory of a rank that no kind counts, found by measuring `zero train` with libtorch 2.13 on x86-64: what a
/// process has for itself, what the ranks of a host share (code), and what gaps and the operators' scratch
/// memory add to activations, with the cache of freed blocks and in glibc's heap.
constexpr double kPrivateNbytes = 91e6;
constexpr double kSharedNbytes = 44e6;
constexpr double kCachePerActivation = 0.02;
constexpr double kHeapPerActivation = 0.3;
/// What CUDA, its libraries and their workspaces take of a GPU: about what others report of PyTorch on A100 and H100.
constexpr double kGpuProcessNbytes = 600e6;

std::int64_t to_nbytes(double nbytes) { return static_cast<std::int64_t>(std::min(nbytes, 9e18)); }

void resolve(Config& config, int ranks) {
  if (config.train_batch_size == 0 && config.train_micro_batch_size_per_gpu == 0)
    config.train_micro_batch_size_per_gpu = 1;
  config.resolve_batch(ranks);
}

void check(const Cluster& cluster) {
  if (cluster.ranks < 1 || cluster.ranks > kMostRanks) {
    throw ConfigError(fmt::format("plan: got {} ranks, want 1 to {}", cluster.ranks, kMostRanks));
  }
  if (cluster.ranks_per_node < 0) {
    throw ConfigError(fmt::format("plan: got {} ranks per node, want at least 1", cluster.ranks_per_node));
  }
  if (cluster.gpus && cluster.ranks_per_node != 1) {
    throw ConfigError(fmt::format("plan: got {} ranks per node, want 1: every rank has a GPU", cluster.ranks_per_node));
  }
}

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

Traffic traffic_of(const LaidOut& laid, const Pools& pools, const Config& config, const Cluster& cluster) {
  Traffic traffic;
  if (laid.world_size == 1) return traffic;
  const double world = laid.world_size, others = (world - 1) / world;
  const auto steps = static_cast<double>(config.gradient_accumulation_steps);
  // From a disk nothing comes from other ranks.
  if (!laid.parameters_on_disk) traffic.gathered_numel = static_cast<double>(pools.gather.gathered_numel) * others;
  traffic.reduced_numel = steps * trainable_numel(laid) * others;
  const double to_all = published_numel(laid) * others;
  // Parameters that exist once on every host: to each host once.
  const double to_hosts = laid.node_shared ? trainable_numel(laid) * (laid.hosts - 1) / world : 0;
  traffic.published_numel = to_all + to_hosts;
  traffic.whole_numel = static_cast<double>(laid.whole_moved_numel) / world;
  const double low = static_cast<double>(laid.low_nbytes());
  const double published = laid.sharding.optimizer_states ? low : static_cast<double>(laid.sum_nbytes());
  traffic.nbytes = (traffic.gathered_numel + to_hosts) * low +
                   traffic.reduced_numel * static_cast<double>(laid.gradient_nbytes()) + to_all * published +
                   traffic.whole_numel * sizeof(float) + norm_nbytes(laid);
  if (cluster.bandwidth_nbytes_per_s > 0) traffic.seconds = traffic.nbytes / cluster.bandwidth_nbytes_per_s;
  return traffic;
}

/// Most over hosts of the sum over their ranks.
double heaviest_node(const std::vector<double>& by_rank, int ranks_per_node) {
  double most = 0, sum = 0;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    sum = r % static_cast<std::size_t>(ranks_per_node) == 0 ? by_rank[r] : sum + by_rank[r];
    most = std::max(most, sum);
  }
  return most;
}

constexpr MemoryKind kStates[] = {MemoryKind::kParameters, MemoryKind::kMaster, MemoryKind::kOptimizer,
                                  MemoryKind::kGradients};
constexpr MemoryKind kBuffers[] = {MemoryKind::kBuckets, MemoryKind::kGather, MemoryKind::kOffload,
                                   MemoryKind::kActivations};

std::int64_t sum_of(const MemoryReport& report, std::span<const MemoryKind> kinds) {
  std::int64_t sum = 0;
  for (const MemoryKind kind : kinds) sum += report[kind].peak_nbytes;
  return sum;
}

/// initialize() fills parameters and master weights as it takes the module over, unit by unit: one that is whole is
/// freed meanwhile.
std::int64_t filled_at_start(const Plan& plan) {
  const std::int64_t filled =
      plan.rank[MemoryKind::kParameters].peak_nbytes + plan.rank[MemoryKind::kMaster].peak_nbytes;
  return plan.deferred_init ? plan.module_nbytes + filled : std::max(plan.module_nbytes, filled);
}

/// What each rank holds in training beyond its states is about the same on all of them.
double training_of_node(const Plan& plan, std::vector<double> states_by_rank, std::int64_t heaviest_states) {
  const double rest = static_cast<double>(plan.training_nbytes - heaviest_states);
  for (double& nbytes : states_by_rank) nbytes += rest;
  return heaviest_node(states_by_rank, plan.ranks_per_node);
}

void sum_up(Plan& plan, const std::vector<double>& states_by_rank) {
  const std::int64_t states = sum_of(plan.rank, kStates);
  plan.start_nbytes = plan.process_nbytes + filled_at_start(plan) + plan.rank[MemoryKind::kStaging].peak_nbytes +
                      plan.rank[MemoryKind::kOffload].peak_nbytes;
  plan.training_nbytes = plan.process_nbytes + states + sum_of(plan.rank, kBuffers) - plan.reused_nbytes;
  const double start = static_cast<double>(plan.start_nbytes) * plan.ranks_per_node;
  const double training = training_of_node(plan, states_by_rank, states);
  plan.node_training_nbytes = to_nbytes(training);
  plan.node_nbytes = to_nbytes(std::max(start, training));
}

}  // namespace

LaidOut lay_out(const ModelShape& model, const Config& config, int world_size, int ranks_per_node, bool gpus) {
  if (config.zerotorch.store == Config::Zerotorch::Store::kNodeShared && world_size % ranks_per_node != 0) {
    throw ConfigError(
        fmt::format("zerotorch.store: 'node_shared' over several hosts needs as many ranks on each; {} ranks are "
                    "not a multiple of {}. Change their number, or use 'copying' or 'auto'",
                    world_size, ranks_per_node));
  }
  std::vector<layout::ParameterInfo> infos;
  std::vector<layout::ParameterName> names;
  for (const auto& parameter : model.parameters) {
    names.push_back({parameter.name, static_cast<int>(infos.size())});
    infos.push_back({parameter.name, parameter.numel, parameter.trainable, /*replicated=*/false, parameter.shape});
  }
  return setup::lay_out(infos, layout::module_tree(names), config,
                        {.count = world_size,
                         .hosts = (world_size + ranks_per_node - 1) / ranks_per_node,
                         .on_cpu = !gpus,
                         .module_on_cpu = !gpus});
}

Plan plan_memory(const ModelShape& model, Config config, const Cluster& cluster) {
  check(cluster);
  resolve(config, cluster.ranks);
  Plan plan;
  plan.ranks = cluster.ranks;
  plan.ranks_per_node = cluster.ranks_per_node > 0 ? std::min(cluster.ranks_per_node, cluster.ranks) : cluster.ranks;
  plan.nodes = (plan.ranks + plan.ranks_per_node - 1) / plan.ranks_per_node;
  const LaidOut laid = lay_out(model, config, plan.ranks, plan.ranks_per_node, cluster.gpus);
  const Pools pools = find_pools(model, laid, config);
  plan.stage = config.zero_optimization.stage;
  plan.node_shared = laid.node_shared;
  plan.param_dtype = config.param_dtype();
  plan.micro_batch = config.train_micro_batch_size_per_gpu;
  plan.accumulation_steps = config.gradient_accumulation_steps;
  plan.parameters_numel = model.numel();
  plan.padded_numel = laid.padded_numel();
  plan.units = static_cast<int>(laid.units.size());
  const std::vector<double> states = states_by_rank(laid);
  plan.heaviest_rank = static_cast<int>(std::max_element(states.begin(), states.end()) - states.begin());
  plan.rank = ledger_of(laid, pools, plan.heaviest_rank);
  plan.buckets_are_bound = buckets_are_bound(config, plan.ranks);
  plan.gather_is_bound = !laid.node_shared && gather_is_bound(config, plan.ranks);
  plan.deferred_init = model.deferred_init;
  plan.module_nbytes = 4 * (plan.deferred_init ? laid.largest_unit() : plan.parameters_numel);
  std::int64_t activations_on_nvme = 0;
  if (model.transformer) {
    const auto& offload = config.zerotorch.offload_activations;
    const bool on_nvme = offload.device == Config::Zerotorch::OffloadActivations::Device::kNvme;
    const Activations kept = activations(*model.transformer, plan.micro_batch, plan.param_dtype, on_nvme);
    plan.rank[MemoryKind::kActivations] = {0, kept.peak_nbytes};
    activations_on_nvme = kept.nvme_nbytes;
    const std::int64_t buffers = offload.buffer_count * kept.nvme_buffer_nbytes;
    plan.rank[MemoryKind::kOffload].current_nbytes += buffers;
    plan.rank[MemoryKind::kOffload].peak_nbytes += buffers;
    // Sums on GPUs have memory of their own.
    if (!cluster.gpus) plan.reused_nbytes = reused_nbytes(model, laid, config, kept, plan.heaviest_rank);
  }
  const double gaps = config.zerotorch.caching_allocator ? kCachePerActivation : kHeapPerActivation;
  const double process = cluster.gpus ? kGpuProcessNbytes : kPrivateNbytes + kSharedNbytes / plan.ranks_per_node;
  plan.process_nbytes =
      to_nbytes(process + gaps * static_cast<double>(plan.rank[MemoryKind::kActivations].peak_nbytes));
  // What is on a disk streams from there to the checkpoint, with a ring of buffers.
  constexpr std::int64_t kRingNbytes = 32 << 20;
  const bool streams = laid.states_on_disk || laid.gradients_on_disk || laid.parameters_on_disk;
  const std::int64_t staged = checkpoint_nbytes(laid, plan.heaviest_rank);
  plan.checkpoint_nbytes = streams ? std::min(kRingNbytes, staged) : staged;
  sum_up(plan, states);
  plan.traffic = traffic_of(laid, pools, config, cluster);
  // An update reads and writes everything; units are read once more whenever they are gathered, once on a host.
  plan.traffic.nvme_nbytes = plan.traffic.nvme_written_nbytes = static_cast<double>(plan.rank.nvme_nbytes);
  // Each further micro-batch reads and writes the sums once more; of two sets of them a step uses one.
  const std::int64_t set_nbytes = disk_use_of_gradients(laid, plan.heaviest_rank).file_nbytes / laid.sets_of_sums();
  const auto sums_moved = static_cast<double>((plan.accumulation_steps - laid.sets_of_sums()) * set_nbytes);
  plan.traffic.nvme_nbytes += sums_moved;
  plan.traffic.nvme_written_nbytes += sums_moved;
  const std::int64_t activations_moved = plan.accumulation_steps * activations_on_nvme;
  plan.traffic.nvme_nbytes += static_cast<double>(activations_moved);
  plan.traffic.nvme_written_nbytes += static_cast<double>(activations_moved);
  plan.rank.nvme_nbytes += activations_on_nvme;
  if (laid.parameters_on_disk) {
    plan.traffic.nvme_nbytes += static_cast<double>(pools.gather.gathered_numel) *
                                static_cast<double>(laid.low_nbytes()) / static_cast<double>(laid.world_size);
  }
  return plan;
}

Config at_stage(Config config, int stage) {
  config.zero_optimization.stage = stage;
  const layout::Sharding sharding = layout::sharding_of_stage(stage);
  // What needs sharded optimizer states, or parameters.
  config.zerotorch.step_in_backward &= sharding.optimizer_states;
  config.zerotorch.delayed_update &= sharding.optimizer_states;
  if (!sharding.optimizer_states) config.zerotorch.offload_gradients = {};
  if (!sharding.parameters) config.zero_optimization.offload_param = {};
  return config;
}

bool fits(const Plan& plan, const Cluster& cluster) {
  return cluster.node_memory_nbytes <= 0 || plan.node_nbytes <= cluster.node_memory_nbytes;
}

}  // namespace zero::plan
