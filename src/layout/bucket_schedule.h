#pragma once
// BucketSchedule: decides which gradient bucket to open, send and close, and when. It holds no memory: the reducer
// executes its decisions, and `plan` counts their memory.
//
// A bucket is a range of a unit. Within a micro-batch it goes through rounds: closed -> open (gradients arrive) -> sent
// -> closed. There is normally one round; a second backward starts another. Ranks may finish buckets in any order and
// may use different parameters. At the end of a micro-batch they agree on the largest number of rounds on any rank, and
// even_out() of the reducer makes every rank send as many.
#include <cstdint>
#include <vector>

#include "layout/units.h"

namespace zero::layout {

/// A range of a unit whose gradients are sent together.
struct Bucket {
  Range range;
  std::vector<int> parameters;  ///< parameters with a part in it, in the unit's order
  std::vector<Range> gaps;      ///< padding, in the unit
};

/// Cuts a unit into buckets of at most `bucket_numel` elements; `slots` in the order of their offsets.
std::vector<Bucket> cut_into_buckets(const std::vector<Slot>& slots, std::int64_t unit_numel,
                                     std::int64_t bucket_numel);

/// Elements that a pool of buckets may grow to while sent buckets will return memory to it. When reductions overlap
/// backward, one bucket is filled, one is read by other ranks, and one is in between.
constexpr std::int64_t bucket_pool_limit(std::int64_t largest_bucket_numel, bool overlap) {
  return (overlap ? 3 : 1) * largest_bucket_numel;
}

class BucketSchedule {
 public:
  /// `parameters[b]`: the parameters with a part in bucket b, as indices below `parameter_count`.
  BucketSchedule(std::vector<std::vector<int>> parameters, int parameter_count);

  /// Whether to wait for a parameter's gradient. Initially true for all. Call between micro-batches.
  void expect(int parameter, bool expected);
  bool expected(int parameter) const { return expected_[parameter]; }

  /// What to do with a gradient that has arrived.
  struct Arrival {
    bool opens = false;      ///< the bucket needs memory first
    bool adds = false;       ///< a second gradient in one round: add it to the first
    bool completes = false;  ///< the last expected gradient: send the bucket
  };
  /// Records that the gradient at `position` of the bucket's parameters has arrived.
  Arrival arrive(int bucket, int position);
  /// Records that the bucket is sent as it is; a new round begins.
  void send(int bucket);

  bool open(int bucket) const { return buckets_[bucket].open; }
  /// True when the open bucket holds a gradient at `position`.
  bool has(int bucket, int position) const { return buckets_[bucket].has[position]; }
  int rounds(int bucket) const { return buckets_[bucket].rounds; }  ///< sent in this micro-batch
  const std::vector<int>& parameters(int bucket) const { return buckets_[bucket].parameters; }
  int size() const { return static_cast<int>(buckets_.size()); }
  int parameter_count() const { return static_cast<int>(expected_.size()); }

  /// Rounds that this rank needs in the micro-batch: rounds sent, plus one if the bucket is open, at least one.
  int rounds_wanted(int bucket) const;
  int most_rounds_wanted() const;

  /// True when nothing has arrived or was sent in this micro-batch.
  bool micro_batch_is_empty() const { return arrivals_ == 0; }
  void end_micro_batch();

  /// Begins a backward; undo_backward() can take back what arrives until any of it is sent.
  void begin_backward();
  /// Takes back what arrived since begin_backward() and closes the buckets it opened. Returns false and changes nothing
  /// if some of that was already sent or added to an earlier gradient.
  bool undo_backward();
  /// Buckets that the last undo_backward() closed; their memory can be freed.
  const std::vector<int>& undone() const { return undone_; }

 private:
  struct Bucket {
    std::vector<int> parameters;
    std::vector<bool> has;  ///< by position: its gradient is in the open bucket
    int missing = 0;        ///< expected parameters that are not in the open bucket
    int rounds = 0;
    bool open = false;
  };
  struct Logged {
    int bucket, position;
    bool opened;
  };

  void begin_round(Bucket& bucket);

  std::vector<Bucket> buckets_;
  std::vector<bool> expected_;
  std::vector<Logged> log_;  ///< since begin_backward()
  bool undoable_ = true;
  std::vector<int> undone_;
  std::int64_t arrivals_ = 0;
};

}  // namespace zero::layout
