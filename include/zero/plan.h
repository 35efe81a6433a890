#pragma once
// The memory plan: a run's memory and traffic, computed before anything is allocated. Pure functions of a model's
// shape, a configuration and a cluster: no libtorch, no files, no allocation of what is planned.
//
//   const auto model = zero::plan::transformer({.layers = 12, .dim = 1024, .heads = 16, .seq = 256});
//   const auto plan  = zero::plan::plan_memory(model, config, {.ranks = 8, .ranks_per_node = 4});
//   plan.rank[zero::MemoryKind::kOptimizer].peak_nbytes;
//
// docs/plan.md says where each figure comes from and which are exact.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/config.h"
#include "zero/kept_results.h"
#include "zero/memory.h"

namespace zero::plan {

// ---- The formula of the ZeRO paper, independent of this engine ----

/// Bytes per parameter of mixed-precision training with Adam (arXiv 1910.02054, section 3.1).
struct StateBytes {
  double parameters = 2;
  double gradients = 2;
  double optimizer = 12;  ///< fp32 master weight, exp_avg, exp_avg_sq
};

struct ModelStates {
  double parameters_nbytes = 0;
  double gradients_nbytes = 0;
  double optimizer_nbytes = 0;
  double total_nbytes() const { return parameters_nbytes + gradients_nbytes + optimizer_nbytes; }
};

/// Model states of each of `ranks` data-parallel ranks at a stage: 0 the baseline, 1 Pos, 2 Pos+g, 3 Pos+g+p
/// (arXiv 1910.02054, figure 1 and section 5). Throws ConfigError for a negative number of parameters, a
/// stage outside 0 to 3, or fewer than one rank.
ModelStates model_states(double parameters, int stage, double ranks, const StateBytes& bytes = {});

// ---- What a configuration implies ----

/// The learning rate of optimizer step `step` (0 is the first) under the configuration's schedule, followed from the
/// beginning, for parameters without a group of their own. Local.
double learning_rate_at(const Config& config, std::int64_t step);

/// The states that the configuration's optimizer keeps per parameter element, master weights excluded.
struct OptimizerStates {
  std::vector<std::string> names;  ///< torch.optim's names
  double nbytes = 0;               ///< of all states together, per element
  /// Muon: states of the parameters it does not orthogonalise; else empty.
  std::vector<std::string> names_of_rest;
  double nbytes_of_rest = 0;
  /// Adafactor: states of whole tensors, a few elements per row and column.
  std::vector<std::string> names_of_tensors;
};

/// Local. Throws ConfigError for a type that is not one of optimizer.type's choices.
OptimizerStates optimizer_states(const Config& config);

// ---- The model ----

struct ParameterShape {
  std::string name;  ///< "h.0.qkv.weight" is parameter "weight" of module "h.0.qkv"
  std::int64_t numel = 0;
  bool trainable = true;
  /// Empty: unknown. Needed because Muon keeps other states for matrices, and Adafactor keeps states per row and
  /// column.
  std::vector<std::int64_t> shape = {};
};

/// An operator of the forward pass that reads parameters.
struct Use {
  std::vector<int> parameters;  ///< indices, in the order of its arguments
  bool in_backward = true;      ///< backward reads them again; embeddings: false
};

/// The shape of a transformer: determines its activations, and the parameters that transformer() builds.
struct Transformer {
  enum class Style : std::uint8_t {
    kGpt,    ///< layer norms with bias, learnt positions, biases, an MLP of two matrices
    kLlama,  ///< RMS norms, rotary positions, no biases, a gated MLP of three matrices
  };
  Style style = Style::kGpt;
  std::int64_t layers = 2;
  std::int64_t dim = 64;
  std::int64_t heads = 2;
  std::int64_t kv_heads = 0;  ///< 0: heads
  std::int64_t head_dim = 0;  ///< 0: dim / heads
  std::int64_t mlp_dim = 0;   ///< 0: 4 * dim
  std::int64_t vocab = 256;
  std::int64_t seq = 64;                  ///< tokens of a sample
  std::int64_t positions = 0;             ///< kGpt: learnt positions; 0: seq
  bool tied = false;                      ///< the head is the token embedding
  bool qkv_bias = false;                  ///< kLlama: query, key and value have biases
  bool dropout = false;                   ///< after embedding, attention and MLP; its masks are kept for backward
  bool fused_attention = true;            ///< false: the [seq, seq] scores of every head are kept for backward
  bool checkpointing = false;             ///< keep a layer's input only and recompute the layer in backward
  std::int64_t checkpoint_every = 1;      ///< with checkpointing: of so many layers one
  KeptResults kept = KeptResults::kNone;  ///< with checkpointing: what such a layer keeps besides
  bool separate_documents = false;        ///< attention by document, whose results are put together
  /// The loss is zero::linear_cross_entropy(), and so many rows of logits exist at a time; 0: all of them.
  std::int64_t loss_rows = 0;
};

/// Of 16-bit gradients of the head, which linear_cross_entropy() converts at a time.
inline constexpr std::int64_t kLossPartElements = std::int64_t{1} << 20;

struct ModelShape {
  std::string name;
  /// Distinct parameters in the order of named_parameters(); a tied one under its first name only.
  std::vector<ParameterShape> parameters;
  /// In the order of the forward pass. Empty: every module with parameters is used once, in order.
  std::vector<Use> uses;
  std::optional<Transformer> transformer;  ///< not given: activations are not planned
  bool deferred_init = false;              ///< built by zero::deferred_init(): never whole on any rank

