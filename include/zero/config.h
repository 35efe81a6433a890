#pragma once
// Config: the DeepSpeed JSON as typed fields. Every key that DeepSpeed knows is honoured, accepted with a notice
// because it cannot change anything here, or refused with its line, the reason and a suggestion; docs/config.md lists
// them all. A plain value type: no libtorch, no globals.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/cpu_products.h"
#include "zero/dtype.h"
#include "zero/optimizers.h"

namespace zero {

/// What happens to a key of the JSON.
enum class KeyStatus : std::uint8_t {
  kHonoured,  ///< changes what the engine or `zero train` does, or asks for what they do anyway
  kNoEffect,  ///< accepted; a notice says why it changes nothing
  kRefused,   ///< a ConfigError, unless it is switched off (false, empty, its harmless value)
};

std::string_view status_name(KeyStatus status);

/// One key of the schema. All views live as long as the program.
struct KeyInfo {
  std::string_view path;           ///< "zero_optimization.stage"
  std::string_view kind;           ///< "bool", "count", "number", "string", "section", ...
  std::string_view default_value;  ///< as JSON; empty where there is none
  KeyStatus status = KeyStatus::kHonoured;
  std::string_view note;             ///< meaning, or why it changes nothing, or why it is refused and what to use
  std::string_view accepted_values;  ///< keys not honoured: values accepted silently, as JSON, separated by '|'
  std::string_view alias_of;         ///< for an old name: the path that replaces it
};

/// Every key that may appear in a file, aliases included, grouped by section. Excludes the members of a section that is
/// refused as a whole.
std::span<const KeyInfo> schema();

struct Config {
  /// Where a kind of tensor lives that may leave its usual place.
  enum class OffloadDevice : std::uint8_t {
    kNone,  ///< its usual place: with the module, or in host memory
    kNvme,  ///< a scratch file per rank, and buffers in host memory
    kCpu,   ///< host memory
  };

  // ---- batch: train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks ----
  // 0 means not given. At least one of the first two must be given; resolve_batch() fills in the rest.

  /// Samples per optimizer step over all ranks.
  std::int64_t train_batch_size = 0;
  /// Samples per rank in one forward/backward. Activation memory grows with it.
  std::int64_t train_micro_batch_size_per_gpu = 0;
  /// Micro-batches per rank and step. Costs time, not memory.
  std::int64_t gradient_accumulation_steps = 0;

  struct Optimizer {
    /// False when the file has no "optimizer" section: AdamW with the defaults below is used.
    bool given = false;
    /// One of OptimizerInfo::types (zero/optimizers.h), always in that spelling; a file may use any case. Fields that a
    /// file omits take the values of defaults_of(type); fields of a Config built in code start with the values below.
    std::string type = "AdamW";
    double lr = 1e-3;
    // beta1, beta2, eps, weight_decay, momentum, ...: the rows of zero/optimizers.h.
#define ZERO_FIELD(where, type, name, value, range, meaning) type name = value;
    ZERO_HYPER_PARAMETERS(ZERO_FIELD)
#undef ZERO_FIELD
    /// Muon: learning rates of the matrices it orthogonalises, and of the parameters that AdamW updates. Default: lr.
    std::optional<double> muon_lr, adam_lr;
    /// Muon: the Newton-Schulz iteration that orthogonalises a matrix, "gram" or "standard".
    std::string ns_method = "gram";

    /// An optimizer of the given type with DeepSpeed's defaults, or torch.optim's where DeepSpeed uses those.
    static Optimizer defaults_of(std::string_view type);
  };
  Optimizer optimizer;

  /// DeepSpeed's schedules, and the PyTorch schedules that its JSON may name. Each type reads the fields under its
  /// name.
  struct Scheduler {
    enum class Type : std::uint8_t {
      kNone,  ///< the learning rate stays optimizer.lr
      kWarmupLR,
      kWarmupDecayLR,
      kWarmupCosineLR,
      kOneCycle,
      kLRRangeTest,
      kLinearLR,
      kCosineAnnealingLR,
      kPolynomialLR,
      kStepLR,
      kExponentialLR,
    };
    enum class WarmupType : std::uint8_t { kLog, kLinear };
    Type type = Type::kNone;

