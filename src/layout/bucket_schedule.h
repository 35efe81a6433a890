#pragma once
// BucketSchedule: which bucket of gradients to open, send and close, and when. Decisions without memory: the
// reducer carries them out, `plan` counts what they take.
//
// A bucket is a range of a unit. Within a micro-batch it goes through rounds: closed -> open (gradients arrive)
// -> sent -> closed. One round is the rule; a second backward begins another. Ranks may finish buckets in any
// order and may use other parameters; at the end of a micro-batch they agree on the most rounds that one of
// them had, and close() makes every rank have as many.
#include <cstdint>
#include <vector>

#include "layout/units.h"

namespace zero::layout {

/// A range of a unit whose gradients are sent together.
struct Bucket {
  Range range;
  std::vector<int> parameters;  ///< with a part in it, in the unit's order
  std::vector<Range> gaps;      ///< padding, in the unit
};

/// Cuts a unit into buckets of at most `bucket_numel` elements; `slots` in the order of their places.
std::vector<Bucket> cut_into_buckets(const std::vector<Slot>& slots, std::int64_t unit_numel,
                                     std::int64_t bucket_numel);

/// Elements that a pool of buckets may grow to, as long as others are sent whose memory comes back: where
/// reductions overlap backward one is filled, one read by others, one in between.
constexpr std::int64_t bucket_pool_limit(std::int64_t largest_bucket_numel, bool overlap) {
  return (overlap ? 3 : 1) * largest_bucket_numel;
}

class BucketSchedule {
 public:
  /// `parameters[b]`: those with a part in bucket b, by index below `parameter_count`.
  BucketSchedule(std::vector<std::vector<int>> parameters, int parameter_count);

  /// A parameter whose gradient will not come is not waited for. All are expected at first. Between
  /// micro-batches.
  void expect(int parameter, bool expected);
  bool expected(int parameter) const { return expected_[parameter]; }

  /// What to do with a gradient that has arrived.
  struct Arrival {
    bool opens = false;      ///< the bucket needs memory first
    bool adds = false;       ///< a second gradient in one round: onto the first
    bool completes = false;  ///< it was the last one: send
  };
  /// The gradient at `position` of the bucket's parameters is there.
  Arrival arrive(int bucket, int position);
  /// The bucket is sent with what it has; a new round begins.
  void send(int bucket);

  bool open(int bucket) const { return buckets_[bucket].open; }
  /// True when the open bucket holds a gradient at `position`.
  bool has(int bucket, int position) const { return buckets_[bucket].has[position]; }
  int rounds(int bucket) const { return buckets_[bucket].rounds; }  ///< sent in this micro-batch
  const std::vector<int>& parameters(int bucket) const { return buckets_[bucket].parameters; }
  int size() const { return static_cast<int>(buckets_.size()); }
  int parameter_count() const { return static_cast<int>(expected_.size()); }

  /// Rounds that a micro-batch takes here at least: those sent, one more for what is open, one in any case.
  int rounds_wanted(int bucket) const;
  int most_rounds_wanted() const;

  /// True when nothing has arrived or was sent in this micro-batch.
  bool micro_batch_is_empty() const { return arrivals_ == 0; }
  void end_micro_batch();

  /// A backward begins: what arrives from here on can be taken back, until something of it is sent.
  void begin_backward();
  /// Takes back what arrived since begin_backward(); buckets that it opened are closed. False, and nothing is
  /// changed, when some of that was sent or added to an earlier gradient.
  bool undo_backward();
  /// Buckets that the last undo_backward() closed: their memory is not needed.
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
