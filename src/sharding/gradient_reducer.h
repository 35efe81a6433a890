#pragma once
// GradientReducer: copies each parameter's gradient from autograd into a bucket, and adds complete buckets to their
// owners' accumulators in rank order.
//
// Micro-batch i of a step is global: rank r at accumulation step j holds i = j*N + r. The owner adds contributions in
// that order, so the sum is the same sequence of additions for every N.
//
// A bucket is a range of a unit; layout/bucket_schedule.h decides when it is opened, sent and closed. Ranks send the
// same buckets in any order, with zeros for parameters that they did not use (comm/transport.h). With replicated
// gradients every bucket owns its memory permanently; with sharded gradients buckets take it from a pool. Of one rank
// alone the first gradients of a window come straight into the sums, if these are of their dtype.
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/transport.h"
#include "device/device_stream.h"
#include "layout/bucket_schedule.h"
#include "sharding/buffer_pool.h"
#include "sharding/gradient_sums.h"
#include "sharding/gradient_wire.h"
#include "sharding/micro_batch_agreement.h"
#include "sharding/row_gradients.h"
#include "sharding/sharded_model.h"
#include "sharding/timeline.h"

namespace zero::sharding {

struct ReducerOptions {
  std::int64_t bucket_numel = 500'000'000;  ///< most elements of a bucket
  /// True: a reduction starts when its bucket is complete and finishes while backward continues. False: backward waits
  /// for each reduction.
  bool overlap = true;
  /// The form in which gradients are sent; not given: as they are.
  std::optional<Wire> wire;
  /// Gradients of so many consecutive ranks are added before these sums are.
  int sum_block = 1;
  /// Where sums are on disk; not given: in memory. `cuts.slot_numel`: most elements of a piece.
  std::optional<offload::DiskOptions> disk;
  /// One rank, of whose window one micro-batch is all: until more comes, a sum is the gradient itself, and is kept in
  /// ShardedModel::gradient_dtype, whose values sum_dtype has. Not with `disk`.
  bool sums_are_gradients = false;
  /// Sums are in memory that an accelerator copies from, and stays.
  bool copied_by_device = false;
  /// 2: there are two sets of sums, and hand_over_sums() may be called.
  int sets_of_sums = 1;
  /// False: the listener uses sums as soon as they are complete. Only one backward per window is then possible, and
  /// there is no accumulated().
  bool keeps_sums = true;
};

/// Hears of sums of gradients while a reducer makes them, in its threads, too.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Those of a part of this rank's shard are complete, unless more gradients come. `sums`: [range.numel()], valid
  /// during the call, where the reducer keeps none; else undefined.
  virtual void gradients_ready(int /*unit*/, Range /*range*/, const at::Tensor& /*sums*/) {}
  /// Before sums of a unit change.
  virtual void gradients_change(int /*unit*/) {}
};

class GradientReducer {
 public:
  GradientReducer(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline, ReducerOptions options);
  ~GradientReducer();

  /// Outlives the reducer. Without one nobody is told. Before gradients come.
  void set_listener(GradientListener& listener) { listener_ = &listener; }
  /// Whether micro-batches from the next one on are the last of their window: their passes also compute sums of
  /// squares. A wrong answer costs an extra pass. At first they are.
  void expect_last_micro_batch(bool is_last) { expects_last_ = is_last; }

  /// The part of a trainable `unit` whose accumulated gradient this rank holds: its shard, or the whole unit if every
  /// rank needs the whole gradient.
  Range gradient_range(int unit) const;

  /// Takes `gradient` of `parameter`, of any layout and strides. Called by autograd's hook. Local.
  void add(int parameter, const at::Tensor& gradient);

  /// Begins a backward; undo_backward() can take back what it adds until any of it is sent. Local.
  void begin_backward();
  /// Takes back what the failed backward added. False if some of that was already sent or summed. Local.
  bool undo_backward();

