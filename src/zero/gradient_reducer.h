#pragma once
// GradientReducer: takes each parameter's gradient from autograd into a bucket, and adds complete buckets
// onto the fp32 accumulators of their owners in rank order.
//
// Micro-batch i of a step is global: rank r at accumulation step j holds i = j*N + r. The owner adds the
// contributions in that order, so the sum is the same sequence of additions for every N.
//
// A bucket is a range of a unit. Its life: closed -> open (memory taken, gradients arrive) -> sent (other
// ranks read it) -> closed (memory given back). Where gradients are replicated the memory is the bucket's
// own and stays; where they are sharded it comes from a pool.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "zero/buffer_pool.h"
#include "zero/gradient_sums.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

struct ReducerOptions {
  std::int64_t bucket_numel = 500'000'000;  ///< most elements of a bucket
  std::int64_t micro_batches = 1;           ///< of a window; the last one's pass also makes sums of squares
  /// True: reductions are begun when a bucket is complete and finished while backward goes on. False:
  /// backward waits for each.
  bool overlap = true;
  /// Where given: takes the sums of a part of this rank's shard as soon as they are complete, fp32
  /// [range.numel()], and they are not kept. Then there is one backward per window, and no accumulated().
  std::function<void(int unit, Range range, const at::Tensor& sums)> consume;
};

class GradientReducer {
 public:
  GradientReducer(ShardedModel& model, storage::Ledger& ledger, StepBreakdown& times, ReducerOptions options);
  ~GradientReducer();

  /// The part of a trainable `unit` whose accumulated gradient this rank holds: its shard, or all of it
  /// where gradients are needed whole.
  Range gradient_range(int unit) const;

  /// Takes `gradient` of `parameter`. Called by autograd's hook. *Collective order* (begins reductions).
  void add(int parameter, const at::Tensor& gradient);

  /// *Collective order.* Waits for the reductions that are under way.
  void settle() { drain(/*wait_for_all=*/true); }
  /// *Collective.* Parameters without gradient in this micro-batch count as zero; when it returns, all that
  /// arrived is in the accumulators.
  void flush();
  /// *Collective.* flush(), and what arrives from here on belongs to the next micro-batch.
  void finish_micro_batch();

  /// *Collective.* With whole gradients: sends every owner's sums to all ranks. Else nothing.
  void replicate();

  /// fp32, [gradient_range(unit)]: the sum over the window's micro-batches, not averaged.
  at::Tensor accumulated(int unit) const { return sums_.value().view(unit); }
  float* accumulator(int unit) const { return sums_.value().data(unit); }
  /// Sums of squares of this rank's shards, one per block, in unit order. When the window's last micro-batch
  /// is finished.
  const std::vector<double>& shard_block_sumsq() const { return block_sumsq_; }
  /// How many of these rank `rank` has for `unit`.
  std::int64_t shard_blocks(int unit, int rank) const;

  /// The next contribution starts a new sum.
  void start_window();
  /// Sets all sums to zero and the window to one in which `micro_batches` are over: the caller fills them
  /// through accumulated(), and the next contribution adds to them. Local.
  void resume_window(std::int64_t micro_batches);
  /// True when a gradient arrived since the last finish_micro_batch().
  bool micro_batch_has_gradients() const { return any_used_; }
  bool window_is_empty() const { return window_is_empty_; }

  /// Trainable parameters that got no gradient in the last micro-batch.
  const std::vector<int>& unused_parameters() const { return unused_; }

  std::int64_t reduced_numel() const { return reduced_numel_; }
  std::int64_t published_numel() const { return published_numel_; }
  std::int64_t reductions() const { return reductions_; }
  std::int64_t copied_nbytes() const { return copied_nbytes_; }  ///< from autograd into buckets

 private:
  struct Bucket {
    int unit = 0;
    Range range;                       ///< in the unit
    std::vector<int> parameters;       ///< trainable, not empty, overlapping `range`
    std::vector<bool> has;             ///< by position in `parameters`: its gradient is in the open buffer
    std::vector<Range> gaps;           ///< padding, in the unit
    std::vector<std::int64_t> counts;  ///< [N] elements of each rank's shard inside
    std::int64_t block_offset = 0;     ///< of my part, in block_sumsq_
    storage::FlatBuffer* buffer = nullptr;
    int arrived = 0;
    int rounds = 0;  ///< how often it was sent in this micro-batch
    Work work;
  };
  /// A parameter's places in buckets.
  struct Slot {
    struct Place {
      int bucket = 0;
      int position = 0;  ///< in Bucket::parameters
    };
    std::vector<Place> places;
    bool used = false;  ///< got a gradient in this micro-batch
  };

  void make_buckets();
  std::vector<std::int64_t> sums_numel() const;
  std::int64_t largest_piece() const;
  int index_of(const Bucket& bucket) const { return static_cast<int>(&bucket - buckets_.data()); }
  void open(Bucket& bucket);
  void copy_in(Bucket& bucket, int parameter, const at::Tensor& gradient, bool add_to);
  void send(Bucket& bucket);
  void reduce(Bucket& bucket, std::span<const void* const> slices);
  /// Onto the `mine.numel()` accumulators at `sums`.
  void add_slices(Bucket& bucket, Range mine, float* sums, std::span<const void* const> slices, bool first);
  void zero_missing(Bucket& bucket);
  void drain(bool wait_for_all);
  void close(Bucket& bucket);

  ShardedModel& model_;
  StepBreakdown& times_;
  ReducerOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;  ///< by parameter
  std::unique_ptr<BufferPool> pool_;
  std::vector<storage::FlatBuffer> own_buffers_;  ///< by bucket, where gradients are replicated
  std::int64_t pool_limit_numel_ = 0;
  std::optional<GradientSums> sums_;                    ///< unless they are consumed at once
  storage::FlatBuffer piece_;                           ///< then: of one bucket
  std::vector<std::vector<std::int64_t>> unit_counts_;  ///< by unit, where whole sums are sent to all ranks
  std::vector<double> block_sumsq_;
  std::vector<bool> fresh_;  ///< by bucket: nothing accumulated yet in this window
  std::vector<int> sent_;    ///< buckets other ranks may still read, oldest first; a few
  std::vector<int> unused_;
  const int process_;
  std::int64_t finished_micro_batches_ = 0;  ///< of the window
  bool window_is_empty_ = true;
  bool any_used_ = false;
  std::int64_t reduced_numel_ = 0;
  std::int64_t published_numel_ = 0;
  std::int64_t reductions_ = 0;
  std::int64_t copied_nbytes_ = 0;
};

}  // namespace zero::sharding
