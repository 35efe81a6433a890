#pragma once
// Config: the DeepSpeed JSON as typed fields. Every key DeepSpeed knows is honoured, or accepted with a
// notice because it cannot change anything here, or refused with its line, the reason and a suggestion;
// docs/config.md lists them all. Plain values: copy freely, no libtorch, no globals.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/dtype.h"

namespace zero {

/// What happens to a key of the JSON.
enum class KeyStatus : std::uint8_t {
  kHonoured,  ///< its value changes what the engine or `zero train` does, or is what is done already
  kNoEffect,  ///< accepted; a notice says why it changes nothing
  kRefused,   ///< a ConfigError, unless it is off (false, empty, its harmless value)
};

std::string_view status_name(KeyStatus status);

/// One key of the schema. All views live as long as the program.
struct KeyInfo {
  std::string_view path;           ///< "zero_optimization.stage"
  std::string_view kind;           ///< "bool", "count", "number", "string", "section", ...
  std::string_view default_value;  ///< as JSON; empty where there is none
  KeyStatus status = KeyStatus::kHonoured;
  std::string_view note;             ///< meaning, or why it changes nothing, or why it is refused and what to use
  std::string_view accepted_values;  ///< not honoured: values accepted without a word, as JSON, separated by '|'
  std::string_view alias_of;         ///< for an old name: the path that replaces it
};

/// Every key that may appear in a file, aliases included, grouped by section. Members of a section that is refused
/// as a whole are not listed.
std::span<const KeyInfo> schema();

struct Config {
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
    /// "AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Lion", "Lamb", "Muon", "Adafactor", "AdamW8bit" or "Adam8bit", in
    /// this spelling whatever the file's case. What a file does not say is as defaults_of() has it; by hand
    /// it is what stands here.
    std::string type = "AdamW";
    double lr = 1e-3;
    /// Adam, AdamW, Lion.
    double beta1 = 0.9;
    double beta2 = 0.999;
    /// Added to the denominator: Adam, AdamW, Adagrad, RMSprop.
    double eps = 1e-8;
    /// DeepSpeed's default 0.0 (torch::optim::AdamW has 0.01).
    double weight_decay = 0.0;
    bool bias_correction = true;
    /// True: decoupled weight decay (AdamW). False: decay is added to the gradient (L2). Always true for
    /// type AdamW; for type Adam the default is true as well, as in DeepSpeed.
    bool adam_w_mode = true;
    /// Adam and AdamW: divide by the largest second moment so far (AMSGrad). One more state.
    bool amsgrad = false;
    /// Climb instead of descending: all but Lion.
    bool maximize = false;
    /// SGD, RMSprop. Not 0: one more state.
    double momentum = 0.0;
    /// SGD: the part of a gradient that does not go into the momentum.
    double dampening = 0.0;
    /// SGD: needs a momentum and no dampening.
    bool nesterov = false;
    /// RMSprop: decay of the mean of squares.
    double alpha = 0.99;
    /// RMSprop: divide by the deviation from the mean gradient. One more state.
    bool centered = false;
    /// Adagrad: the rate of update k, from 0, is lr / (1 + k lr_decay).
    double lr_decay = 0.0;
    /// Adagrad: its sums of squares at the start.
    double initial_accumulator_value = 0.0;
    /// Lamb: bounds of the ratio of a weight's norm to its step's.
    double max_coeff = 10.0, min_coeff = 0.01;
    /// Lamb: eps is added before the root is taken.
    bool eps_inside_sqrt = false;
    /// Muon: the rate of its matrices, and of what AdamW updates; not given: lr.
    std::optional<double> muon_lr, adam_lr;
    /// Muon: how a matrix is orthogonalised: "gram" or "standard".
    std::string ns_method = "gram";
    /// Adafactor: second moments forget by the step to this power.
    double beta2_decay = -0.8;
    /// Adafactor: the root mean square of a tensor's step, before its rate, is at most this.
    double d = 1.0;

    /// A type with the defaults that DeepSpeed has for it, or torch.optim where DeepSpeed takes that.
    static Optimizer defaults_of(std::string_view type);
  };
  Optimizer optimizer;