  std::int64_t numel() const;
};

/// The shape of a transformer. Style::kGpt gives the parameters of zero::GPT in the same order. Throws ConfigError for
/// sizes that are not positive or do not divide.
ModelShape transformer(const Transformer& shape, std::string name = "transformer");

/// A model of which only the number of parameters is known, laid out as 32 equal layers. Throws ConfigError when
/// negative.
ModelShape model_of_numel(std::int64_t numel);

// ---- The machines ----

/// How fast the machines are, per second; 0: unknown.
struct Speeds {
  double flops_per_s = 0;    ///< of a rank, in forward and backward
  double between_ranks = 0;  ///< bytes that a rank receives from the others of its host: NVLink, PCIe, shared memory
  double between_hosts = 0;  ///< bytes that a host receives from the others, by all its network cards
  double to_device = 0;      ///< bytes between a GPU and its host's memory, each way: PCIe
  double device_memory = 0;  ///< bytes that the memory of a GPU reads and writes
  double host_memory = 0;    ///< bytes that a host's memory reads and writes
  double disk = 0;           ///< bytes that a host's disks read and write

  // Of messages; 0: they cost nothing besides their bytes.
  double host_latency = 0;     ///< seconds from a rank to one of another host
  double rank_latency = 0;     ///< seconds between ranks of a host
  double message_seconds = 0;  ///< that a rank spends on each message
  /// Bytes, in and out, that a core moves, where a rank computes with all the cores that it has: moving them takes
  /// time from it.
  double moved_by_core = 0;
  bool half_duplex = false;  ///< `between_hosts` is of both directions together
};

/// What interrupts a run, in seconds.
struct Failures {
  double host_mtbf = 0;   ///< mean time between failures of a host; 0: unknown
  double detection = 0;   ///< until a failure is noticed, and all ranks have ended
  double restart = 0;     ///< until training goes on: from the checkpoint's beginning to the first new step
  double checkpoint = 0;  ///< that training stands still for one
  double interval = 0;    ///< of training between two checkpoints; 0: the best one
};

struct Cluster {
  int ranks = 1;
  int ranks_per_node = 0;               ///< 0: all on one host
  std::int64_t node_memory_nbytes = 0;  ///< available to the ranks of a host together; 0: unknown, everything fits
  /// Each rank has a GPU, and its module is there. What it shards is, too, unless the configuration wants it in host
  /// memory. Between hosts it moves by NCCL, which is taken to be there.
  bool gpus = false;
  std::int64_t gpu_memory_nbytes = 0;  ///< of each of them; 0: unknown, everything fits
  double bandwidth_nbytes_per_s = 0;   ///< receive bandwidth of each rank, from whomever; 0: unknown
  Speeds speeds;
  Failures failures;
};

// ---- The plan ----

/// Bytes that a micro-batch holds in libtorch's allocator.
struct Activations {
  std::int64_t stored_nbytes = 0;          ///< saved for backward, at the end of forward
  std::int64_t peak_nbytes = 0;            ///< including the temporaries of backward
  std::int64_t layers_nbytes = 0;          ///< part of stored_nbytes that the layers keep
  std::int64_t layer_backward_nbytes = 0;  ///< extra bytes while one layer's backward runs
  std::int64_t nvme_nbytes = 0;            ///< in a scratch file in place of memory
  std::int64_t nvme_buffer_nbytes = 0;     ///< of one buffer on the way there
};

/// An estimate. For zero::GPT it counts the operands that autograd saves one by one; the general count per layer
/// follows arXiv 2205.05198, section 4. `on_nvme`: what recomputed layers keep goes there
/// (zerotorch.offload_activations).
Activations activations(const Transformer& shape, std::int64_t micro_batch, DType param_dtype, bool on_nvme = false);

/// What the engine's ledger shows on `rank`: current_nbytes after initialize(), peak_nbytes after training. Exact for
/// every kind but activations (left at 0), provided that parameters are used as `model.uses` says; with
/// `buckets_are_bound` the buckets' peak is an upper bound, with `gather_is_bound` the gather buffers'. Ranks whose
/// gradients are complete in different orders may take more for buckets, as may ranks over MPI of which one is late by
/// more than a second and by more than the time in which gradients have come.
/// `ranks_per_node` and `gpus` as in Cluster. The configuration's batch sizes must be resolved. Local; allocates
/// nothing of what it counts. Throws ConfigError as initialize() does.
MemoryReport engine_memory(const ModelShape& model, const Config& config, int world_size, int rank,
                           int ranks_per_node = 0, bool gpus = false);

/// True when reductions overlap backward, or gradients come from GPUs: the number of buckets in flight then depends on
/// timing.
bool buckets_are_bound(const Config& config, int world_size, bool gpus = false, int hosts = 1);

/// True when the copying store chooses its prefetch distance from measured times, which it does not where
/// NCCL gathers.
bool gather_is_bound(const Config& config, int world_size, bool gpus = false, int hosts = 1);

/// Elements each rank receives in one optimizer step, mean over ranks (see zero/report.h).
struct Traffic {
  double gathered_numel = 0;
  double reduced_numel = 0;
  double published_numel = 0;
  double islands_numel = 0;         ///< from other islands (zerotorch.local_steps), mean over the steps of a round
  double whole_numel = 0;           ///< every trainable tensor counts, also one that a step does not use
  double nbytes = 0;                ///< of all of them in their dtypes, plus norms
  double between_hosts_nbytes = 0;  ///< of these from ranks of other hosts
  double seconds = 0;               ///< at the cluster's bandwidth, without overlap; 0: bandwidth unknown
  double nvme_nbytes = 0;           ///< read from disk by the heaviest rank
  double nvme_written_nbytes = 0;   ///< written to disk by the heaviest rank
  double nvme_update_nbytes = 0;    ///< of both, what masters and states are
  /// Of shards in the host's memory: parameters to the rank's GPU, gradients from there.
  double to_device_nbytes = 0, from_device_nbytes = 0;
  /// Sums, masters, states and parameters that a rank's update reads and writes, by where the states are; those of a
  /// disk pass the host's memory.
  double host_update_nbytes = 0, device_update_nbytes = 0;
};

/// Seconds of an optimizer step by what takes them, at the cluster's speeds; 0: nothing, or the speed is unknown.
struct StepTimes {
  double compute = 0;  ///< forward and backward
  double between_ranks = 0, between_hosts = 0;
  double to_device = 0, from_device = 0;
  double update = 0;                    ///< at the speed of memory
  double disk = 0, disk_of_update = 0;  ///< the second is a part of the first
  bool update_is_beside = false;        ///< of backward, or of the next step: else it follows

