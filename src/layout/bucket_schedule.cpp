#include "layout/bucket_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace zero::layout {

std::vector<Bucket> cut_into_buckets(const std::vector<Slot>& slots, std::int64_t unit_numel,
                                     std::int64_t bucket_numel) {
  std::vector<Bucket> buckets;
  for (const Range range : bucket_ranges(unit_numel, bucket_numel)) {
    Bucket& bucket = buckets.emplace_back(Bucket{range, {}, {}});
    std::int64_t filled = range.begin;
    for (const Slot& slot : slots) {
      const Range part = intersect(slot.range(), range);
      if (part.empty()) continue;
      if (part.begin > filled) bucket.gaps.push_back({filled, part.begin});
      filled = part.end;
      bucket.parameters.push_back(slot.parameter);
    }
    if (filled < range.end) bucket.gaps.push_back({filled, range.end});
  }
  return buckets;
}

BucketSchedule::BucketSchedule(std::vector<std::vector<int>> parameters, int parameter_count)
    : expected_(static_cast<std::size_t>(parameter_count), true) {
  std::size_t places = 0;
  for (auto& of_bucket : parameters) {
    Bucket bucket;
    bucket.has.assign(of_bucket.size(), false);
    places += of_bucket.size();
    bucket.parameters = std::move(of_bucket);
    begin_round(bucket);
    buckets_.push_back(std::move(bucket));
  }
  log_.reserve(places);
  undone_.reserve(buckets_.size());
}

void BucketSchedule::begin_round(Bucket& bucket) {
  bucket.open = false;
  bucket.missing = 0;
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    bucket.has[i] = false;
    bucket.missing += expected_[bucket.parameters[i]];
  }
}

void BucketSchedule::expect(int parameter, bool expected) {
  if (expected_[parameter] == expected) return;
  expected_[parameter] = expected;
  for (Bucket& bucket : buckets_) {
    ZERO_CHECK(!bucket.open, "a bucket is open");
    begin_round(bucket);
  }
}

BucketSchedule::Arrival BucketSchedule::arrive(int index, int position) {
  Bucket& bucket = buckets_[index];
  Arrival arrival;
  ++arrivals_;
  arrival.opens = !bucket.open;
  arrival.adds = bucket.has[position];
  bucket.open = true;
  if (arrival.adds) {
    undoable_ = false;
    return arrival;
  }
  if (log_.size() < log_.capacity()) {
    log_.push_back({index, position, arrival.opens});
  } else {
    undoable_ = false;
  }
  bucket.has[position] = true;
  if (expected_[bucket.parameters[position]]) arrival.completes = --bucket.missing == 0;
  return arrival;
}

void BucketSchedule::send(int index) {
  Bucket& bucket = buckets_[index];
  ++arrivals_;
  ++bucket.rounds;
  undoable_ = false;
  begin_round(bucket);
}

int BucketSchedule::rounds_wanted(int bucket) const {
  return std::max(buckets_[bucket].rounds + (buckets_[bucket].open ? 1 : 0), 1);
}

int BucketSchedule::most_rounds_wanted() const {
  int most = 1;
  for (int b = 0; b < size(); ++b) most = std::max(most, rounds_wanted(b));
  return most;
}

void BucketSchedule::end_micro_batch() {
  for (Bucket& bucket : buckets_) {
    ZERO_CHECK(!bucket.open, "a bucket is open at the end of a micro-batch");
    bucket.rounds = 0;
  }
  arrivals_ = 0;
  begin_backward();
}

void BucketSchedule::begin_backward() {
  log_.clear();
  undoable_ = true;
}

bool BucketSchedule::undo_backward() {
  undone_.clear();
  if (!undoable_) return false;
  for (auto logged = log_.rbegin(); logged != log_.rend(); ++logged) {
    Bucket& bucket = buckets_[logged->bucket];
    bucket.has[logged->position] = false;
    bucket.missing += expected_[bucket.parameters[logged->position]];
    --arrivals_;
    if (!logged->opened) continue;
    bucket.open = false;
    undone_.push_back(logged->bucket);
  }
  log_.clear();
  return true;
}

}  // namespace zero::layout
