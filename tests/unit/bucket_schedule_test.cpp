// BucketSchedule over random sequences: whatever the order of arrival on each rank, every gradient is sent
// once, no bucket is left open, and all ranks send each bucket equally often.
#include "layout/bucket_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace zero::layout::bucket_schedule_test {
namespace {

struct Layout {
  std::vector<std::vector<int>> parameters;              ///< by bucket
  std::vector<std::vector<std::pair<int, int>>> places;  ///< by parameter: bucket, position
};

Layout random_layout(std::mt19937& random, int parameters) {
  Layout layout;
  layout.places.resize(static_cast<std::size_t>(parameters));
  for (int p = 0; p < parameters; ++p) {
    // A parameter lies in the last bucket, opens one, or is so large that it goes through several.
    const int buckets = layout.parameters.empty() || random() % 3 == 0 ? 1 + static_cast<int>(random() % 3) : 0;
    const auto join = [&] {
      layout.places[p].push_back(
          {static_cast<int>(layout.parameters.size()) - 1, static_cast<int>(layout.parameters.back().size())});
      layout.parameters.back().push_back(p);
    };
    if (buckets == 0 || (!layout.parameters.empty() && random() % 2)) join();
    for (int b = 0; b < buckets; ++b) {
      layout.parameters.emplace_back();
      join();
    }
  }
  return layout;
}

/// One rank: what lies in its open buckets, and what it has sent.
struct Rank {
  BucketSchedule schedule;
  std::map<std::pair<int, int>, int> open;  ///< (bucket, position) -> gradients added
  std::map<std::pair<int, int>, int> sent;
  std::map<std::pair<int, int>, int> expected;

  void send(int bucket) {
    for (std::size_t i = 0; i < schedule.parameters(bucket).size(); ++i) {
      const auto key = std::pair(bucket, static_cast<int>(i));
      EXPECT_EQ(schedule.has(bucket, key.second), open.contains(key));
      if (const auto found = open.find(key); found != open.end()) {
        sent[key] += found->second;
        open.erase(found);
      }
    }
    schedule.send(bucket);
  }

  void arrive(const Layout& layout, int parameter) {
    for (const auto& place : layout.places[parameter]) {
      const bool was_open = schedule.open(place.first);
      const auto arrival = schedule.arrive(place.first, place.second);
      EXPECT_EQ(arrival.opens, !was_open);
      EXPECT_EQ(arrival.adds, open.contains(place));
      ++open[place];
      ++expected[place];
      if (arrival.completes) send(place.first);
    }
  }
};

TEST(BucketSchedule, EveryGradientIsSentOnceWhateverTheOrderOnEachRank) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const int parameters = 1 + static_cast<int>(random() % 12), ranks = 1 + static_cast<int>(random() % 4);
    const Layout layout = random_layout(random, parameters);
    std::vector<Rank> all;
    for (int r = 0; r < ranks; ++r) all.push_back({BucketSchedule(layout.parameters, parameters), {}, {}, {}});
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      for (int p = 0; p < parameters; ++p) {
        const bool frozen = random() % 5 == 0;
        for (Rank& rank : all) rank.schedule.expect(p, !frozen);
      }
      for (Rank& rank : all) {
        for (int backwards = static_cast<int>(random() % 3); backwards > 0; --backwards) {
          std::vector<int> used;
          for (int p = 0; p < parameters; ++p) {
            if (rank.schedule.expected(p) && random() % 4) used.push_back(p);
          }
          std::shuffle(used.begin(), used.end(), random);
          for (const int p : used) rank.arrive(layout, p);
        }
      }
      for (int b = 0; b < static_cast<int>(layout.parameters.size()); ++b) {
        int most = 1;
        for (const Rank& rank : all) most = std::max(most, rank.schedule.rounds_wanted(b));
        for (Rank& rank : all) {
          EXPECT_LE(rank.schedule.rounds_wanted(b), rank.schedule.most_rounds_wanted());
          while (rank.schedule.rounds(b) < most) rank.send(b);
          EXPECT_EQ(rank.schedule.rounds(b), most);
          EXPECT_FALSE(rank.schedule.open(b));
        }
      }
      for (Rank& rank : all) {
        EXPECT_TRUE(rank.open.empty());
        EXPECT_EQ(rank.sent, rank.expected);
        rank.schedule.end_micro_batch();
        EXPECT_TRUE(rank.schedule.micro_batch_is_empty());
      }
    }
  }
}

TEST(BucketSchedule, ABackwardIsUndoneOrNothingIsChanged) {
  std::mt19937 random(11);
  int undone = 0, kept = 0;
  for (int round = 0; round < 3000; ++round) {
    const int parameters = 2 + static_cast<int>(random() % 10);
    const Layout layout = random_layout(random, parameters);
    Rank rank{BucketSchedule(layout.parameters, parameters), {}, {}, {}};
    const auto some = [&](int most) {
      for (int i = static_cast<int>(random() % static_cast<unsigned>(most)); i > 0; --i)
        rank.arrive(layout, static_cast<int>(random() % static_cast<unsigned>(parameters)));
    };
    some(parameters);
    rank.schedule.begin_backward();
    const Rank before = rank;
    some(4);
    const Rank after = rank;
    const bool can = rank.schedule.undo_backward();
    const BucketSchedule& like = can ? before.schedule : after.schedule;
    ++(can ? undone : kept);
    for (int b = 0; b < like.size(); ++b) {
      EXPECT_EQ(rank.schedule.open(b), like.open(b));
      EXPECT_EQ(rank.schedule.rounds(b), like.rounds(b));
      for (std::size_t i = 0; i < like.parameters(b).size(); ++i) {
        EXPECT_EQ(rank.schedule.has(b, static_cast<int>(i)), like.has(b, static_cast<int>(i)));
      }
      const bool closed_now = can && after.schedule.open(b) && !before.schedule.open(b);
      const auto& closed = rank.schedule.undone();
      EXPECT_EQ(std::count(closed.begin(), closed.end(), b), closed_now ? 1 : 0);
    }
    if (can) {
      // It goes on as if the backward had not been.
      rank.open = before.open;
      rank.sent = before.sent;
      rank.expected = before.expected;
      for (int p = 0; p < parameters; ++p) rank.arrive(layout, p);
      for (int b = 0; b < like.size(); ++b) {
        if (rank.schedule.open(b)) rank.send(b);
      }
      EXPECT_EQ(rank.sent, rank.expected);
    }
  }
  EXPECT_GT(undone, 300);
  EXPECT_GT(kept, 300);
}

}  // namespace
}  // namespace zero::layout::bucket_schedule_test