  /// Waits for pending reductions. Needs the other ranks to send theirs.
  void quiesce();
  /// *Collective.* Treats parameters without a gradient as zero and returns when all gradients that arrived on any rank
  /// are in the accumulators. For `label` and the facts see MicroBatchAgreement.
  const MicroBatchAgreement& flush(std::string_view label, MicroBatchAgreement::Facts facts = {});
  /// *Collective.* flush(); gradients from now on belong to the next micro-batch. A micro-batch without any gradient
  /// counts as one of zeros, or with `may_be_none` as none.
  const MicroBatchAgreement& finish_micro_batch(MicroBatchAgreement::Facts facts, bool may_be_none = false);
  /// *Collective.* Drops all gradients that arrived in this window on any rank.
  void drop_window();

  /// *Collective.* With replicated gradients: sends every owner's sums to all ranks. Otherwise does nothing.
  void replicate();

  /// The sums over the window's micro-batches, not averaged, of a part of gradient_range(unit), from begin to end:
  /// [piece.numel()] each, valid during the call, of sums().dtype(), which is ShardedModel::sum_dtype where they are
  /// updated. Local. Throws IoError.
  void visit_sums(int unit, Range range, GradientSums::Access access, GradientSums::Visit visit);
  /// The same as one tensor: a copy where they are on disk, else a view.
  at::Tensor accumulated(int unit, Range range) const;
  GradientSums& sums() { return *sums_; }
  const GradientSums& sums() const { return *sums_; }
  /// All sums of a unit; null where they are on disk.
  void* accumulator(int unit) const { return sums_->in_memory(unit); }
  /// Traffic of sums between memory and disk so far; nullopt where they are in memory.
  std::optional<offload::DiskTraffic> disk_traffic() const;
  /// Describes the disk, for the log; empty without one.
  std::string disk_description() const { return sums_ ? sums_->disk_description() : std::string(); }
  /// Sums of squares of this rank's shards, one per block, in unit order. Valid after complete_sumsq().
  std::span<const double> shard_block_sumsq() const {
    return {block_sumsq_.const_data_ptr<double>(), static_cast<std::size_t>(block_sumsq_.numel())};
  }
  /// Ends the window: computes the sums of squares if the passes of its last micro-batch did not, and brings them from
  /// a device, which it waits for. Local.
  void complete_sumsq();
  /// Multiplies this rank's sums of every unit and updates the sums of squares. Local.
  void scale_sums(double factor);
  /// The first parameter with a sum that is not finite in this rank's shard; call it after complete_sumsq(). Local.
  std::optional<int> first_not_finite() const;
  /// Recomputes the sums of squares; call it after accumulated() was written to. Local.
  void refresh_sumsq();
  /// The number of these blocks that rank `rank` has for `unit`.
  std::int64_t shard_blocks(int unit, int rank) const;

  /// The next contribution starts a new sum.
  void start_window();
  /// Before start_window(): the window's sums, which the caller release()s when it has used them. Until then it may not
  /// be called again. From here on this has the other set, of no window. Local.
  GradientSums& hand_over_sums();
  /// Sets all sums to zero and the window to one of which so many micro-batches of this rank are over: the caller fills
  /// them through accumulated(), and the next contribution adds to them. Local.
  void resume_window(std::int64_t micro_batches);
  /// True when a gradient arrived since the last finish_micro_batch().
  bool micro_batch_has_gradients() const { return !schedule_.micro_batch_is_empty() || (rows_ && !rows_->empty()); }
  bool window_is_empty() const { return window_is_empty_; }
  /// What was lost in sending is not made up for in what is sent from here on. Between micro-batches. Local.
  void forget_errors() { wire_->forget_errors(); }

  /// Whether to wait for a parameter's gradient: false while it is frozen. Call between micro-batches.
  void expect(int parameter, bool expected) { schedule_.expect(parameter, expected); }
  bool expected(int parameter) const { return schedule_.expected(parameter); }
  /// Creates buckets and sums for units that were frozen until now. Call between micro-batches. *Collective.*
  void add_units(std::span<const int> units);

