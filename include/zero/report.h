#pragma once
// What the engine tells about communication and time.
#include <cstdint>
#include <string>

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

}  // namespace zero
