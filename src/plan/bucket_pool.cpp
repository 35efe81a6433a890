// The gradient reducer's buckets, without memory: see zero/gradient_reducer.cpp for the why of each rule.
#include <algorithm>
#include <deque>
#include <set>

#include "plan/pools.h"

namespace zero::plan {
namespace {

constexpr int kMicroBatches = 3;
constexpr int kBucketsInFlight = 3;  ///< that the pool is made for where reductions overlap backward

struct Bucket {
  std::int64_t numel = 0;
  int parameters = 0;  ///< that have a part in it
  int arrived = 0;
  int rounds = 0;
  std::int64_t buffer_numel = 0;  ///< 0: closed
  bool sent = false;
};

class BucketPool {
 public:
  /// `in_flight`: no reduction ends before its buffer is needed; else each ends at once.
  BucketPool(std::vector<Bucket> buckets, std::vector<std::vector<int>> places, std::int64_t limit_numel,
             bool in_flight)
      : buckets_(std::move(buckets)),
        places_(std::move(places)),
        limit_numel_(limit_numel),
        in_flight_(in_flight) {}

  void micro_batch(const std::vector<int>& parameters) {
    for (const int p : parameters) {
      for (const int b : places_[p]) arrive(b);
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      Bucket& bucket = buckets_[b];
      const bool is_open = bucket.buffer_numel > 0 && !bucket.sent;
      if (bucket.rounds > 0 && !is_open) continue;
      if (bucket.buffer_numel == 0) open(bucket);
      send(static_cast<int>(b));
    }
    while (!sent_.empty()) close_oldest();
    for (Bucket& bucket : buckets_) bucket.rounds = 0;
  }

  std::int64_t total_numel() const { return total_numel_; }

 private:
  void arrive(int b) {
    Bucket& bucket = buckets_[b];
    if (bucket.buffer_numel == 0) open(bucket);
    if (++bucket.arrived == bucket.parameters) send(b);
  }

  void open(Bucket& bucket) {
    for (;;) {
      const auto found = free_.lower_bound(bucket.numel);
      if (found != free_.end()) {
        bucket.buffer_numel = *found;
        free_.erase(found);
        return;
      }
      if (total_numel_ + bucket.numel <= limit_numel_ || sent_.empty()) {
        bucket.buffer_numel = bucket.numel;
        total_numel_ += bucket.numel;
        return;
      }
      close_oldest();
    }
  }

  void send(int b) {
    Bucket& bucket = buckets_[b];
    bucket.arrived = 0;
    ++bucket.rounds;
    bucket.sent = true;
    sent_.push_back(b);
    while (!in_flight_ && !sent_.empty()) close_oldest();
  }

  void close_oldest() {
    Bucket& bucket = buckets_[sent_.front()];
    sent_.pop_front();
    free_.insert(bucket.buffer_numel);
    bucket.buffer_numel = 0;
    bucket.sent = false;
  }

  std::vector<Bucket> buckets_;
  const std::vector<std::vector<int>> places_;  ///< by parameter: its buckets
  const std::int64_t limit_numel_;
  const bool in_flight_;
  std::multiset<std::int64_t> free_;
  std::deque<int> sent_;
  std::int64_t total_numel_ = 0;
};

struct Buckets {
  std::vector<Bucket> all;
  std::vector<std::vector<int>> places;
};

Buckets make_buckets(const ModelShape& model, const LaidOut& laid) {
  Buckets buckets;
  buckets.places.resize(model.parameters.size());
  for (const auto& unit : laid.units) {
    if (!unit.trainable) continue;
    for (const auto range : layout::bucket_ranges(unit.numel, laid.bucket_numel)) {
      Bucket bucket{.numel = range.numel()};
      for (const auto& slot : unit.slots) {
        if (layout::intersect(slot.range(), range).empty()) continue;
        buckets.places[slot.parameter].push_back(static_cast<int>(buckets.all.size()));
        ++bucket.parameters;
      }
      buckets.all.push_back(bucket);
    }
  }
  return buckets;
}

/// The order in which gradients are complete: a parameter's with the first of its uses, the last that
/// backward reaches; the arguments of one operator last to first, as a linear layer's bias comes before its
/// weight.
std::vector<int> arrivals(const ModelShape& model) {
  std::vector<bool> seen(model.parameters.size(), false);
  std::vector<int> order;
  for (const Use& use : uses_of(model)) {
    for (const int p : use.parameters) {
      if (seen[p]) continue;
      seen[p] = true;
      if (model.parameters[p].trainable) order.push_back(p);
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace

std::vector<Use> uses_of(const ModelShape& model) {
  if (!model.uses.empty()) return model.uses;
  std::vector<Use> uses;
  std::string module_before;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const std::string& name = model.parameters[p].name;
    const auto dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? std::string() : name.substr(0, dot);
    if (p == 0 || module != module_before) uses.emplace_back();
    uses.back().parameters.push_back(static_cast<int>(p));
    module_before = module;
  }
  return uses;
}

std::int64_t bucket_numel(const ModelShape& model, const LaidOut& laid) {
  const std::int64_t sum = laid.padded_numel(/*trainable_only=*/true);
  if (!laid.sharding.gradients) return sum;
  if (sum / laid.bucket_numel > kMostBuckets) return std::min(sum, kBucketsInFlight * laid.bucket_numel);
  const Buckets buckets = make_buckets(model, laid);
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets.all) largest = std::max(largest, bucket.numel);
  const std::vector<int> order = arrivals(model);
  const auto grown = [&](std::int64_t limit_numel, bool in_flight) {
    BucketPool pool(buckets.all, buckets.places, limit_numel, in_flight);
    for (int i = 0; i < kMicroBatches; ++i) pool.micro_batch(order);
    return pool.total_numel();
  };
  if (!laid.overlap || laid.world_size == 1) return grown(largest, false);
  const std::int64_t limit = kBucketsInFlight * largest;
  return std::max({grown(limit, false), grown(limit, true), std::min(limit, sum)});
}

}  // namespace zero::plan