  /// DeepSpeed's schedules, and PyTorch's that its JSON may name. Each type reads the fields named after it.
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

    // OneCycle: the rate rises from least to most and falls again, the first beta the other way; then both decay.
    double cycle_min_lr = 0, cycle_max_lr = 0;           ///< required
    std::int64_t cycle_first_step_size = 2000;           ///< steps of the rise
    std::optional<std::int64_t> cycle_second_step_size;  ///< of the fall; not given: as many
    /// In so many stairs; 0: smoothly. The second not given: as the first.
    std::int64_t cycle_first_stair_count = 0;
    std::optional<std::int64_t> cycle_second_stair_count;
    std::int64_t decay_step_size = 0;  ///< after the cycle; 0: no decay
    double decay_lr_rate = 0;          ///< the rate is divided by 1 + this for every decay_step_size steps
    bool cycle_momentum = true;        ///< of optimizers with betas: the first as below, the second 0.99
    double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
    double decay_mom_rate = 0;

    // LRRangeTest: min_lr * (1 + step_rate * steps / step_size)
    double lr_range_test_min_lr = 1e-3;
    std::int64_t lr_range_test_step_size = 2000;
    double lr_range_test_step_rate = 1.0;
    bool lr_range_test_staircase = false;  ///< whole step sizes only

    // torch.optim.lr_scheduler's, of optimizer.lr and every group's own rate
    double start_factor = 1.0 / 3, end_factor = 1.0;  ///< LinearLR
    std::int64_t total_iters = 5;                     ///< LinearLR, PolynomialLR
    double power = 1.0;                               ///< PolynomialLR
    std::int64_t t_max = 0;                           ///< CosineAnnealingLR, required
    double eta_min = 0;                               ///< CosineAnnealingLR
    std::int64_t step_size = 0;                       ///< StepLR, required
    double gamma = 0.1;                               ///< StepLR; ExponentialLR, required