    // WarmupLR, WarmupDecayLR, WarmupCosineLR
    /// Steps of warm-up, at least 2 (a smaller number is raised, as DeepSpeed does).
    std::int64_t warmup_num_steps = 1000;
    WarmupType warmup_type = WarmupType::kLog;
    /// WarmupLR and WarmupDecayLR: learning rate at step 0.
    double warmup_min_lr = 0.0;
    /// WarmupLR and WarmupDecayLR: learning rate after warm-up. Default: optimizer.lr for WarmupLR, 0.001 for
    /// WarmupDecayLR; already resolved here.
    double warmup_max_lr = 1e-3;
    /// WarmupDecayLR and WarmupCosineLR: steps of the whole schedule, warm-up included. Required.
    std::int64_t total_num_steps = 0;
    /// WarmupCosineLR: first and last learning rate, as parts of optimizer.lr.
    double warmup_min_ratio = 0.0;
    double cos_min_ratio = 1e-4;

    // OneCycle: the rate rises from minimum to maximum and falls again, beta1 moves the opposite way; then both decay.
    double cycle_min_lr = 0, cycle_max_lr = 0;           ///< required
    std::int64_t cycle_first_step_size = 2000;           ///< steps of the rise
    std::optional<std::int64_t> cycle_second_step_size;  ///< steps of the fall; default: as the rise
    /// Number of stairs of the rise and of the fall; 0: continuous. Second not given: as the first.
    std::int64_t cycle_first_stair_count = 0;
    std::optional<std::int64_t> cycle_second_stair_count;
    std::int64_t decay_step_size = 0;  ///< steps of one decay after the cycle; 0: no decay
    double decay_lr_rate = 0;          ///< the rate is divided by 1 + this x (steps / decay_step_size)
    bool cycle_momentum = true;        ///< optimizers with betas: cycles beta1 as below; beta2 is 0.99
    double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
    double decay_mom_rate = 0;

    // LRRangeTest: min_lr * (1 + step_rate * steps / step_size)
    double lr_range_test_min_lr = 1e-3;
    std::int64_t lr_range_test_step_size = 2000;
    double lr_range_test_step_rate = 1.0;
    bool lr_range_test_staircase = false;  ///< rounds steps / step_size down

    // torch.optim.lr_scheduler's, applied to optimizer.lr and to the learning rate of every parameter group
    double start_factor = 1.0 / 3, end_factor = 1.0;  ///< LinearLR
    std::int64_t total_iters = 5;                     ///< LinearLR, PolynomialLR
    double power = 1.0;                               ///< PolynomialLR
    std::int64_t t_max = 0;                           ///< CosineAnnealingLR, required
    double eta_min = 0;                               ///< CosineAnnealingLR
    std::int64_t step_size = 0;                       ///< StepLR, required
    double gamma = 0.1;                               ///< StepLR; ExponentialLR, required

    /// Index of the last step already done; -1: start from the beginning.
    std::int64_t last_batch_iteration = -1;
  };
  Scheduler scheduler;

  struct Bf16 {
    /// Parameters, activations and gradients in bf16, with fp32 master weights. False: all in fp32.
    bool enabled = false;
    /// Skip the step on all ranks when a gradient is not finite. DeepSpeed's default.
    bool check_grad_overflow = true;
    /// The bf16 parameters are their own master weights, and gradients are summed in bf16. Saves 4 bytes per parameter,
    /// but loses updates smaller than a bf16 digit unless zerotorch.stochastic_rounding keeps them on average.
    bool master_weights_and_grads = false;
    /// The optimizer's states in bf16.
    bool optimizer_states = false;
  };
  Bf16 bf16;

