#pragma once
// What the engine tells about communication and time.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zero {

/// Elements this rank received over the group since initialize() (what it sent is the same when shards are
/// equal). Summed over ranks and divided by their number, one step without accumulation receives
///   stages 0-2             2 * Psi * (N-1)/N
///   stage 3, copying store 3 * Psi * (N-1)/N   (2 gathers, 1 reduction)
///   stage 3, node-shared   1 * Psi * (N-1)/N   (gathers are pointers), and on H hosts Psi * (H-1)/N
///   published
/// with Psi = padded_numel, exactly, but that a unit still gathered when it is used again (the last of
/// forward is the first of backward) is not gathered twice; every further micro-batch of a step adds one
/// reduction (and the gathers of stage 3).
struct CommunicationReport {
  int world_size = 1;
  std::int64_t parameters_numel = 0;  ///< trainable and frozen, without padding
  std::int64_t padded_numel = 0;      ///< the same as laid out, in whole blocks
  std::int64_t gathered_numel = 0;    ///< parameters gathered before use (stage 3)
  std::int64_t reduced_numel = 0;     ///< gradient slices of other ranks, for my shard
  std::int64_t published_numel =
      0;  ///< updated parameters (stages 1-2; node-shared: of other hosts) or reduced gradients (stage 0)
  std::int64_t control_nbytes = 0;   ///< norms and order checks
  std::int64_t received_nbytes = 0;  ///< all of these, in the dtypes in which they travel
  std::int64_t peak_live_numel = 0;  ///< most parameters gathered at once (stage 3, copying store)
  std::int64_t gathers = 0;
  std::int64_t prefetched_gathers = 0;     ///< of these, begun before they were needed
  std::int64_t prefetch_window_numel = 0;  ///< most elements gathered ahead of use, as chosen last
  std::int64_t reductions = 0;
  /// Bytes moved inside this process on the way: gradients from autograd into buckets, and what a gather
  /// copies besides receiving it.
  std::int64_t copied_nbytes = 0;

  std::int64_t total_numel() const { return gathered_numel + reduced_numel + published_numel; }
  std::string to_string() const;
};

/// What has moved between memory and the disk on this rank since initialize(), with
/// zero_optimization.offload_optimizer.device "nvme"; zeros without it. The last pieces of a step are written later.
struct OffloadReport {
  std::int64_t reserved_nbytes = 0;  ///< of the disk: what a step reads, and writes
  std::int64_t read_nbytes = 0, written_nbytes = 0;
  double waited_seconds = 0;  ///< in which an update could not go on
};

/// Where the time of the last micro-batches and step went, in seconds of this rank.
struct StepBreakdown {
  double gradient_copy = 0;  ///< autograd's gradient into its bucket
  double reduce = 0;         ///< ordered sums onto the own shard; by the progress thread where there is one
  double gather = 0;         ///< waiting for gathered parameters
  double wait = 0;           ///< waiting for other ranks' gradients
  double norm = 0;
  double update = 0;
  double publish = 0;
  double total() const { return gradient_copy + reduce + gather + wait + norm + update + publish; }
};

/// Calls of one kind of collective with one message size that ended since initialize(), on this rank. Recorded with
/// comms_logger.enabled.
struct CollectiveRecord {
  std::string group;      ///< "data-parallel", "model-parallel", "within a host", "between hosts"
  int ranks = 1;          ///< of that group
  std::string operation;  ///< "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"
  /// A fetch of parameters, which other ranks have no call for.
  bool one_sided = false;
  std::string label;        ///< with comms_logger.debug; else empty
  std::int64_t nbytes = 0;  ///< of one call: all ranks' slices (gather, reduce-scatter), or the tensor
  std::int64_t calls = 0;
  /// From the calls to their ends, in seconds: with what waiting for slower ranks took, and computation in between
  /// where a call was made ahead of need.
  double seconds = 0;
  double moving_seconds = 0;  ///< of these, in which data moved; not measured for all kinds

  /// nbytes over the mean time of a call, in bytes a second; 0 where nothing moves.
  double algorithm_bandwidth() const;
  /// What that is for a link, whatever the number of ranks n: times (n-1)/n for a gather and a reduce-scatter, twice
  /// that for an all-reduce.
  double bus_bandwidth() const;
};

/// How unevenly the ranks came to calls that wait for all of them: the last 256 of each kind, label and size.
struct StragglerRecord {
  std::string group, operation, label;
  std::int64_t nbytes = 0;
  std::int64_t calls = 0;            ///< compared
  double communication_seconds = 0;  ///< sum of the calls' shortest times over the ranks: of who came last
  double straggler_seconds = 0;      ///< sum of what the others took longer, mean over the ranks
  int slowest_rank = 0;              ///< waited least for the others
  int fastest_rank = 0;              ///< waited most for the others
  double most_seconds = 0;           ///< so long, in all
};

struct CommsSummary {
  std::vector<CollectiveRecord> records;    ///< of this rank
  std::vector<StragglerRecord> stragglers;  ///< the same on every rank
  std::string to_string() const;
};

/// One module, with the modules in it.
struct ModuleFlops {
  std::string name;  ///< in the model; empty: all of it
  std::string type;  ///< C++ name of its class; empty for an engine of a ModelView
  int depth = 0;     ///< of the model 0
  std::int64_t parameters = 0;
  std::int64_t forward_flops = 0, backward_flops = 0;
};

/// What the operators of one optimizer step have computed on this rank, with flops_profiler.enabled: matrix products,
/// convolutions and attention, two FLOPs for each product that is added.
struct FlopsReport {
  std::int64_t step = -1;  ///< optimizer steps before it; -1: it has not come yet
  std::int64_t micro_batches = 0;
  std::int64_t parameters = 0;
  std::int64_t forward_flops = 0, backward_flops = 0;  ///< of all micro-batches
  double forward_seconds = 0, backward_seconds = 0;
  double step_seconds = 0;  ///< from the first use of a parameter to the end of step()
  /// Of a matrix product of 1024 x 1024 in the parameters' dtype, measured right after the step with this rank's
  /// threads while the other ranks did the same.
  double peak_flops_per_second = 0;
  std::vector<ModuleFlops> modules;                 ///< the tree of modules, each before those in it
  std::map<std::string, std::int64_t> by_operator;  ///< "addmm"

  /// "Model FLOPs utilization": FLOPs over step_seconds, as a part of the peak.
  double utilization() const;
  /// `depth`: levels of the tree, -1: all; `top`: so many modules of each level; `detailed`: the tree.
  std::string to_string(std::int64_t depth = -1, std::int64_t top = 1, bool detailed = true) const;
};

}  // namespace zero