  /// With everything beside everything else that it can be beside, but for what buffers of a disk hold.
  double at_least() const;
  double in_turn() const;  ///< with nothing beside anything
};

struct Plan {
  int stage = 0;
  bool node_shared = false;  ///< parameters exist once per host
  DType param_dtype = DType::kFloat32;
  int ranks = 1, nodes = 1, ranks_per_node = 1;
  std::int64_t micro_batch = 0, accumulation_steps = 0;
  std::int64_t parameters_numel = 0, padded_numel = 0;
  int units = 0;

  int heaviest_rank = 0;           ///< the rank whose states take most memory
  MemoryReport rank;               ///< that rank's memory, including activations and its file on NVMe
  bool buckets_are_bound = false;  ///< the peak of its buckets is an upper bound
  bool gather_is_bound = false;    ///< the peak of its gather buffers is an upper bound
  /// What each rank has of the fp32 module at a time before initialize() takes it over: all of it, or, built by
  /// zero::deferred_init(), the largest unit.
  std::int64_t module_nbytes = 0;
  bool deferred_init = false;
  std::int64_t process_nbytes = 0;  ///< libtorch, stacks: an estimate
  /// Overlap of gradients and activations: bytes that need no memory of their own, because gradient sums reuse the
  /// memory of activations that backward has freed. An estimate, not in `rank`.
  std::int64_t reused_nbytes = 0;
  /// In addition, while an asynchronous checkpoint is written: a copy of what that rank saves, at most. A host without
  /// memory for it saves synchronously.
  std::int64_t checkpoint_nbytes = 0;
  /// Where it computes, so in the memory of its GPU if it has one: that rank's peak inside initialize(), and in
  /// training.
  std::int64_t start_nbytes = 0, training_nbytes = 0;
  std::int64_t host_nbytes = 0;           ///< that rank's peak in host memory, in either
  std::int64_t node_training_nbytes = 0;  ///< peak in training of the host that needs most, all its ranks
  std::int64_t node_nbytes = 0;           ///< the same over start and training
  bool shards_on_gpu = false;             ///< parameters, sums and states, but for what is on a disk
  double flops = 0;                       ///< of a rank's forward and backward in a step; 0: unknown
  Traffic traffic;
  StepTimes times;