    /// -1: start from the beginning; otherwise the index of the last step already done.
    std::int64_t last_batch_iteration = -1;
  };
  Scheduler scheduler;

  struct Bf16 {
    /// Parameters, activations and gradients in bf16, fp32 master weights. False: all in fp32.
    bool enabled = false;
    /// Skip the step on all ranks when a gradient is not finite. DeepSpeed's default.
    bool check_grad_overflow = true;
    /// The parameters are their own master weights, and gradients are summed in bf16: 4 bytes a parameter
    /// less, and updates smaller than a bf16 digit are lost unless zerotorch.stochastic_rounding keeps them
    /// on average.
    bool master_weights_and_grads = false;
    /// The optimizer's states in bf16.
    bool optimizer_states = false;
  };
  Bf16 bf16;

  struct Fp16 {
    /// Parameters, activations and gradients in fp16, fp32 master weights, losses scaled. Not with bf16.enabled.
    bool enabled = false;
    /// Floating-point tensors given to the engine's call operator become fp16.
    bool auto_cast = false;
    /// What losses are multiplied with; 0: found while training (dynamic), by the keys below.
    double loss_scale = 0;
    /// A dynamic scale begins at 2 to this power.
    std::int64_t initial_scale_power = 16;
    /// Steps without overflow after which a dynamic scale is doubled.
    std::int64_t loss_scale_window = 1000;
    /// Overflows before a dynamic scale is halved; refilled when it is doubled.
    std::int64_t hysteresis = 2;
    /// Every step without overflow refills `hysteresis`.
    bool consecutive_hysteresis = false;
    /// An overflow at this scale is an error.
    double min_loss_scale = 1;
    /// The parameters are their own master weights, and gradients are summed in fp16.
    bool master_weights_and_grads = false;
  };
  Fp16 fp16;

  /// What parameters, activations and gradients are in.
  DType param_dtype() const {
    if (fp16.enabled) return DType::kFloat16;
    return bf16.enabled ? DType::kBFloat16 : DType::kFloat32;
  }
  bool has_16_bit_masters() const {
    return (bf16.enabled && bf16.master_weights_and_grads) || (fp16.enabled && fp16.master_weights_and_grads);
  }
  /// What master weights are in.
  DType master_dtype() const { return has_16_bit_masters() ? param_dtype() : DType::kFloat32; }
  /// What the optimizer's states are in, unless its type says otherwise.
  DType state_dtype() const { return bf16.enabled && bf16.optimizer_states ? DType::kBFloat16 : DType::kFloat32; }
  /// What gradients are summed in: micro-batches in the order of the ranks, rounded after each.
  DType sum_dtype() const { return grad_accum_dtype.value_or(master_dtype()); }
  /// Whether a step with a gradient that is not finite is skipped on all ranks.
  bool skips_non_finite() const { return fp16.enabled || (bf16.enabled && bf16.check_grad_overflow); }

  /// What gradients travel in between ranks: kFloat16, kBFloat16 or kFloat32; not given: param_dtype(). A
  /// narrower one halves the traffic and rounds every rank's gradient once. fp32 keeps, in mixed precision,
  /// what several backwards in one micro-batch add.
  std::optional<DType> communication_dtype;
  /// data_types.grad_accum_dtype: kFloat16, kBFloat16 or kFloat32; not given: see sum_dtype().
  std::optional<DType> grad_accum_dtype;

  // ---- step ----

  /// Upper bound of the global gradient norm; 0 is off. The default is that of DeepSpeed since 0.19 (1.0).
  double gradient_clipping = 1.0;

  // ---- what is said ----

  /// One progress line on rank 0 every so many steps; 0: none.
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

  /// The same figures as CSV files, one for each.
  struct CsvMonitor {
    bool enabled = false;
    /// Folder of the folder job_name; empty: the working folder.
    std::string output_path;
    std::string job_name = "DeepSpeedJobName";
  };
  CsvMonitor csv_monitor;

  /// What the collectives of training move and how long they take: Engine::comms_summary(). Off: costs nothing.
  struct CommsLogger {
    bool enabled = false;
    /// On rank 0 a line for every collective that ends.
    bool verbose = false;
    /// All kinds of collectives; false: those of prof_ops.
    bool prof_all = true;
    /// "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier", or DeepSpeed's longer names of these
    /// ("all_gather_into_tensor").
    std::vector<std::string> prof_ops;
    /// A row for every label (unit or parameter) in place of one for every size.
    bool debug = false;
  };
  CommsLogger comms_logger;

  /// FLOPs of one optimizer step from the operators that it runs: Engine::flops_report(), and a table on rank 0. Off,
  /// and in every other step: costs nothing.
  struct FlopsProfiler {
    bool enabled = false;
    /// The step to look at: after so many.
    std::int64_t profile_step = 1;
    /// In the table of modules: levels of the module tree; -1: all.
    std::int64_t module_depth = -1;
    /// So many modules with the most FLOPs of each level.
    std::int64_t top_modules = 1;
    /// The tree of modules as well.
    bool detailed = true;
    /// Where the table goes; not given: the log.
    std::optional<std::string> output_file;
  };
  FlopsProfiler flops_profiler;

  struct ZeroOptimization {
    /// What is sharded over the ranks: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters.
    int stage = 0;
    /// Overlap reduction with backward (and gathers with forward at stage 3). Costs one more bucket. Not given: as
    /// the stage says, see overlaps_comm().
    std::optional<bool> overlap_comm;
    /// overlap_comm, or DeepSpeed's default: true at stage 3, else false.
    bool overlaps_comm() const { return overlap_comm.value_or(stage == 3); }
    /// In elements: a unit's gradient is reduced in pieces (buckets) of at most this many, and of no more
    /// than 4 Mi or 512 Ki for each rank, where more would only take memory. Smaller: less bucket memory,
    /// more collectives.
    std::int64_t reduce_bucket_size = 500'000'000;
    /// Stages 0-2, in elements: updated parameters are spread in pieces of at most this many.
    std::int64_t allgather_bucket_size = 500'000'000;
    /// In elements: the optimizer updates its shard in pieces of at most this many.
    std::int64_t sub_group_size = 1'000'000'000;
    /// False: a parameter without gradient at the end of a step is an error that names it.
    bool ignore_unused_parameters = true;
    /// Stage 3, in elements: how much stays gathered at once. Smaller: less memory, more gathers.
    std::int64_t stage3_max_live_parameters = 1'000'000'000;
    /// Stage 3, in elements: keep a unit gathered when it is used again within this distance.
    std::int64_t stage3_max_reuse_distance = 1'000'000'000;
    /// Stage 3, in elements: how far to gather ahead of use. 0: no prefetch.
    std::int64_t stage3_prefetch_bucket_size = 50'000'000;
    /// Stage 3, in elements: parameters smaller than this are never released.
    std::int64_t stage3_param_persistence_threshold = 100'000;
    /// Stage 3, in elements: upper bound of all parameters kept by the threshold above.
    std::int64_t stage3_model_persistence_threshold = INT64_MAX;
    /// Modules gathered as one, by their name in the model (leaf_module.names) or the end of it
    /// (leaf_module.name_suffixes).
    std::vector<std::string> leaf_module_names;
    std::vector<std::string> leaf_module_name_suffixes;
    /// Where master weights and optimizer states live ("offload_optimizer").
    struct OffloadOptimizer {
      enum class Device : std::uint8_t {
        kNone,
        kCpu,   ///< host memory, where they are already without a GPU
        kNvme,  ///< a scratch file of each rank; in memory only what a step is at
      };
      Device device = Device::kNone;
      /// kNvme: a folder on a local disk; made where it is missing. Nothing stays there after the run.
      std::string nvme_path;
      /// kNvme: pieces of at most 8 MiB (and sub_group_size elements) in memory, for those that are read, updated and
      /// written at the same time.
      std::int64_t buffer_count = 4;
    };
    OffloadOptimizer offload_optimizer;
  };
  ZeroOptimization zero_optimization;

  /// How offload to NVMe reads and writes ("aio"). `zero bench io` finds what is best for a disk.
  struct Aio {
    /// In bytes: a request to the disk.
    std::int64_t block_size = 1 << 20;
    /// Requests of a rank under way at once.
    std::int64_t queue_depth = 32;
  };
  Aio aio;

  /// Our own section: what DeepSpeed has no key for.
  struct Zerotorch {
    enum class Store : std::uint8_t { kAuto, kNodeShared, kCopying };
    enum class VerifyParameters : std::uint8_t { kBroadcast, kVerify };
    enum class ProgressThread : std::uint8_t { kAuto, kAlways, kNever };
    enum class UnusedParameters : std::uint8_t { kSkip, kZero };
    enum class Buffers : std::uint8_t { kRank0, kEach, kMean };
    enum class BufferDtype : std::uint8_t { kModule, kParameters };
    /// Stage 3: where gathered parameters live. node_shared: once on each host, for all its ranks; several
    /// hosts must have as many ranks each. auto: node_shared when all ranks are on one host, else copying.
    Store store = Store::kAuto;
    /// Upper bound of a unit, in elements; 0: chosen from the model. Smaller units: less memory, more
    /// gathers.
    std::int64_t unit_numel = 0;
    /// Modules (names in the model) that each become one unit, whatever their size.
    std::vector<std::string> unit_names;
    /// Seed of the random streams; not given: left to the program.
    std::optional<std::int64_t> seed;
    /// Reseed libtorch's generator per global micro-batch, so that dropout does not depend on the number of
    /// ranks. False: the generator is left alone.
    bool reseed_per_micro_batch = true;
    /// At start: broadcast takes rank 0's parameters; verify compares and fails on the first difference.
    VerifyParameters verify_parameters = VerifyParameters::kBroadcast;
    /// What becomes of a buffer that forward writes (running statistics, codebooks), at the end of every step():
    /// rank0: all ranks take rank 0's; mean: floating-point buffers take the mean over the ranks, others rank
    /// 0's; each: every rank keeps its own. Costs one tiny collective a micro-batch for a model with buffers,
    /// and moves those that changed.
    Buffers buffers = Buffers::kRank0;
    /// With bf16: module: buffers keep the dtype the module gave them; parameters: floating-point buffers become
    /// bf16, as DeepSpeed makes them. Costs digits: above 256 bf16 does not have every whole number.
    BufferDtype buffer_dtype = BufferDtype::kModule;
    /// A thread of each rank that moves gathers and reductions while the others compute. auto: where
    /// communication may overlap (overlap_comm), over MPI, or with a core more than the compute threads need.
    ProgressThread progress_thread = ProgressThread::kAuto;
    /// Copying store: gather ahead of use only as far as the measured times of gathers and computation ask
    /// for, up to stage3_prefetch_bucket_size. False: always as far as that.
    bool measured_prefetch = true;
    /// Keep large blocks that libtorch frees on the CPU (activations) for the next step, packed without gaps and
    /// without page faults; zero::empty_cache() gives them back. For the whole process, as the first engine
    /// that wants it says.
    bool caching_allocator = true;
    /// Pin each rank to its share of the cores.
    bool bind_cores_to_rank = false;
    /// Update each piece of the parameters as soon as its gradient is complete, in backward: no gradient is
    /// kept. The same bits. Needs stage 1 to 3, gradient_clipping 0, one micro-batch per step and, in bf16,
    /// check_grad_overflow false.
    bool step_in_backward = false;
    /// bf16 master weights (bf16.bf16_master_weights_and_grads) are rounded up as often as they are near the
    /// upper neighbour, so that small steps are right on average. Drawn by `seed`, step and element: the same
    /// at every stage and number of ranks.
    bool stochastic_rounding = false;
    /// How long a collective may take, in seconds; 0: the group's default.
    double timeout_s = 0;
    /// What an update does with a parameter that no rank has used since the last one. kSkip: nothing, as in plain
    /// libtorch, where its grad() is undefined (no momentum, no decay, no step counted). kZero: its gradient
    /// counts as zero, as in DeepSpeed.
    UnusedParameters unused_parameters = UnusedParameters::kSkip;
    /// Check at every operator that no released parameter is read. Slow; for debugging.
    bool debug_observer = false;
    /// When `zero train` saves checkpoints; a program of your own calls Engine::save_checkpoint when it wants.
    struct Checkpoint {
      /// Optimizer steps between checkpoints; 0: not by steps.
      std::int64_t every_steps = 0;
      /// Minutes between checkpoints; 0: not by time.
      double every_minutes = 10;
      /// So many newest checkpoints stay; 0: all.
      std::int64_t keep_last = 2;
      /// Training goes on while a checkpoint is written. Costs one copy of the rank's shard in memory.
      bool async = true;
    };
    Checkpoint checkpoint;
  };
  Zerotorch zerotorch;

  /// Deprecated names that were used, keys that change nothing here and why, and defaults worth knowing; one
  /// line each, for rank 0 to log once. Not part of to_json().
  std::vector<std::string> notices;

  /// Reads and checks a file. Local. Throws IoError when it cannot be read, else as from_text().
  static Config from_file(const std::string& path);

  /// Parses and checks `json` (// and /* */ comments and trailing commas are allowed). `source` prefixes
  /// errors. Local. Throws one ConfigError that lists up to 20 problems, one per line:
  /// "source:line: path: problem; remedy".
  static Config from_text(std::string_view json, std::string_view source = "<text>");

  /// The configuration with its defaults as JSON with DeepSpeed's keys, null for what was left open.
  /// from_text(to_json()) has the same fields, if validate() takes them.
  std::string to_json() const;

  /// Checks fields that were filled in by hand as from_text() checks a file's; initialize() calls it. Local.
  /// Throws one ConfigError that lists up to 20 problems, one per line: "Config: path: problem; remedy".
  void validate() const;

  /// Fills in the missing of train_batch_size, train_micro_batch_size_per_gpu and
  /// gradient_accumulation_steps for `world_size` ranks, as DeepSpeed does. Idempotent. Local. Throws
  /// ConfigError with all three numbers and the world size when they contradict or do not divide, or when
  /// neither of the first two was given.
  void resolve_batch(int world_size);
};

}  // namespace zero