  /// True when a rank is known to have used `parameter` in this window. Known for a parameter of a bucket that is
  /// reduced, and for any parameter after finish_micro_batch(). Also callable in finish steps.
  bool used_in_window(int parameter) const { return used_[parameter] || window_used_[parameter]; }
  /// Expected parameters that received no gradient on any rank in the last micro-batch.
  const std::vector<int>& unused_parameters() const { return unused_; }
  /// Counts a gradient that the program set. Local.
  void count_as_used(int parameter) { window_used_[parameter] = 1; }
  /// Counts a gradient that the program set on this rank for a part; the other ranks learn of it at the end of the
  /// micro-batch. Local.
  void count_as_used_here(int parameter) { used_[parameter] = 1; }
  /// Marks a parameter as unused, in a window restored from a checkpoint.
  void set_unused_in_window(int parameter) { window_used_[parameter] = 0; }
  /// Gives every trainable unit sums if the window is empty: zeros, to which later gradients are added. Local.
  void hold_sums();
  const MicroBatchAgreement& agreement() const { return agreement_; }

  std::int64_t reduced_numel() const {
    return reduced_numel_ + host_sums_numel_ + (rows_ ? rows_->received_numel() : 0);
  }
  std::int64_t reduced_nbytes() const;  ///< the same, as they are sent
  std::int64_t published_numel() const { return published_numel_; }
  /// The ranks of a host add their gradients before anything is sent to another host.
  bool sums_on_hosts() const { return board_ && board_->sums_on_hosts(); }
  std::int64_t reductions() const { return reductions_; }
  std::int64_t copied_nbytes() const { return copied_nbytes_; }  ///< from autograd into buckets

 private:
  struct Bucket {
    int unit = 0;
    Range range;                                 ///< in the unit
    std::vector<Range> gaps;                     ///< padding, in the unit
    std::vector<std::int64_t> counts;            ///< [N] elements of each rank's shard inside
    std::int64_t block_offset = 0;               ///< of this rank's part, in block_sumsq_
    bool fresh = true;                           ///< nothing accumulated yet in this window
    storage::FlatBuffer own, spare;              ///< with replicated gradients; spare: for a second round
    storage::FlatBuffer in_sums;                 ///< its place there, while `buffer` or `sent_buffer` is that
    storage::FlatBuffer* buffer = nullptr;       ///< of the open round
    storage::FlatBuffer* sent_buffer = nullptr;  ///< other ranks may still read it
    Work work;                                   ///< the pending reduction
    std::vector<SentErrors> errors;              ///< by micro-batch of a window
    std::vector<at::Tensor> coming;              ///< gradients that are being copied from an accelerator
    std::optional<c10::Event> arrived;           ///< over when they are here
  };
  /// A parameter's place in one bucket.
  struct Place {
    int bucket = 0;
    int position = 0;  ///< in schedule_.parameters(bucket)
  };

