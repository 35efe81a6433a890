// GatherSchedule over random sequences of uses, scopes and steps: what is read is whole, memory stays within the
// limits, and commands that were not carried out leave no trace.
#include "layout/gather_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "layout/best_fit.h"
#include "layout/prefetch_window.h"

namespace zero::layout::gather_schedule_test {
namespace {

using State = GatherSchedule::State;
using Command = GatherSchedule::Command;

std::vector<Command> copy(GatherSchedule::Commands commands) { return {commands.begin(), commands.end()}; }

/// Carries out commands as a store does and checks each.
struct Store {
  std::vector<std::int64_t> numel;
  std::vector<bool> resident;
  GatherLimits limits;
  GatherSchedule schedule;
  std::vector<State> states;
  std::vector<bool> prefetched;
  std::vector<int> pins;
  std::int64_t live = 0, prefetching = 0;

  Store(std::vector<std::int64_t> unit_numel, std::vector<bool> are_resident, GatherLimits the_limits)
      : numel(std::move(unit_numel)),
        resident(std::move(are_resident)),
        limits(the_limits),
        schedule(numel, resident, limits),
        prefetched(numel.size()),
        pins(numel.size()) {
    for (const bool whole : resident) states.push_back(whole ? State::kResident : State::kReleased);
  }

  void carry_out(const Command& command) {
    const int u = command.unit;
    switch (command.kind) {
      case Command::kGather:
        ASSERT_EQ(states[u], State::kReleased);
        states[u] = State::kGathering;
        prefetched[u] = command.prefetched;
        live += numel[u];
        if (command.prefetched) {
          prefetching += numel[u];
          EXPECT_LE(prefetching, limits.window_numel);
          EXPECT_LE(live, limits.max_live_numel);
        } else if (live > limits.max_live_numel) {
          for (std::size_t v = 0; v < states.size(); ++v)
            EXPECT_TRUE(states[v] != State::kGathered || pins[v] > 0) << "unit " << v << " could have made room";
        }
        break;
      case Command::kWait:
        ASSERT_EQ(states[u], State::kGathering);
        states[u] = State::kGathered;
        if (prefetched[u]) prefetching -= numel[u];
        break;
      case Command::kRelease:
        ASSERT_EQ(states[u], State::kGathered);
        ASSERT_EQ(pins[u], 0) << "released while in use";
        states[u] = State::kReleased;
        live -= numel[u];
        break;
    }
  }
  void carry_out(GatherSchedule::Commands commands) {
    for (const Command& command : copy(commands)) carry_out(command);
    check();
  }
  bool is_whole(int u) const { return states[u] == State::kGathered || states[u] == State::kResident; }
  void check() const {
    for (std::size_t u = 0; u < numel.size(); ++u) {
      ASSERT_EQ(schedule.state(static_cast<int>(u)), states[u]) << "unit " << u;
      if (pins[u] > 0) {
        ASSERT_TRUE(is_whole(static_cast<int>(u))) << "unit " << u << " is in use";
      }
    }
    ASSERT_EQ(schedule.live_numel(), live);
    ASSERT_EQ(schedule.prefetching_numel(), prefetching);
  }
};

Store random_store(std::mt19937& random) {
  const std::size_t units = 1 + random() % 9;
  std::vector<std::int64_t> numel;
  std::vector<bool> resident;
  for (std::size_t u = 0; u < units; ++u) {
    numel.push_back(1 + static_cast<std::int64_t>(random() % 100));
    resident.push_back(random() % 5 == 0);
  }
  const std::int64_t sum = std::accumulate(numel.begin(), numel.end(), std::int64_t{0});
  const auto up_to = [&](std::int64_t most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  return {numel, resident, {up_to(2 * sum), up_to(2 * sum), random() % 3 ? up_to(sum) : 0}};
}

/// A pass over the units in an order of its own, with operators of one or two units, or a scope around all.
std::vector<int> random_order(std::mt19937& random, std::size_t units) {
  std::vector<int> order(units);
  std::iota(order.begin(), order.end(), 0);
  if (random() % 4 == 0) std::shuffle(order.begin(), order.end(), random);
  for (std::size_t more = random() % 4; more > 0; --more) order.push_back(static_cast<int>(random() % units));
  return order;
}

TEST(GatherSchedule, WhatIsReadIsWholeAndMemoryStaysWithinLimits) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Store store = random_store(random);
    const auto order = random_order(random, store.numel.size());
    for (int step = 0; step < 4; ++step) {
      std::vector<int> scope;
      if (random() % 4 == 0) {
        for (int u : order) {
          if (random() % 3 == 0) scope.push_back(u);
        }
      }
      for (int u : scope) {
        const auto commands = store.schedule.pin(u);
        for (const Command& command : copy(commands)) store.carry_out(command);
        ++store.pins[u];
        store.check();
      }
      for (const int phase : {0, 1}) {
        auto pass = order;
        if (phase == 1) std::reverse(pass.begin(), pass.end());
        for (std::size_t i = 0; i < pass.size(); ++i) {
          std::vector<int> units{pass[i]};
          if (i + 1 < pass.size() && random() % 4 == 0) units.push_back(pass[i + 1]);
          for (int u : units) {
            const auto commands = store.schedule.use(u, phase);
            ++store.pins[u];  // what is released for it is not it itself
            store.carry_out(commands);
          }
          for (int u : units) {
            --store.pins[u];
            store.carry_out(store.schedule.unuse(u));
          }
          if (HasFatalFailure()) return;
        }
        if (random() % 5 == 0) {
          store.carry_out(store.schedule.quiesce());
          for (const State state : store.states) EXPECT_NE(state, State::kGathering);
        }
      }
      for (int u : scope) {
        --store.pins[u];
        store.carry_out(store.schedule.unpin(u));
      }
      store.carry_out(store.schedule.publish());
      EXPECT_EQ(store.live, 0) << "something stale was kept";
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GatherSchedule, TheSameCallsGiveTheSameCommands) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Store a = random_store(random);
    GatherSchedule b(a.numel, a.resident, a.limits);
    for (int i = 0; i < 100; ++i) {
      const int unit = static_cast<int>(random() % a.numel.size()), phase = static_cast<int>(random() % 2);
      ASSERT_TRUE(std::ranges::equal(a.schedule.use(unit, phase), b.use(unit, phase)));
      ASSERT_TRUE(std::ranges::equal(a.schedule.unuse(unit), b.unuse(unit)));
    }
  }
}

TEST(GatherSchedule, CommandsThatFailedLeaveNoTrace) {
  int abandoned = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Store store = random_store(random);
    for (int i = 0; i < 60; ++i) {
      const int unit = static_cast<int>(random() % store.numel.size()), phase = static_cast<int>(random() % 2);
      const auto commands = copy(random() % 8 ? store.schedule.use(unit, phase) : store.schedule.pin(unit));
      const std::size_t done = random() % 3 ? commands.size() : random() % (commands.size() + 1);
      for (std::size_t c = 0; c < done; ++c) store.carry_out(commands[c]);
      if (done < commands.size()) {
        ++abandoned;
        store.schedule.abandon(done);
        store.check();
      } else {
        ++store.pins[unit];
        store.check();
        --store.pins[unit];
        store.carry_out(store.schedule.unuse(unit));
      }
      if (HasFatalFailure()) return;
    }
    store.carry_out(store.schedule.publish());
    EXPECT_EQ(store.live, 0) << "a use that failed still counts as one";
  }
  EXPECT_GT(abandoned, 1000);
}

