#pragma once
// GradientReducer: takes each parameter's gradient from autograd into a bucket, and adds complete buckets
// onto the accumulators of their owners in rank order.
//
// Micro-batch i of a step is global: rank r at accumulation step j holds i = j*N + r. The owner adds the
// contributions in that order, so the sum is the same sequence of additions for every N.
//
// A bucket is a range of a unit; layout/bucket_schedule.h says when it is opened, sent and closed. Other ranks
// send the same buckets in any order, with zeros for parameters that they did not use (comm/transport.h). Where
// gradients are replicated a bucket's memory is its own and stays; where they are sharded it comes from a pool.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport.h"
#include "layout/bucket_schedule.h"
#include "zero/buffer_pool.h"
#include "zero/gradient_sums.h"
#include "zero/micro_batch_agreement.h"
#include "zero/row_gradients.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

struct ReducerOptions {
  std::int64_t bucket_numel = 500'000'000;  ///< most elements of a bucket
  /// Asked when a micro-batch begins here: it is the window's last, whose passes also make sums of squares. Not given:
  /// each is. An answer that turns out wrong costs a pass more.
  std::function<bool()> is_last_micro_batch;
  /// True: reductions are begun when a bucket is complete and finished while backward goes on. False:
  /// backward waits for each.
  bool overlap = true;
  /// Where given: takes the sums of a part of this rank's shard as soon as they are complete,
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

  /// Takes `gradient` of `parameter`, of any layout and strides. Called by autograd's hook. Local.
  void add(int parameter, const at::Tensor& gradient);

  /// A backward begins: what it adds can be taken back as long as nothing of it was sent. Local.
  void begin_backward();
  /// The backward has failed: takes back what it added. False when some of that is in the sums. Local.
  bool undo_backward();

  /// Waits for the reductions that are under way. Needs the other ranks to send theirs.
  void quiesce();
  /// *Collective.* Parameters without gradient count as zero; when it returns, all that arrived on any rank is in
  /// the accumulators. `label` and the facts: see MicroBatchAgreement.
  const MicroBatchAgreement& flush(std::string_view label, MicroBatchAgreement::Facts facts = {});
  /// *Collective.* flush(), and what arrives from here on belongs to the next micro-batch. Without any gradient it is
  /// one of zeros, or with `may_be_none` none.
  const MicroBatchAgreement& finish_micro_batch(MicroBatchAgreement::Facts facts, bool may_be_none = false);
  /// *Collective.* Takes back all that has arrived in this window, on any rank.
  void drop_window();

  /// *Collective.* With whole gradients: sends every owner's sums to all ranks. Else nothing.
  void replicate();

  /// Of ShardedModel::sum_dtype, [gradient_range(unit)]: the sum over the window's micro-batches, not
  /// averaged.
  at::Tensor accumulated(int unit) const { return sums_.value().view(unit); }
  void* accumulator(int unit) const { return sums_.value().data(unit); }
  /// Sums of squares of this rank's shards, one per block, in unit order. After complete_sumsq().
  const std::vector<double>& shard_block_sumsq() const { return block_sumsq_; }
  /// The window is over: makes the sums of squares, where the passes of its last micro-batch have not. Local.
  void complete_sumsq() {
    if (!sumsq_complete_) refresh_sumsq();
  }
  /// Multiplies this rank's sums of every unit; sums of squares follow. Local.
  void scale_sums(double factor);
  /// The first parameter with a sum that is not finite in this rank's shard, once a window's sums of squares are made.
  /// Local.
  std::optional<int> first_not_finite() const;
  /// After accumulated() was written to: sums of squares follow. Local.
  void refresh_sumsq();
  /// How many of these rank `rank` has for `unit`.
  std::int64_t shard_blocks(int unit, int rank) const;

  /// The next contribution starts a new sum.
  void start_window();
  /// Sets all sums to zero and the window to one of which micro-batches are over: the caller fills them
  /// through accumulated(), and the next contribution adds to them. Local.
  void resume_window();
  /// True when a gradient arrived since the last finish_micro_batch().
  bool micro_batch_has_gradients() const { return !schedule_.micro_batch_is_empty() || (rows_ && !rows_->empty()); }
  bool window_is_empty() const { return window_is_empty_; }

  /// A parameter whose gradient will not come (it is frozen for now) is not waited for. Between micro-batches.
  void expect(int parameter, bool expected) { schedule_.expect(parameter, expected); }
  bool expected(int parameter) const { return schedule_.expected(parameter); }
  /// Units that were frozen get buckets and sums. *Collective.* Between micro-batches.
  void add_units(std::span<const int> units);

  /// True when a rank has used `parameter` in this window, as far as is known: a parameter of a bucket that is
  /// reduced, or any after finish_micro_batch(). Also in finish steps.
  bool used_in_window(int parameter) const { return used_[parameter] || window_used_[parameter]; }
  /// Expected parameters that got no gradient on any rank in the last micro-batch.
  const std::vector<int>& unused_parameters() const { return unused_; }
  /// A gradient that the program gave. Local.
  void count_as_used(int parameter) { window_used_[parameter] = 1; }
  /// One that it gave on this rank, of a part; the other ranks learn of it at the micro-batch's end. Local.
  void count_as_used_here(int parameter) { used_[parameter] = 1; }
  /// Of a window that goes on from a checkpoint.
  void set_unused_in_window(int parameter) { window_used_[parameter] = 0; }
  /// Every trainable unit has sums, of zeros where nothing has arrived since they were dropped. Local.
  void hold_sums();
  const MicroBatchAgreement& agreement() const { return agreement_; }

