#pragma once
// The engine's reports on communication, time and FLOPs.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zero {

/// Elements this rank received over the group since initialize() (it sent the same number if shards are equal). Summed
/// over ranks and divided by their number, one step without accumulation receives
///   stages 0-2             2 * Psi * (N-1)/N
///   stage 3, copying store 3 * Psi * (N-1)/N   (2 gathers, 1 reduction)
///   stage 3, node-shared   1 * Psi * (N-1)/N   (gathers are pointers), and on H hosts Psi * (H-1)/N
///   published
/// with Psi = padded_numel. This is exact, except that a unit still gathered when it is used again (the last of forward
/// is the first of backward) is not gathered twice. Every further micro-batch of a step adds one reduction (and the
/// gathers of stage 3).
struct CommunicationReport {
  int world_size = 1;
  std::int64_t parameters_numel = 0;  ///< trainable and frozen, without padding
  std::int64_t padded_numel = 0;      ///< the same with padding to whole blocks
  std::int64_t gathered_numel = 0;    ///< parameters gathered before use (stage 3)
  std::int64_t reduced_numel = 0;     ///< other ranks' gradient slices for this rank's shard
  std::int64_t published_numel =
      0;  ///< updated parameters (stages 1-2; node-shared: from other hosts) or reduced gradients (stage 0)
  std::int64_t islands_numel = 0;    ///< fp32 values of the other islands (zerotorch.local_steps)
  std::int64_t whole_numel = 0;      ///< fp32 values of tensors that Muon and Adafactor bring together, and back
  std::int64_t control_nbytes = 0;   ///< norms and order checks
  std::int64_t received_nbytes = 0;  ///< all of these, in the dtypes and formats in which they travel
  std::int64_t peak_live_numel = 0;  ///< most parameters gathered at once (stage 3, copying store)
  std::int64_t gathers = 0;
  std::int64_t prefetched_gathers = 0;     ///< gathers begun before they were needed
  std::int64_t prefetch_window_numel = 0;  ///< most elements to gather ahead of use, last choice
  std::int64_t reductions = 0;
  /// Bytes copied inside this process: gradients from autograd into buckets, and copies that a gather makes besides
  /// receiving.
  std::int64_t copied_nbytes = 0;

  std::int64_t total_numel() const {
    return gathered_numel + reduced_numel + published_numel + whole_numel + islands_numel;
  }
  std::string to_string() const;
};

/// How much gradients of micro-batches differ, of one update (McCandlish and others, "An Empirical Model of Large-Batch
/// Training", 2018, appendix A). Of one update these are rough: average noise() and signal() over many before dividing.
struct GradientNoise {
  std::int64_t micro_batches = 0;  ///< of the update, over all ranks; at least 2
  double micro_batch_sumsq = 0;    ///< squared norm of a micro-batch's gradient, mean over them
  double batch_sumsq = 0;          ///< squared norm of their mean, before clipping

  /// Trace of the covariance of a micro-batch's gradient, without bias.
  double noise() const {
    const auto n = static_cast<double>(micro_batches);
    return (micro_batch_sumsq - batch_sumsq) * n / (n - 1);
  }
  /// Squared norm of the true gradient, without bias; may be below 0 where noise prevails.
  double signal() const {
    const auto n = static_cast<double>(micro_batches);
    return (n * batch_sumsq - micro_batch_sumsq) / (n - 1);
  }
};

/// Of the gradients of a unit.
struct UnitNorm {
  std::string name;
  double norm = 0;
};

/// Traffic between memory and disk on this rank since initialize(), of states, parameters and sums of gradients with
/// device "nvme" (zero_optimization.offload_optimizer, offload_param, zerotorch.offload_gradients); zeros without. The
/// last pieces of states are written after a step ends.
struct OffloadReport {
  std::int64_t reserved_nbytes = 0;  ///< reserved on disk; a step reads and writes as much of states, and each
                                     ///< micro-batch of sums of gradients
  std::int64_t read_nbytes = 0, written_nbytes = 0;
  double waited_seconds = 0;  ///< time in which updates waited for the disk
  /// Updates that began in backward before gradients were known to be finite and small enough, and were kept, or undone
  /// (zerotorch.update).
  std::int64_t updates_kept = 0, updates_undone = 0;
};

