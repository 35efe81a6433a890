// The gradient reducer's buckets, without memory.
#include <algorithm>
#include <deque>

#include "layout/best_fit.h"
#include "layout/bucket_schedule.h"
#include "sharding/plan/footprint.h"

namespace zero::sharding {
namespace {

constexpr int kMicroBatches = 3;

/// Carries out the reducer's schedule without memory.
class BucketPool {
 public:
  /// `in_flight`: no reduction ends before its buffer is needed; else each ends at once.
  BucketPool(const GradientBuckets& buckets, std::int64_t limit_numel, bool in_flight)
      : buckets_(buckets),
        schedule_(buckets.parameters, static_cast<int>(buckets.places.size())),
        buffer_of_(buckets.numel.size(), -1),
        limit_numel_(limit_numel),
        in_flight_(in_flight) {}

  /// Of gradients that arrive together all buckets are taken to be open before the first is complete; those of one
  /// gradient alone are filled in turn.
  void micro_batch(const std::vector<std::vector<int>>& groups) {
    for (const auto& group : groups) {
      std::vector<int> complete;
      for (const int p : group) {
        for (const auto place : buckets_.places[p]) {
          const auto arrival = schedule_.arrive(place.bucket, place.position);
          if (arrival.opens) open(place.bucket);
          if (!arrival.completes) continue;
          if (group.size() == 1) {
            send(place.bucket);
          } else {
            complete.push_back(place.bucket);
          }
        }
      }
      for (const int b : complete) send(b);
    }
    for (int b = 0; b < schedule_.size(); ++b) {
      const int rounds = schedule_.rounds_wanted(b);
      while (schedule_.rounds(b) < rounds) {
        if (!schedule_.open(b)) open(b);
        send(b);
      }
    }
    while (!sent_.empty()) close_oldest();
    schedule_.end_micro_batch();
  }

  std::int64_t total_numel() const { return buffers_.total_numel(); }

 private:
  void open(int b) {
    const std::int64_t numel = buckets_.numel[b];
    while (!sent_.empty() && buffers_.would_exceed(limit_numel_, numel)) close_oldest();
    buffer_of_[b] = buffers_.take_or_make(numel);
  }

  void send(int b) {
    schedule_.send(b);
    sent_.push_back(buffer_of_[b]);
    while (!in_flight_ && !sent_.empty()) close_oldest();
  }

  void close_oldest() {
    buffers_.give_back(sent_.front());
    sent_.pop_front();
  }

  const GradientBuckets& buckets_;
  layout::BucketSchedule schedule_;
  layout::BestFit buffers_;
  std::vector<int> buffer_of_;  ///< by bucket
  std::deque<int> sent_;        ///< buffers
  const std::int64_t limit_numel_;
  const bool in_flight_;
};

}  // namespace

std::int64_t bucket_pool_numel(const ShardingPlan& shards, const Workload& work) {
  if (shards.sums_are_gradients && shards.update.keeps_gradients) return 0;
  const std::int64_t sum = shards.padded_numel(/*trainable_only=*/true);
  if (!shards.sharding.gradients) return sum;
  if (sum / shards.bucket_numel > kMostBuckets)
    return std::min(sum, layout::bucket_pool_limit(shards.bucket_numel, /*overlap=*/true));
  const GradientBuckets buckets = gradient_buckets(shards);
  const std::int64_t limit = layout::bucket_pool_limit(largest_bucket(shards), shards.overlap);
  const auto first_numel = [&](int p) {
    const auto& places = buckets.places[static_cast<std::size_t>(p)];
    return places.empty() ? 0 : buckets.numel[static_cast<std::size_t>(places.front().bucket)];
  };
  // Which buffers fit is another question in another order: small buckets first take what large ones then lack.
  const auto grown = [&](bool in_flight) {
    std::int64_t most = 0;
    for (const bool by_size : {false, true}) {
      std::vector<std::vector<int>> tried = work.arrivals;
      if (by_size) {
        for (auto& group : tried) std::ranges::stable_sort(group, {}, first_numel);
      }
      BucketPool pool(buckets, limit, in_flight);
      for (int i = 0; i < kMicroBatches; ++i) {
        pool.micro_batch(tried);
        for (auto& group : tried) std::reverse(group.begin(), group.end());
      }
      most = std::max(most, pool.total_numel());
    }
    return most;
  };
  // Gradients on their way from a device are in flight, too.
  if (!shards.place.uploads() && (!shards.overlap || shards.world_size == 1)) return grown(false);
  return std::max({grown(false), grown(true), std::min(limit, sum)});
}

}  // namespace zero::sharding