  std::int64_t reduced_numel() const { return reduced_numel_ + (rows_ ? rows_->received_numel() : 0); }
  std::int64_t published_numel() const { return published_numel_; }
  std::int64_t reductions() const { return reductions_; }
  std::int64_t copied_nbytes() const { return copied_nbytes_; }  ///< from autograd into buckets

 private:
  struct Bucket {
    int unit = 0;
    Range range;                                 ///< in the unit
    std::vector<Range> gaps;                     ///< padding, in the unit
    std::vector<std::int64_t> counts;            ///< [N] elements of each rank's shard inside
    std::int64_t block_offset = 0;               ///< of my part, in block_sumsq_
    bool fresh = true;                           ///< nothing accumulated yet in this window
    storage::FlatBuffer own, spare;              ///< where gradients are replicated; spare: for a second round
    storage::FlatBuffer* buffer = nullptr;       ///< of the open round
    storage::FlatBuffer* sent_buffer = nullptr;  ///< other ranks may still read it
    Work work;                                   ///< of what was sent
  };
  /// A parameter's places in buckets.
  struct Place {
    int bucket = 0;
    int position = 0;  ///< in schedule_.parameters(bucket)
  };

  void make_buckets();
  void make_memory();
  storage::FlatBuffer make_buffer(std::int64_t numel);
  std::vector<std::int64_t> sums_numel() const;
  std::int64_t largest_piece() const;
  int index_of(const Bucket& bucket) const { return static_cast<int>(&bucket - buckets_.data()); }
  void open(Bucket& bucket);
  std::chrono::milliseconds patience() const;
  void adjust_patience();  ///< at the end of a micro-batch
  /// True when its reduction is complete, after patience() at most.
  bool wait_a_while(Bucket& bucket);
  void take_from_pool(Bucket& bucket);
  void add_dense(int parameter, const at::Tensor& gradient);
  void add_rows(int parameter, std::span<const RowGradients::RankRows> by_rank);
  /// True when something of it is in a bucket in this micro-batch, or was sent.
  bool is_in_buckets(int parameter) const;
  void begin_micro_batch();
  void copy_in(Bucket& bucket, int parameter, const at::Tensor& gradient, bool add_to);
  void send(Bucket& bucket);
  /// Sends buckets, with zeros where nothing has arrived, until each was sent `rounds` times (or as often as a
  /// rank wants).
  void even_out(std::int64_t rounds);
  void reduce(Bucket& bucket, std::span<const void* const> slices);
  /// Where the sums of `mine`, of bucket.unit, lie.
  void* sums_of(const Bucket& bucket, Range mine) const;
  /// Onto the `mine.numel()` accumulators at `sums`.
  void add_slices(const Bucket& bucket, Range mine, void* sums, std::span<const void* const> slices, bool first);
  void zero_missing(Bucket& bucket);
  /// Retires buckets whose reductions are complete.
  void retire_complete();
  bool may_send(Bucket& bucket);
  /// What was sent is reduced: its memory is free.
  void retire(Bucket& bucket);

  ShardedModel& model_;
  StepBreakdown& times_;
  ReducerOptions options_;
  storage::Ledger& ledger_;
  std::vector<Bucket> buckets_;
  layout::BucketSchedule schedule_;
  std::vector<std::vector<Place>> places_;  ///< by parameter
  std::optional<RowGradients> rows_;        ///< unless sums are consumed at once
  std::shared_ptr<comm::ExchangeBoard> board_;
  std::unique_ptr<BufferPool> pool_;
  std::int64_t pool_limit_numel_ = 0;
  bool agreed_routed_ = false;  ///< all ranks know that they use different parameters
  bool routed_ = false;         ///< ranks were seen to use different parameters
  bool impatient_ = false;      ///< waiting was in vain in this micro-batch
  std::chrono::milliseconds patience_{100};
  std::optional<GradientSums> sums_;                    ///< unless they are consumed at once
  storage::FlatBuffer piece_;                           ///< then: of one bucket
  std::vector<std::vector<std::int64_t>> unit_counts_;  ///< by unit, where whole sums are sent to all ranks
  std::vector<double> block_sumsq_;
  std::vector<int> sent_;  ///< buckets other ranks may still read, oldest first; a few
  MicroBatchAgreement agreement_;
  std::vector<std::uint8_t> used_;         ///< by parameter: has a gradient here in this micro-batch
  std::vector<int> used_in_backward_;      ///< of these, since begin_backward()
  std::vector<std::uint8_t> window_used_;  ///< by parameter: had one on any rank in this window
  std::vector<int> unused_;
  const int process_;
  bool makes_sumsq_ = true;      ///< in the passes of this micro-batch
  bool sumsq_complete_ = false;  ///< made by all passes of the last one
  bool window_is_empty_ = true;
  std::int64_t reduced_numel_ = 0;
  std::int64_t published_numel_ = 0;
  std::int64_t reductions_ = 0;
  std::int64_t copied_nbytes_ = 0;
};

}  // namespace zero::sharding