TEST(GatherSchedule, GathersAheadOnceTheOrderIsKnownAndNotPastTheStep) {
  GatherSchedule schedule({10, 10, 10}, {false, false, false}, {.max_reuse_numel = 0, .window_numel = 10});
  const auto use = [&](int unit, int phase) {
    std::vector<std::pair<int, bool>> gathered;
    for (const Command& command : schedule.use(unit, phase)) {
      if (command.kind == Command::kGather) gathered.emplace_back(command.unit, command.prefetched);
    }
    schedule.unuse(unit);
    return gathered;
  };
  using Gathers = std::vector<std::pair<int, bool>>;
  // The first use of a step follows the last one of the step before from the second step on.
  for (const bool known : {false, false, true}) {
    const auto first = use(0, 0), second = use(1, 0), third = use(2, 0);
    const auto back = use(1, 1), last = use(0, 1);
    schedule.publish();
    if (!known) continue;
    EXPECT_EQ(first, (Gathers{{0, false}, {1, true}}));
    EXPECT_EQ(second, (Gathers{{2, true}}));
    EXPECT_EQ(third, (Gathers{{1, true}})) << "backward comes next";
    EXPECT_EQ(back, (Gathers{{0, true}}));
    EXPECT_EQ(last, Gathers{}) << "the step makes what comes after it stale";
  }
}

TEST(BestFit, TheSmallestThatFitsTheLongestFreeOfASize) {
  BestFit pool;
  EXPECT_FALSE(pool.take(1));
  for (const std::int64_t numel : {30, 10, 20, 20}) pool.make(numel);
  for (const int index : {0, 3, 1, 2}) pool.give_back(index);
  EXPECT_EQ(pool.total_numel(), 80);
  EXPECT_FALSE(pool.would_exceed(80, 30)) << "one of them is free";
  EXPECT_TRUE(pool.would_exceed(110, 31));
  EXPECT_FALSE(pool.would_exceed(111, 31));
  EXPECT_FALSE(pool.take(31));
  EXPECT_EQ(pool.take(11), 3);
  EXPECT_EQ(pool.take(11), 2);
  EXPECT_EQ(pool.take(11), 0);
  EXPECT_FALSE(pool.take(11));
  EXPECT_EQ(pool.take(10), 1);
}

TEST(MeasuredWindow, MeasuresStepsThreeSixTwelve) {
  MeasuredWindow window;
  std::vector<int> measured;
  for (int step = 1; step <= 24; ++step) {
    if (window.measuring()) measured.push_back(step);
    for (int use = 0; window.measuring() && use < 4; ++use) {
      window.note_use(use / 2, use * 10.0, 0);
      window.note_gather(100, 1);
    }
    const bool chooses = window.end_step().has_value();
    EXPECT_EQ(chooses, !measured.empty() && measured.back() == step);
  }
  EXPECT_EQ(measured, (std::vector<int>{3, 6, 12, 24}));
}

TEST(MeasuredWindow, AStepWithoutBackwardAsksForNothingAndTheNextIsMeasured) {
  MeasuredWindow window;
  for (int step = 1; step <= 2; ++step) EXPECT_FALSE(window.end_step());
  ASSERT_TRUE(window.measuring());
  window.note_use(0, 0, 0);
  EXPECT_FALSE(window.end_step());
  EXPECT_TRUE(window.measuring());
}

}  // namespace
}  // namespace zero::layout::gather_schedule_test