  struct Fp16 {
    /// Parameters, activations and gradients in fp16, with fp32 master weights and loss scaling. Not with bf16.enabled.
    bool enabled = false;
    /// The engine's call operator casts floating-point tensors to fp16.
    bool auto_cast = false;
    /// Factor of the loss; 0: dynamic, found during training by the keys below.
    double loss_scale = 0;
    /// A dynamic scale starts at 2 to this power.
    std::int64_t initial_scale_power = 16;
    /// Steps without overflow after which a dynamic scale is doubled.
    std::int64_t loss_scale_window = 1000;
    /// Overflows before a dynamic scale is halved; the count is refilled when the scale is doubled.
    std::int64_t hysteresis = 2;
    /// Every step without overflow refills the count of `hysteresis`.
    bool consecutive_hysteresis = false;
    /// Lower bound of the loss scale; an overflow at this scale is an error.
    double min_loss_scale = 1;
    /// The fp16 parameters are their own master weights, and gradients are summed in fp16.
    bool master_weights_and_grads = false;
  };
  Fp16 fp16;

  /// The dtype of parameters, activations and gradients.
  DType param_dtype() const {
    if (fp16.enabled) return DType::kFloat16;
    return bf16.enabled ? DType::kBFloat16 : DType::kFloat32;
  }
  bool has_16_bit_masters() const {
    return (bf16.enabled && bf16.master_weights_and_grads) || (fp16.enabled && fp16.master_weights_and_grads);
  }
  /// The dtype of master weights.
  DType master_dtype() const { return has_16_bit_masters() ? param_dtype() : DType::kFloat32; }
  /// The dtype of optimizer states, unless the optimizer type prescribes another.
  DType state_dtype() const { return bf16.enabled && bf16.optimizer_states ? DType::kBFloat16 : DType::kFloat32; }
  /// Whether zero::recompute() keeps what backward needs of a module on a GPU in host memory.
  bool activations_in_host_memory() const {
    return activation_checkpointing.cpu_checkpointing || zerotorch.offload_activations.device == OffloadDevice::kCpu;
  }
  /// The dtype gradients are summed in: micro-batches are added in rank order and the sum is rounded after each.
  DType sum_dtype() const { return grad_accum_dtype.value_or(master_dtype()); }
  /// Whether all ranks skip a step in which a gradient is not finite.
  bool skips_non_finite() const { return fp16.enabled || (bf16.enabled && bf16.check_grad_overflow); }

  /// The dtype in which gradients are sent between ranks: kFloat16, kBFloat16 or kFloat32; default: param_dtype(). A
  /// narrower dtype halves the traffic and rounds every rank's gradient once. fp32 in mixed precision keeps the
  /// precision of the sum when several backwards run in one micro-batch.
  std::optional<DType> communication_dtype;
  /// data_types.grad_accum_dtype: kFloat16, kBFloat16 or kFloat32; default: see sum_dtype().
  std::optional<DType> grad_accum_dtype;

  // ---- step ----

  enum class GradientAllreduceOp : std::uint8_t { kMean, kSum };
  /// Over the data-parallel ranks. kSum: the update depends on the number of ranks. Micro-batches of a rank are
  /// averaged in either case.
  GradientAllreduceOp gradient_allreduce_op = GradientAllreduceOp::kMean;
  /// Upper bound of the global gradient norm; 0: no clipping. Default: as in DeepSpeed since 0.19 (1.0).
  double gradient_clipping = 1.0;

  // ---- logging and monitoring ----

  /// Rank 0 logs a progress line every this many steps; 0: never.
  std::int64_t steps_per_print = 0;
  /// Log how long forward, backward and step take.
  bool wall_clock_breakdown = false;
  /// Log the memory ledger at the same places.
  bool memory_breakdown = false;
  /// Log the resolved configuration at start.
  bool dump_state = false;

  struct Tensorboard {
    bool enabled = false;
    /// Folder of the event files; empty: "runs" below the working folder.
    std::string output_path;
    /// Sub-folder of output_path for this job.
    std::string job_name = "DeepSpeedJobName";
  };
  Tensorboard tensorboard;

