// plan_memory(): one configuration on one cluster.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "config/features.h"
#include "layout/module_tree.h"
#include "plan/engine_memory.h"
#include "plan/sizes.h"
#include "plan/traffic.h"
#include "zero/errors.h"

namespace zero::plan {
namespace {

using sharding::kStates;

/// Memory of a rank that no kind counts, found by measuring `zero train` with libtorch 2.13 on x86-64: what a
/// process has for itself, what the ranks of a host share (code), and what gaps and the operators' scratch
/// memory add to activations, with the cache of freed blocks and in glibc's heap.
constexpr double kPrivateNbytes = 91e6;
constexpr double kSharedNbytes = 44e6;
constexpr double kCachePerActivation = 0.02;
constexpr double kHeapPerActivation = 0.3;
/// What CUDA, its libraries and their workspaces take of a GPU: about what others report of PyTorch on A100 and H100.
constexpr double kGpuProcessNbytes = 600e6;
/// What such a process takes of the host's memory: CUDA's part, its libraries, the threads of both.
constexpr double kHostOfGpuProcessNbytes = 1500e6;

void check(const Cluster& cluster) {
  if (cluster.ranks < 1 || cluster.ranks > kMostRanks) {
    throw ConfigError(fmt::format("plan: got {} ranks, want 1 to {}", cluster.ranks, kMostRanks));
  }
  if (cluster.ranks_per_node < 0) {
    throw ConfigError(fmt::format("plan: got {} ranks per node, want at least 1", cluster.ranks_per_node));
  }
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

constexpr MemoryKind kBuffers[] = {MemoryKind::kBuckets, MemoryKind::kGather, MemoryKind::kOffload,
                                   MemoryKind::kActivations};

/// Peaks in the memory of the rank's GPU, or of its host.
std::int64_t peak_in(const MemoryUse& use, bool of_gpu) {
  return of_gpu ? use.peak_device_nbytes : use.peak_nbytes - use.peak_device_nbytes;
}
std::int64_t sum_of(const MemoryReport& report, std::span<const MemoryKind> kinds, bool of_gpu) {
  std::int64_t sum = 0;
  for (const MemoryKind kind : kinds) sum += peak_in(report[kind], of_gpu);
  return sum;
}

/// initialize() fills parameters and master weights as it takes the module over, unit by unit: one that is whole is
/// freed meanwhile.
std::int64_t filled_at_start(const Plan& plan, bool of_gpu, bool has_module) {
  const std::int64_t filled =
      peak_in(plan.rank[MemoryKind::kParameters], of_gpu) + peak_in(plan.rank[MemoryKind::kMaster], of_gpu);
  if (!has_module) return filled;
  return plan.deferred_init ? plan.module_nbytes + filled : std::max(plan.module_nbytes, filled);
}

/// Without the process. `has_module`: the module is in that memory.
std::int64_t start_in(const Plan& plan, bool of_gpu, bool has_module) {
  return filled_at_start(plan, of_gpu, has_module) + peak_in(plan.rank[MemoryKind::kStaging], of_gpu) +
         peak_in(plan.rank[MemoryKind::kOffload], of_gpu);
}

/// What each rank holds in training beyond its states is about the same on all of them.
void sum_up(Plan& plan, sharding::Footprint::ByRank states_by_rank, std::int64_t host_process_nbytes, bool gpus) {
  plan.start_nbytes = plan.process_nbytes + start_in(plan, gpus, true);
  plan.training_nbytes =
      plan.process_nbytes + sum_of(plan.rank, kStates, gpus) + sum_of(plan.rank, kBuffers, gpus) - plan.reused_nbytes;
  std::int64_t start = plan.start_nbytes, training = plan.training_nbytes;
  if (gpus) {
    start = host_process_nbytes + start_in(plan, false, false);
    training = host_process_nbytes + sum_of(plan.rank, kStates, false) + sum_of(plan.rank, kBuffers, false);
  }
  plan.host_nbytes = std::max(start, training);
  const auto rest = static_cast<double>(training - sum_of(plan.rank, kStates, false));
  for (double& nbytes : states_by_rank.host) nbytes += rest;
  const double of_node = heaviest_node(states_by_rank.host, plan.ranks_per_node);
  plan.node_training_nbytes = to_nbytes(of_node);
  plan.node_nbytes = to_nbytes(std::max(static_cast<double>(start) * plan.ranks_per_node, of_node));
}

/// The rank whose states take most.
int heaviest(const sharding::Footprint::ByRank& states) {
  std::size_t found = 0;
  for (std::size_t r = 1; r < states.host.size(); ++r) found = states.of(r) > states.of(found) ? r : found;
  return static_cast<int>(found);
}

/// Of the GPU's memory: other ranks' parts of a bucket of gradients, which NCCL brings (device/nccl_transport.h).
std::int64_t received_by_nccl_nbytes(const ShardingPlan& shards, int rank) {
  return (shards.world_size - 1) * sharding::largest_piece(shards, rank) * shards.gradient_nbytes();
}

/// Of whole activations, in the GPU's memory if there is one.
void add_activations(Plan& plan, const Activations& kept, bool gpus) {
  plan.rank[MemoryKind::kActivations] = {0, kept.peak_nbytes, 0, 0, gpus ? kept.peak_nbytes : 0};
}

}  // namespace

ShardingPlan shard(const ModelShape& model, const Config& config, int world_size, int ranks_per_node, bool gpus,
                   std::int64_t host_nbytes) {
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
  const int hosts = (world_size + ranks_per_node - 1) / ranks_per_node;
  const bool by_nccl = sharding::wants_nccl(config, hosts);
  const bool on_gpu = gpus && !config::wants_host_memory(config) && (hosts == 1 || by_nccl);
  return sharding::plan_sharding(infos, layout::module_tree(names), config,
                                 {.count = world_size,
                                  .hosts = hosts,
                                  .on_cpu = !on_gpu,
                                  .module_on_cpu = !gpus,
                                  .reads_in_place = !by_nccl,
                                  .alike_hosts = world_size % ranks_per_node == 0,
                                  .host_nbytes = host_nbytes});
}

Config planned(Config config, int ranks) {
  if (config.train_batch_size == 0 && config.train_micro_batch_size_per_gpu == 0)
    config.train_micro_batch_size_per_gpu = 1;
  config.resolve_batch(ranks);
  // A part of states that all ranks have: initialize() refuses it, and other stages are planned with it.
  const layout::Sharding sharding = layout::sharding_of_stage(config.zero_optimization.stage);
  if (!sharding.optimizer_states) config.zero_optimization.offload_optimizer.ratio = 1;
  return config;
}

Plan plan_memory(const ModelShape& model, Config config, const Cluster& cluster) {
  check(cluster);
  config = planned(std::move(config), cluster.ranks);
  Plan plan;
  plan.ranks = cluster.ranks;
  plan.ranks_per_node = cluster.ranks_per_node > 0 ? std::min(cluster.ranks_per_node, cluster.ranks) : cluster.ranks;
  plan.nodes = (plan.ranks + plan.ranks_per_node - 1) / plan.ranks_per_node;
  const Islands islands = islands_of(config, plan.ranks, plan.ranks_per_node);
  const int island_hosts = (islands.ranks + islands.ranks_per_node - 1) / islands.ranks_per_node;
  ShardingPlan shards =
      shard(model, config, islands.ranks, islands.ranks_per_node, cluster.gpus, cluster.node_memory_nbytes);
  shards.islands = islands.count;
  const sharding::Footprint footprint = sharding::footprint_of(shards, workload_of(model, config), config);
  plan.stage = config.zero_optimization.stage;
  plan.node_shared = shards.place.reads_in_place();
  plan.param_dtype = config.param_dtype();
  plan.micro_batch = config.train_micro_batch_size_per_gpu;
  plan.accumulation_steps = config.gradient_accumulation_steps;
  plan.parameters_numel = model.numel();
  plan.padded_numel = shards.padded_numel();
  plan.units = static_cast<int>(shards.units.size());
  sharding::Footprint::ByRank states = footprint.by_rank();
  plan.heaviest_rank = heaviest(states);
  plan.shards_on_gpu = layout::is_on_device(shards.place.parameters.tier);
  plan.rank = footprint.of_rank(plan.heaviest_rank);
  // A recomputed layer's gradients arrive together, in an order which is autograd's to choose.
  const bool recomputes = model.transformer && model.transformer->checkpointing;
  plan.buckets_are_bound = recomputes || buckets_are_bound(config, islands.ranks, cluster.gpus, island_hosts);
  plan.gather_is_bound =
      !shards.place.reads_in_place() && gather_is_bound(config, islands.ranks, cluster.gpus, island_hosts);
  plan.deferred_init = model.deferred_init;
  plan.module_nbytes = 4 * (plan.deferred_init ? shards.largest_unit() : plan.parameters_numel);
  std::int64_t activations_on_nvme = 0, activations_on_host = 0;
  if (model.transformer) {
    const layout::Placement& place = shards.place.activations;
    const bool on_nvme = place.is_on_disk(), on_host = cluster.gpus && place.tier == layout::Tier::kHost;
    Activations kept = activations(*model.transformer, plan.micro_batch, plan.param_dtype, on_nvme || on_host);
    (on_host ? activations_on_host : activations_on_nvme) = kept.nvme_nbytes;
    constexpr std::int64_t kOnTheirWay = 3;  // two to the host, one back
    if (on_host) kept.peak_nbytes += kOnTheirWay * kept.nvme_buffer_nbytes;
    add_activations(plan, kept, cluster.gpus);
    const std::int64_t buffers = on_host ? activations_on_host : place.disk_buffers * kept.nvme_buffer_nbytes;
    plan.rank[MemoryKind::kOffload].current_nbytes += buffers;
    plan.rank[MemoryKind::kOffload].peak_nbytes += buffers;
    // Sums on GPUs have memory of their own.
    if (!cluster.gpus) plan.reused_nbytes = reused_nbytes(model, shards, config, kept, plan.heaviest_rank);
  }
  const double gaps = config.zerotorch.caching_allocator ? kCachePerActivation : kHeapPerActivation;
  const double process = cluster.gpus ? kGpuProcessNbytes : kPrivateNbytes + kSharedNbytes / plan.ranks_per_node;
  plan.process_nbytes =
      to_nbytes(process + gaps * static_cast<double>(plan.rank[MemoryKind::kActivations].peak_nbytes));
  if (plan.shards_on_gpu && sharding::wants_nccl(config, plan.nodes))
    plan.process_nbytes += received_by_nccl_nbytes(shards, plan.heaviest_rank);
  // What is on a disk streams from there to the checkpoint, with a ring of buffers.
  constexpr std::int64_t kRingNbytes = 32 << 20;
  const bool streams =
      shards.place.states.is_on_disk() || shards.place.gradients.is_on_disk() || shards.place.parameters.is_on_disk();
  const std::int64_t staged = checkpoint_nbytes(shards, config, plan.heaviest_rank);
  plan.checkpoint_nbytes = streams ? std::min(kRingNbytes, staged) : staged;
  states.repeat(islands.count);
  sum_up(plan, std::move(states), to_nbytes(kHostOfGpuProcessNbytes), cluster.gpus);
  plan.flops = flops_of(model, config);
  sharding::DiskUse disk = footprint.disk_of_rank(plan.heaviest_rank);
  const auto activations_moved = static_cast<double>(plan.accumulation_steps * activations_on_nvme);
  disk.read_nbytes += activations_moved;
  disk.written_nbytes += activations_moved;
  plan.rank.nvme_nbytes += activations_on_nvme;
  sharding::StepTraffic step = footprint.traffic;
  const auto moved_to_host = static_cast<double>(plan.accumulation_steps * activations_on_host);
  step.from_device_nbytes += moved_to_host;
  step.to_device_nbytes += moved_to_host;
  plan.traffic = traffic_of(step, disk, cluster, islands);
  plan.times = times_of(plan, config, cluster);
  return plan;
}

Config at_stage(Config config, int stage) {
  using OffloadDevice = Config::OffloadDevice;
  config.zero_optimization.stage = stage;
  const layout::Sharding sharding = layout::sharding_of_stage(stage);
  // What needs sharded optimizer states, or parameters.
  if (!sharding.optimizer_states) {
    config.zerotorch.update = Config::Zerotorch().update;
    config.zerotorch.offload_gradients = {};
  }
  // In host memory it is where the states are, too, at any stage.
  if (!sharding.parameters && config.zero_optimization.offload_param.device != OffloadDevice::kCpu)
    config.zero_optimization.offload_param = {};
  return config;
}

bool fits(const Plan& plan, const Cluster& cluster) {
  const auto is_enough = [](std::int64_t nbytes, std::int64_t wanted) { return nbytes <= 0 || wanted <= nbytes; };
  const bool on_gpu = !cluster.gpus || is_enough(cluster.gpu_memory_nbytes, plan.peak_nbytes());
  return on_gpu && is_enough(cluster.node_memory_nbytes, plan.node_nbytes);
}

}  // namespace zero::plan