/// Where the time of the last micro-batches and step went, in seconds of this rank.
struct StepBreakdown {
  double gradient_copy = 0;  ///< autograd's gradient into its bucket
  double reduce = 0;         ///< ordered sums onto this rank's shard; also those in the progress thread
  double gather = 0;         ///< waiting for gathered parameters
  double wait = 0;           ///< waiting for other ranks' gradients
  double norm = 0;
  double update = 0;
  double publish = 0;
  double islands = 0;  ///< exchange with the other islands (zerotorch.local_steps)
  double total() const { return gradient_copy + reduce + gather + wait + norm + update + publish + islands; }
};

/// Completed calls of one kind of collective and message size since initialize(), on this rank. Recorded with
/// comms_logger.enabled.
struct CollectiveRecord {
  std::string group;      ///< "data-parallel", "model-parallel", "within a host", "between hosts"
  int ranks = 1;          ///< of that group
  std::string operation;  ///< "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"
  /// A fetch of parameters, for which other ranks make no call.
  bool one_sided = false;
  std::string label;        ///< with comms_logger.debug; else empty
  std::int64_t nbytes = 0;  ///< of one call: all ranks' slices (gather, reduce-scatter), or the tensor
  std::int64_t calls = 0;
  /// Seconds from call to completion, including the wait for slower ranks and, for calls made ahead of need, the
  /// computation in between.
  double seconds = 0;
  double moving_seconds = 0;  ///< part of `seconds` in which data moved; not measured for all kinds

  /// nbytes over the mean time of a call, in bytes per second; 0 if nothing moves.
  double algorithm_bandwidth() const;
  /// The algorithm bandwidth per link, independent of the number of ranks n: times (n-1)/n for a gather and a
  /// reduce-scatter, twice that for an all-reduce.
  double bus_bandwidth() const;
};

/// How unevenly the ranks entered calls that wait for all of them: over the last 256 calls of each kind, label and
/// size.
struct StragglerRecord {
  std::string group, operation, label;
  std::int64_t nbytes = 0;
  std::int64_t calls = 0;            ///< calls compared
  double communication_seconds = 0;  ///< sum of each call's shortest time, that of the rank that came last
  double straggler_seconds = 0;      ///< sum of the time beyond that, mean over the ranks
  int slowest_rank = 0;              ///< the rank that waited least for the others
  int fastest_rank = 0;              ///< the rank that waited most for the others
  double most_seconds = 0;           ///< total time that fastest_rank waited
};

struct CommsSummary {
  std::vector<CollectiveRecord> records;    ///< this rank's
  std::vector<StragglerRecord> stragglers;  ///< the same on every rank
  std::string to_string() const;
};

/// One module, including its submodules.
struct ModuleFlops {
  std::string name;  ///< name in the model; empty: the whole model
  std::string type;  ///< C++ name of its class; empty for an engine of a ModelView
  int depth = 0;     ///< 0 for the model
  std::int64_t parameters = 0;
  std::int64_t forward_flops = 0, backward_flops = 0;
};

/// FLOPs of the operators of one optimizer step on this rank, with flops_profiler.enabled: matrix products,
/// convolutions and attention, two FLOPs per multiply-add.
struct FlopsReport {
  std::int64_t step = -1;  ///< optimizer steps before the profiled one; -1: not profiled yet
  std::int64_t micro_batches = 0;
  std::int64_t parameters = 0;
  std::int64_t forward_flops = 0, backward_flops = 0;  ///< of all micro-batches
  double forward_seconds = 0, backward_seconds = 0;
  double step_seconds = 0;  ///< from the first use of a parameter to the end of step()
  /// Measured on a 1024 x 1024 matrix product in the parameters' dtype, right after the step, with this rank's threads
  /// while the other ranks do the same.
  double peak_flops_per_second = 0;
  std::vector<ModuleFlops> modules;                 ///< the module tree, each module before its submodules
  std::map<std::string, std::int64_t> by_operator;  ///< "addmm"

  /// "Model FLOPs utilization": FLOPs over step_seconds, as a fraction of the peak.
  double utilization() const;
  /// `depth`: levels of the tree, -1: all; `top`: modules per level; `detailed`: prints the tree.
  std::string to_string(std::int64_t depth = -1, std::int64_t top = 1, bool detailed = true) const;
};

}  // namespace zero