  /// The same metrics as CSV files, one file per metric.
  struct CsvMonitor {
    bool enabled = false;
    /// Parent folder of job_name; empty: the working folder.
    std::string output_path;
    std::string job_name = "DeepSpeedJobName";
  };
  CsvMonitor csv_monitor;

  /// Records what the collectives of training move and how long they take: Engine::comms_summary(). Costs nothing when
  /// off.
  struct CommsLogger {
    bool enabled = false;
    /// Rank 0 logs a line for every completed collective.
    bool verbose = false;
    /// Record all kinds of collectives; false: only those in prof_ops.
    bool prof_all = true;
    /// "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier", or DeepSpeed's longer names of these
    /// ("all_gather_into_tensor").
    std::vector<std::string> prof_ops;
    /// One row per label (unit or parameter) instead of one per message size.
    bool debug = false;
  };
  CommsLogger comms_logger;

  /// Counts the FLOPs of one optimizer step from the operators it runs: Engine::flops_report(), and a table on rank 0.
  /// Costs nothing when off and in all other steps.
  struct FlopsProfiler {
    bool enabled = false;
    /// The step to profile: the one after this many steps.
    std::int64_t profile_step = 1;
    /// Levels of the module tree in the table; -1: all.
    std::int64_t module_depth = -1;
    /// Number of modules listed per level, those with the most FLOPs.
    std::int64_t top_modules = 1;
    /// Print the module tree as well.
    bool detailed = true;
    /// File for the table; not given: the log.
    std::optional<std::string> output_file;
  };
  FlopsProfiler flops_profiler;