  std::int64_t peak_nbytes() const { return start_nbytes > training_nbytes ? start_nbytes : training_nbytes; }
};

/// The whole plan for one configuration. Without batch sizes in `config` the micro-batch is 1. Takes milliseconds, even
/// for 100,000 ranks. Throws ConfigError for batch sizes that do not divide, unit names the model does not have,
/// 'node_shared' over hosts with different numbers of ranks, fewer than one rank.
Plan plan_memory(const ModelShape& model, Config config, const Cluster& cluster);

// ---- A step, simulated ----

struct SimulationOptions {
  double micro_batch_seconds = 0;  ///< measured, of forward and backward; 0: by FLOPs and Speeds::flops_per_s
  bool each_rank = false;          ///< every rank by itself, not classes of those that are alike: for few ranks
};

/// Seconds of a step of training that goes on, by what a rank does in them, mean over ranks.
struct StepSimulation {
  double seconds = 0;  ///< 0: compute or links are not known
  double compute = 0;  ///< forward and backward
  double copies = 0;   ///< of gradients into buckets
  double update = 0;
  double waits_for_parameters = 0, waits_for_gradients = 0;
  double waits_for_ranks = 0;  ///< in small collectives, and for sums and parameters that come in no other way
  double link_use = 0;         ///< of a host's link, of its time: the direction that is used more
  double nbytes = 0, between_hosts_nbytes = 0;  ///< that a rank receives
  double messages = 0;                          ///< that a rank sends
  std::int64_t events = 0;                      ///< of the simulation, all its steps

