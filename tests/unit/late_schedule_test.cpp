// Which late units are fetched, and when, without anything that moves.
#include <gtest/gtest.h>

#include <vector>

#include "layout/late_schedule.h"

namespace zero::layout::late_schedule_test {
namespace {

using State = LateSchedule::State;

std::vector<int> fetched(LateSchedule& schedule) {
  std::vector<int> units;
  for (int unit = schedule.next_to_fetch(); unit >= 0; unit = schedule.next_to_fetch()) {
    schedule.fetched(unit);
    units.push_back(unit);
  }
  return units;
}

TEST(LateSchedule, FetchesAFewAtATime) {
  LateSchedule schedule({10, 10, 10, 10}, /*most_numel=*/25);
  schedule.set_units({0, 1, 2, 3});
  schedule.begin(std::vector<int>{0, 1, 2, 3});
  EXPECT_EQ(fetched(schedule), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(schedule.oldest_coming(), 0);
  schedule.moved(0);
  EXPECT_EQ(schedule.state(0), State::kMoved);
  EXPECT_TRUE(schedule.is_late(0));
  EXPECT_EQ(fetched(schedule), (std::vector<int>{3}));
  for (const int unit : {0, 1, 2, 3}) schedule.complete(unit);
  EXPECT_EQ(schedule.oldest_coming(), -1);
  for (const int unit : {0, 1, 2, 3}) EXPECT_FALSE(schedule.is_late(unit));
}

TEST(LateSchedule, TwoLargeOnesAreAlwaysUnderWay) {
  LateSchedule schedule({100, 100, 100}, 25);
  schedule.set_units({0, 1, 2});
  schedule.begin(std::vector<int>{0, 1, 2});
  EXPECT_EQ(fetched(schedule), (std::vector<int>{0, 1}));
}

TEST(LateSchedule, WhatWasUsedFirstComesFirstTheNextTime) {
  LateSchedule schedule({1, 1, 1, 1}, 100);
  schedule.set_units({0, 1, 2, 3});
  schedule.begin(std::vector<int>{0, 1, 2, 3});
  fetched(schedule);
  for (const int unit : {2, 0}) {
    schedule.use(unit);
    schedule.complete(unit);
    schedule.use(unit);  // no longer late: its first use counts
  }
  for (const int unit : {1, 3}) schedule.complete(unit);
  schedule.begin(std::vector<int>{0, 1, 2, 3});
  EXPECT_EQ(schedule.order(), (std::vector<int>{2, 0, 1, 3}));
  EXPECT_EQ(fetched(schedule), (std::vector<int>{2, 0, 1, 3}));
}

TEST(LateSchedule, OnlyWhatWasUpdatedIsLate) {
  LateSchedule schedule({1, 1, 1}, 100);
  schedule.set_units({0, 1, 2});
  schedule.begin(std::vector<int>{0, 2});
  EXPECT_FALSE(schedule.is_late(1));
  EXPECT_EQ(fetched(schedule), (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace zero::layout::late_schedule_test