  struct ZeroOptimization {
    /// What is sharded over the ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters.
    int stage = 0;
    /// Overlap gradient reduction with backward (and gathers with forward at stage 3). Costs one more bucket. Not
    /// given: depends on the stage and the hosts, see overlaps_comm().
    std::optional<bool> overlap_comm;
    /// overlap_comm if given. Else true at stage 3 and between hosts, where networks are slower than memory, and false
    /// below stage 3 on one host, as in DeepSpeed.
    bool overlaps_comm(int hosts = 1) const { return overlap_comm.value_or(stage == 3 || hosts > 1); }
    /// In elements: a unit's gradient is reduced in pieces (buckets) of at most this many, and of at most max(4 Mi, 512
    /// Ki x ranks): more would only take memory. Smaller: less bucket memory, more collectives.
    std::int64_t reduce_bucket_size = 500'000'000;
    /// Stages 0-2, in elements: updated parameters are all-gathered in pieces of at most this many.
    std::int64_t allgather_bucket_size = 500'000'000;
    /// In elements: the optimizer updates its shard in pieces of at most this many.
    std::int64_t sub_group_size = kDefaultSubGroupNumel;
    static constexpr std::int64_t kDefaultSubGroupNumel = 1'000'000'000;
    std::int64_t sub_group_numel() const { return sub_group_size > 0 ? sub_group_size : kDefaultSubGroupNumel; }
    /// False: a parameter without a gradient at the end of a step is an error that names it.
    bool ignore_unused_parameters = true;
    /// Stage 3, in elements: upper bound of what is gathered at once. Smaller: less memory, more gathers.
    std::int64_t stage3_max_live_parameters = 1'000'000'000;
    /// Stage 3, in elements: keep a unit gathered when it is used again within this distance.
    std::int64_t stage3_max_reuse_distance = 1'000'000'000;
    /// Stage 3, in elements: how far to gather ahead of use. 0: no prefetch.
    std::int64_t stage3_prefetch_bucket_size = 50'000'000;
    /// Stage 3, in elements: parameters smaller than this are never released.
    std::int64_t stage3_param_persistence_threshold = 100'000;
    /// Stage 3, in elements: upper bound of all parameters that the threshold above keeps.
    std::int64_t stage3_model_persistence_threshold = INT64_MAX;
    /// Modules gathered as one unit, by their name in the model (leaf_module.names) or a suffix of it
    /// (leaf_module.name_suffixes).
    std::vector<std::string> leaf_module_names;
    std::vector<std::string> leaf_module_name_suffixes;
    /// Where master weights and optimizer states live ("offload_optimizer").
    struct OffloadOptimizer {
      /// kCpu: without a GPU they are there anyway. kNvme: only the pieces being updated are in memory.
      OffloadDevice device = OffloadDevice::kNone;
      /// kNvme: a folder on a local disk, created if missing. No files stay there after the run.
      std::string nvme_path;
      /// kNvme: number of buffers in memory, each of at most 8 MiB (and sub_group_size elements), for pieces that are
      /// read, updated and written concurrently.
      std::int64_t buffer_count = 4;
      /// kCpu, of a module on a GPU: the part of the elements that are updated in host memory, in whole units. The
      /// others' states are in the GPU's memory, which updates them meanwhile. The same bits.
      double ratio = 1;
    };
    OffloadOptimizer offload_optimizer;
    /// Where the parameters' shards live at stage 3 ("offload_param").
    struct OffloadParam {
      /// kNvme: a scratch file per rank. Units are read just before use, once for all ranks of the host, into memory
      /// that these share, and their updates are written back. One host.
      OffloadDevice device = OffloadDevice::kNone;
      /// kNvme: as in OffloadOptimizer.
      std::string nvme_path;
      /// kNvme: as in OffloadOptimizer, for pieces that are updated.
      std::int64_t buffer_count = 5;
    };
    OffloadParam offload_param;
    /// Older ways to write device kCpu of the two.
    bool cpu_offload = false;
    bool cpu_offload_param = false;
    /// Stage 3, on the CPU: units are gathered in 8 bits an element, or in zerotorch.weight_quantization. Operators see
    /// the rounded values; master weights, checkpoints and parameters in scopes are exact. Parameters that are always
    /// whole (stage3_param_persistence_threshold) are not quantised.
    bool zero_quantized_weights = false;
    /// The same of units that are not trained.
    bool zero_quantized_nontrainable_weights = false;
    /// On the CPU: gradients are sent in 4 bits an element, or in zerotorch.gradient_quantization, and added in fp32.
    bool zero_quantized_gradients = false;
    /// Stage 3: parameters are whole once per host ("node_shared"); the number of ranks on each host.
    std::int64_t zero_hpz_partition_size = 1;
    /// With zero_quantized_gradients: what quantisation loses is added to the next step's gradient (LoCo). On each rank
    /// about 1 byte per element and micro-batch of a step.
    struct ZeroppLocoParam {
      /// The part of the old error that stays in the moving average of errors.
      std::optional<double> err_beta;
      /// Steps after which errors are forgotten.
      std::optional<std::int64_t> reset_T;  // NOLINT(readability-identifier-naming)
    };
    ZeroppLocoParam zeropp_loco_param;
    bool feeds_errors_back() const { return zeropp_loco_param.err_beta || zeropp_loco_param.reset_T; }
  };
  ZeroOptimization zero_optimization;

  /// How offload to NVMe reads and writes ("aio"). `zero bench io` finds the best values for a disk.
  struct Aio {
    /// Bytes per disk request.
    std::int64_t block_size = 1 << 20;
    /// Disk requests of a rank in flight at once.
    std::int64_t queue_depth = 32;
  };
  Aio aio;