  void make_buckets();
  void make_memory();
  storage::FlatBuffer make_buffer(std::int64_t numel);
  std::unique_ptr<GradientSums> make_sums();
  /// The bucket's place in sums that its first gradients may be written to; null: they may not. Takes memory for them.
  void* place_in_sums(const Bucket& bucket);
  /// Before sums get what their dtype may not hold.
  void widen_sums();
  std::vector<Range> held_ranges() const;
  std::int64_t largest_piece() const;
  int index_of(const Bucket& bucket) const { return static_cast<int>(&bucket - buckets_.data()); }
  void open(Bucket& bucket);
  double patience_seconds() const;
  void adjust_patience();  ///< at the end of a micro-batch
  /// Waits up to patience_seconds(); true when the bucket's reduction is complete.
  bool wait_a_while(Bucket& bucket);
  void take_from_pool(Bucket& bucket);
  /// Retires sent buckets, waiting for them a while each, as long as `is_full()`.
  template <class IsFull>
  void make_room(const Bucket& bucket, IsFull is_full);
  /// What is sent of the bucket's gradients is in sent_buffer.
  void pack(Bucket& bucket);
  void add_dense(int parameter, const at::Tensor& gradient);
  void add_rows(int parameter, std::span<const RowGradients::RankRows> in_order);
  /// True when part of the parameter is in a bucket in this micro-batch, or was sent.
  bool is_in_buckets(int parameter) const;
  void begin_micro_batch();
  /// What this thread's stream is given from here on comes after what the reducer has been given before in others.
  void follow_streams();
  void copy_in(Bucket& bucket, int parameter, const at::Tensor& gradient, bool add_to);
  /// The same of a flat part of a gradient on another device, which goes on while it is copied.
  void copy_from_device(Bucket& bucket, const at::Tensor& part, const at::Tensor& place, bool add_to);
  /// Returns when what is being copied into the bucket is there.
  void wait_for_copies(Bucket& bucket);
  void send(Bucket& bucket);
  /// Sends a bucket that is complete, and here.
  void post(Bucket& bucket);
  /// Posts the buckets that wait for copies: those whose copies are over, or all of them.
  void post_arrived(bool all);
  /// Sends buckets, with zeros where nothing has arrived, until each was sent `rounds` times (or as often as some rank
  /// wants).
  void even_out(std::int64_t rounds);
  void reduce(Bucket& bucket, std::span<const void* const> slices);
  /// This rank's part of it.
  Range mine_of(const Bucket& bucket) const;
  /// Room for the sums of squares of so many blocks.
  void make_sumsq(std::int64_t blocks);
  /// Where the sums of squares go of a part of the bucket that begins at `begin` of the unit.
  double* block_sumsq_at(const Bucket& bucket, std::int64_t begin);
  /// Adds the slices, which begin where this rank's part does, to the `piece.numel()` accumulators at `sums`; without
  /// slices these have all of the sum.
  void add_slices(const Bucket& bucket, Range piece, Sums sums, std::span<const void* const> slices, bool first);
  void zero_missing(Bucket& bucket);
  /// Counts what this rank gets for its part of a bucket that is posted.
  void count_received(const Bucket& bucket);
  /// Retires buckets whose reductions are complete.
  void retire_complete();
  bool may_send(const Bucket& bucket) const;
  void retire_if_complete(Bucket& bucket);
  /// Frees the memory of a bucket that is reduced.
  void retire(Bucket& bucket);

  ShardedModel& model_;
  Timeline& timeline_;
  ReducerOptions options_;
  storage::Ledger& ledger_;
  GradientListener* listener_;
  std::unique_ptr<GradientWire> wire_;
  std::size_t micro_batch_ = 0;  ///< of the window
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
  double most_patience_seconds_ = std::numeric_limits<double>::infinity();
  double gradients_began_ = 0;                          ///< of this micro-batch, base::seconds_now()
  std::unique_ptr<GradientSums> sums_;                  ///< unless they are consumed at once
  std::unique_ptr<GradientSums> other_sums_;            ///< where sums are handed over
  storage::FlatBuffer piece_;                           ///< if sums are consumed at once: those of one bucket
  std::vector<std::vector<std::int64_t>> unit_counts_;  ///< by unit; only if whole sums are sent to all ranks
  at::Tensor block_sumsq_;                              ///< [blocks] of fp64, in host memory
  at::Tensor device_sumsq_;                             ///< where sums are on a device: what its passes write
  std::vector<int> sent_;                               ///< buckets other ranks may still read, oldest first; a few
  std::optional<device::DeviceStream> from_device_;     ///< if gradients arise on another device
  std::optional<c10::Stream> last_stream_;              ///< that has worked here, on an accelerator
  std::vector<int> on_their_way_;                       ///< buckets to post when their copies are over, oldest first
  MicroBatchAgreement agreement_;
  std::vector<std::uint8_t> used_;         ///< by parameter: has a gradient here in this micro-batch
  std::vector<int> used_in_backward_;      ///< those since begin_backward()
  std::vector<std::uint8_t> window_used_;  ///< by parameter: had one on any rank in this window
  std::vector<int> unused_;
  const int process_;
  bool expects_last_ = true;     ///< of micro-batches that begin
  bool makes_sumsq_ = true;      ///< whether passes of this micro-batch compute sums of squares
  bool sumsq_complete_ = false;  ///< computed by all passes of the last micro-batch
  bool window_is_empty_ = true;
  bool widened_ = false;                                  ///< sums have been
  std::int64_t reduced_numel_ = 0, host_sums_numel_ = 0;  ///< received: gradients; fp32 sums of other hosts
  std::int64_t published_numel_ = 0;
  std::int64_t reductions_ = 0;
  std::int64_t copied_nbytes_ = 0;
};

}  // namespace zero::sharding