  double waits() const { return waits_for_parameters + waits_for_gradients + waits_for_ranks; }
};

/// Simulates steps of `plan`, which plan_memory() has made of the rest: the engine's schedules of gathers, buckets and
/// updated parameters over links with rates and latencies. Of any number of ranks in seconds. Not simulated: what goes
/// to disks and between GPUs and their hosts, of which a step takes at least the time. Throws ConfigError.
StepSimulation simulate_step(const ModelShape& model, Config config, const Cluster& cluster, const Plan& plan,
                             const SimulationOptions& options = {});

// ---- Failures ----

/// What a run has of its time.
struct Goodput {
  double of_time = 1;        ///< the part in which it makes steps that are kept
  double interval = 0;       ///< seconds of training between two checkpoints
  double best_interval = 0;  ///< that makes of_time largest
  double mtbf = 0;           ///< of all hosts together
};

/// The exact expectation where failures are independent and as likely at any time (exponential), whatever a run does.
/// `hosts` work together: a failure of one is one of the run. Throws ConfigError for times that are negative.
Goodput goodput(const Failures& failures, int hosts);

/// `config` at another stage. overlap_comm follows the stage unless it was given; at stage 0 updates run after
/// backward.
Config at_stage(Config config, int stage);

/// True if the host that needs most has enough memory, and the GPU that does, or their memory is unknown.
bool fits(const Plan& plan, const Cluster& cluster);

/// What is needed of what there is: "a GPU needs 91.20 GB of 80.00 GB and a host 3.10 GB of 64.00 GB".
std::string needs(const Plan& plan, const Cluster& cluster);

/// Compares the memory for training `model` with that of a host. Returns a warning if it takes more than nine tenths,
/// or, with `force`, if it does not fit; else an empty string. `config` needs its batch sizes. Local. Throws
/// ConfigError with both numbers and the smallest change that fits if it does not fit, unless `force`.
std::string check_fits(const ModelShape& model, const Config& config, const Cluster& cluster, bool force = false);

struct Suggestion {
  std::vector<std::string> changes;  ///< in words; one if one is enough; empty: it fits unchanged
  ModelShape model;
  Config config;
  Cluster cluster;
  Plan plan;
};

/// What may be changed to make a run fit, in the order in which it is tried.
struct Changes {
  bool buckets = true;      ///< smaller ones
  bool stage = true;        ///< a higher one
  bool store = true;        ///< node-shared
  bool update = true;       ///< in backward, where nothing is clipped or accumulated
  bool micro_batch = true;  ///< smaller ones, and more accumulation
  bool dtype = true;        ///< bf16
  bool recompute = true;    ///< activation checkpointing of every block
  bool deferred_init = true;
  bool fewer_bits = false;            ///< of optimizer states, then also of masters and sums: another curve
  bool ratio = true;                  ///< of GPUs: all states in host memory, where a part is
  bool states_in_host_memory = true;  ///< of GPUs, with all else that is sharded
  bool states_on_nvme = true;
  bool gradients_on_nvme = true;   ///< their sums, with the states, if these may go there
  bool parameters_on_nvme = true;  ///< with the states, if these may go there, at stage 3
  bool hosts = true;               ///< more of them
  std::string nvme_path = ".";     ///< what goes to NVMe goes to this folder
};

/// The smallest change that makes it fit: one of those that are allowed, then up to four times the ranks on more hosts,
/// then combinations, then more hosts still. Nullopt if none helps. Local. Throws ConfigError as plan_memory() does for
/// what is given.
std::optional<Suggestion> suggest(const ModelShape& model, const Config& config, const Cluster& cluster,
                                  const Changes& allowed = {});

/// The smallest change that makes it fit into the memory that computes: of what is `allowed`, nothing goes to NVMe,
/// from GPUs to their hosts or to more hosts, but optimizer states and masters may have fewer bits. Else as suggest().
std::optional<Suggestion> suggest_in_place(const ModelShape& model, const Config& config, const Cluster& cluster,
                                           Changes allowed = {});

/// The same training on `cluster` as it is: of what is `allowed`, only what leaves the numbers of training as they are
/// (neither dtype, bits nor hosts, but for the rounding of sums where micro-batches become smaller), so that a tenth of
/// the host's memory stays free if that can be, else so that it fits. Local. Throws ConfigError, with what is needed
/// and what there is, where nothing helps.
Suggestion fit(const ModelShape& model, const Config& config, const Cluster& cluster, Changes allowed = {});

}  // namespace zero::plan