  /// zerotorch's own section, for what DeepSpeed has no key.
  struct Zerotorch {
    enum class Store : std::uint8_t { kAuto, kNodeShared, kCopying };
    enum class VerifyParameters : std::uint8_t { kBroadcast, kVerify };
    enum class ProgressThread : std::uint8_t { kAuto, kAlways, kNever };
    enum class OverlapAllGather : std::uint8_t { kAuto, kAlways, kNever };
    enum class UnusedParameters : std::uint8_t { kSkip, kZero };
    enum class Buffers : std::uint8_t { kRank0, kEach, kMean };
    enum class BufferDtype : std::uint8_t { kModule, kParameters };
    /// Stage 3: where gathered parameters live. node_shared: once per host, shared by all its ranks; with several
    /// hosts, each must have the same number of ranks. auto: node_shared on the CPU, over several hosts if they have as
    /// many ranks each and all parameters take at most a quarter of the memory that a host has left; else copying.
    Store store = Store::kAuto;
    enum class DeviceTransport : std::uint8_t { kAuto, kShared, kNccl };
    /// With shards in the memory of several ranks' GPUs, what moves them. shared: ranks of one host read each other's
    /// memory in place; nccl: NCCL, also between hosts, with a GPU to a rank. auto: shared on one host if GPUs map each
    /// other's memory, else nccl; where NCCL cannot, on several hosts, shards are in host memory and the ranks' group
    /// moves them.
    DeviceTransport device_transport = DeviceTransport::kAuto;
    /// Upper bound of a unit, in elements; 0: derived from the model. Smaller units: less memory, more gathers.
    std::int64_t unit_numel = 0;
    /// Modules (names in the model) that each become one unit, whatever their size.
    std::vector<std::string> unit_names;
    /// Seed of the random streams; not given: left to the program.
    std::optional<std::int64_t> seed;
    /// Reseed libtorch's generator per global micro-batch, so that dropout does not depend on the number of
    /// ranks. False: the generator is left alone.
    bool reseed_per_micro_batch = true;
    /// At start: broadcast copies rank 0's parameters to all ranks; verify compares them and fails on the first
    /// difference.
    VerifyParameters verify_parameters = VerifyParameters::kBroadcast;
    /// How buffers that forward writes (running statistics, codebooks) are reconciled at the end of every step().
    /// rank0: all ranks take rank 0's; mean: floating-point buffers take the mean over the ranks, others rank 0's;
    /// each: every rank keeps its own. Costs one tiny collective per micro-batch for a model with buffers, and the
    /// traffic of those that changed.
    Buffers buffers = Buffers::kRank0;
    /// The dtype of buffers with bf16. module: as the module made them; parameters: floating-point buffers become bf16,
    /// as in DeepSpeed. Loses precision: above 256, bf16 cannot represent every integer.
    BufferDtype buffer_dtype = BufferDtype::kModule;
    /// A thread per rank that progresses gathers and reductions while other threads compute. auto: with overlap_comm,
    /// if the backend is MPI or the rank has a core more than its compute threads; and over MPI between hosts.
    ProgressThread progress_thread = ProgressThread::kAuto;
    /// Parameters that are always whole (stages 1 and 2, persistent ones of stage 3), on the CPU: step() returns before
    /// the other ranks' updated shards have come, and each use of a parameter by an operator waits for its own. Memory
    /// that is read without an operator throws until then: Engine::wait_for_parameters(). auto: between hosts, where
    /// every rank has a progress thread. Not with the update "in_backward" or the debug observer.
    OverlapAllGather overlap_all_gather = OverlapAllGather::kAuto;
    /// Blocks of 64 elements that are sent as their largest magnitude, fp32, and a code each. kDynamic8: 8 bits, an
    /// error of at most 0.71 % of the largest; kLinear4: 4 bits, 7.2 %. No rank or bucket cuts a block, so that the
    /// values are the same at any number of ranks.
    enum class Quantization : std::uint8_t { kDynamic8, kLinear4 };
    /// Of zero_quantized_weights and zero_quantized_nontrainable_weights.
    Quantization weight_quantization = Quantization::kDynamic8;
    /// Of zero_quantized_gradients.
    Quantization gradient_quantization = Quantization::kLinear4;
    /// On the CPU: gradients of each block of so many consecutive ranks are added before these sums are. Where a block
    /// is a host's ranks, they send one sum to another host, not a gradient each. Ranks are a multiple of it; 0 or 1:
    /// all gradients one after the other.
    std::int64_t hierarchical_reduce = 0;
    /// How products of 16-bit parameters and activations are computed on the CPU (zero/cpu_products.h). auto: in fp32
    /// where the processor has no instructions for the dtype; rank 0's choice holds for all. For the whole process
    /// while the engine lives. With fp32 parameters: products under autocast.
    CpuProducts cpu_products = CpuProducts::kAuto;
    /// Copying store: choose how far to prefetch from measured gather and compute times, up to
    /// stage3_prefetch_bucket_size. False: always prefetch that far.
    bool measured_prefetch = true;
    /// Keep large CPU blocks that libtorch frees (activations) for the next step, packed without gaps and without page
    /// faults; zero::empty_cache() returns them. Process-wide: on from the first engine that asks for it.
    bool caching_allocator = true;
    /// Pin each rank to its share of the cores.
    bool bind_cores_to_rank = false;
    /// When the optimizer's update runs; all but the last give the same bits. docs/config.md lists what each excludes.
    ///   kAfterBackward  in step().
    ///   kInBackward     piece by piece in backward, as soon as a gradient is complete; no gradients are kept. Needs
    ///                   stage 1 to 3, gradient_clipping 0, one micro-batch per step and, in bf16, check_grad_overflow
    ///                   false.
    ///   kSpeculative    of states on NVMe, from backward on, before it is known whether gradients need clipping or are
    ///                   not finite; undone where they do or are. The disk works during backward. Costs a second set of
    ///                   this rank's parameters in memory, and of states in the file. Needs stage 1 to 3.
    ///   kDelayed        while the next step computes (ZeRO-Offload's one-step delayed parameter update). Gradients are
    ///                   of parameters that lack the last update: a different training, the same on any number of
    ///                   ranks. Costs a second set of gradient sums and of this rank's parameters. Needs stage 1 to
    ///                   3, and states in host memory or on NVMe.
    enum class Update : std::uint8_t { kAfterBackward, kInBackward, kSpeculative, kDelayed };
    Update update = Update::kAfterBackward;
    /// Stochastic rounding of bf16 master weights (bf16.bf16_master_weights_and_grads): rounds up with a probability
    /// equal to the fraction of the way from the lower to the upper neighbour, so that small steps are right on
    /// average. Random numbers depend on `seed`, step and element only: the same at every stage and number of ranks.
    bool stochastic_rounding = false;
    /// Time limit of a collective, in seconds; 0: the group's default.
    double timeout_s = 0;
    /// What an update does with a parameter that no rank has used since the last one. kSkip: leaves it alone (no
    /// momentum, no decay, no step counted), as plain libtorch does when grad() is undefined. kZero: treats its
    /// gradient as zero, as DeepSpeed does.
    UnusedParameters unused_parameters = UnusedParameters::kSkip;
    /// Check at every operator that it reads no released parameter. Slow; for debugging.
    bool debug_observer = false;
    /// When `zero train` and zero::TrainingRun save checkpoints; other programs call Engine::save_checkpoint
    /// themselves.
    struct Checkpoint {
      /// Optimizer steps between checkpoints; 0: not by steps.
      std::int64_t every_steps = 0;
      /// Minutes between checkpoints; 0: not by time.
      double every_minutes = 10;
      /// Number of newest checkpoints to keep; 0: all.
      std::int64_t keep_last = 2;
      /// Write checkpoints while training continues. Costs one copy of the rank's shard in memory.
      bool async = true;
    };
    Checkpoint checkpoint;
    /// Records what every rank does in some steps, for Perfetto: the parts of a step, collectives on their way,
    /// requests to the disk, memory by kind. In files rank<R>.json of the "Trace Event Format".
    struct Trace {
      bool enabled = false;
      /// Folder of the files; made where it is missing.
      std::string path = "trace";
      /// First step that is recorded, counted from 1 since initialize().
      std::int64_t first_step = 3;
      /// Number of steps recorded.
      std::int64_t steps = 2;
      /// Events kept by a rank, about 100 bytes each in memory and 200 in the file; what comes after is left out, and
      /// said.
      std::int64_t max_events = 300'000;
    };
    Trace trace;
    /// Where the sums of gradients are between a micro-batch's backward and the update (stage 1 and above, on the CPU).
    struct OffloadGradients {
      OffloadDevice device = OffloadDevice::kNone;  ///< not kCpu
      /// kNvme: a folder on a local disk, created if missing; empty: that of offload_optimizer. No files stay there
      /// after the run.
      std::string nvme_path;
      /// kNvme: pieces in memory at a time, of about 8 MiB.
      std::int64_t buffer_count = 4;
    };
    OffloadGradients offload_gradients;
    /// Where zero::recompute() keeps what backward needs of a part (zero/activations.h).
    struct OffloadActivations {
      /// kCpu: of a module on a GPU. kNvme: of one on the CPU.
      OffloadDevice device = OffloadDevice::kNone;
      /// kNvme: a folder on a local disk, created if missing. No files stay there after the run.
      std::string nvme_path;
      /// kNvme: tensors on their way at a time, each in a buffer of the largest one's size.
      std::int64_t buffer_count = 4;
    };
    OffloadActivations offload_activations;
    /// DiLoCo (arXiv:2311.08105): islands of ranks that train apart for some steps, then average what they have learnt.
    /// An island trains as all ranks do otherwise. Then the mean over the islands of how far each has moved is the
    /// gradient of an outer SGD with Nesterov momentum, whose values all islands go on from. A different training,
    /// which depends on the number of islands, and not on how many ranks each has.
    struct LocalSteps {
      /// Optimizer steps from one exchange to the next; 0: there are no islands. A step that is skipped counts.
      std::int64_t steps = 0;
      /// Ranks of an island, a divisor of the number of ranks; 0: those of a host.
      std::int64_t ranks_per_island = 0;
      /// Learning rate and momentum of the outer SGD.
      double lr = 0.7;
      double momentum = 0.9;
    };
    LocalSteps local_steps;
  };
  Zerotorch zerotorch;

  /// Of zero::recompute() ("activation_checkpointing").
  struct ActivationCheckpointing {
    /// Each model-parallel rank keeps its part of the inputs of parts, which must be the same on all of them.
    bool partition_activations = false;
    /// As zerotorch.offload_activations.device kCpu.
    bool cpu_checkpointing = false;
  };
  ActivationCheckpointing activation_checkpointing;

  /// One line each, for rank 0 to log once: deprecated names that were used, keys that change nothing here and why, and
  /// defaults worth knowing. Not part of to_json().
  std::vector<std::string> notices;

  /// Reads and checks a file. Local. Throws IoError when it cannot be read, else as from_text().
  static Config from_file(const std::string& path);

  /// Parses and checks `json` (// and /* */ comments and trailing commas are allowed). `source` prefixes
  /// errors. Local. Throws one ConfigError that lists up to 20 problems, one per line:
  /// "source:line: path: problem; remedy".
  static Config from_text(std::string_view json, std::string_view source = "<text>");

  /// The configuration with its defaults as JSON with DeepSpeed's keys; null for fields without a value.
  /// from_text(to_json()) has the same fields, if validate() accepts them.
  std::string to_json() const;

  /// Checks a Config built in code as from_text() checks a file; initialize() calls it. Local. Throws one ConfigError
  /// that lists up to 20 problems, one per line: "Config: path: problem; remedy".
  void validate() const;

  /// Computes whichever of train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps are
  /// missing, for `world_size` ranks, as DeepSpeed does. Idempotent. Local. Throws ConfigError with all three numbers
  /// and the world size when they contradict or do not divide, or when neither of the first two was given.
  void resolve_batch(int world_size);
};

/// What a schedule of updates does, in a few words; empty: updates run after backward.
std::string_view update_summary(Config::Zerotorch::Update update);

}  // namespace zero
