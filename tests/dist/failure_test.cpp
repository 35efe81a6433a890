// Promise P6, no rank hangs silently: a rank that throws, is killed or is stopped in forward, backward or
// step ends every other rank within 9 s with an error that names it and the collective.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "support/spawn.h"
#include "support/struck_training.h"

namespace zero::testing::failure_test {
namespace {

enum class Event { kThrow, kKill, kStop };

const char* name_of(Event event) {
  return event == Event::kThrow ? "Throws" : event == Event::kKill ? "IsKilled" : "IsStopped";
}
const char* name_of(Place place) {
  return place == Place::kForward ? "Forward" : place == Place::kBackward ? "Backward" : "Step";
}

void strike(Event event) {
  if (event == Event::kThrow) throw std::runtime_error("the user's own exception");
  kill(getpid(), event == Event::kKill ? SIGKILL : SIGSTOP);
}

enum class Setting { kPlain, kProgressThread, kHosts };

const char* name_of(Setting setting) {
  return setting == Setting::kPlain ? "" : setting == Setting::kHosts ? "_hosts" : "_progress_thread";
}

class Failure : public ::testing::TestWithParam<std::tuple<Event, Place, const char*, Setting>> {
 protected:
  void TearDown() override { unsetenv("ZERO_RANKS_PER_NODE"); }
};

TEST_P(Failure, EndsEveryOtherRankWithItsName) {
  const auto [event, place, store, setting] = GetParam();
  if (setting == Setting::kHosts) setenv("ZERO_RANKS_PER_NODE", "1", 1);
  const char* const thread = setting == Setting::kProgressThread ? "always" : "never";
  const auto results = spawn(3,
                             [&](Group group) {
                               train_until_struck(
                                   group, store, place, [event] { strike(event); }, thread);
                             },
                             {.timeout = std::chrono::seconds(9)});
  for (const auto& result : results) {
    if (result.rank == 1) continue;
    EXPECT_FALSE(result.timed_out) << "rank " << result.rank << " hangs";
    EXPECT_EQ(result.exit_code, 1) << "rank " << result.rank;
    EXPECT_NE(result.error.find("rank 1"), std::string::npos) << result.error;
    const bool names_collective = result.error.find("all_gather") != std::string::npos ||
                                  result.error.find("reduce_scatter") != std::string::npos ||
                                  result.error.find("barrier") != std::string::npos;
    EXPECT_TRUE(names_collective) << result.error;
  }
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

std::vector<Failure::ParamType> all_cases() {
  std::vector<Failure::ParamType> cases;
  for (const Event event : {Event::kThrow, Event::kKill, Event::kStop}) {
    for (const Place place : {Place::kForward, Place::kBackward, Place::kStep}) {
      for (const char* store : {"node_shared", "copying"}) {
        for (const Setting setting : {Setting::kPlain, Setting::kProgressThread, Setting::kHosts}) {
          // A stopped rank takes seconds to be noticed.
          if (event == Event::kStop && setting != Setting::kPlain && place != Place::kBackward) continue;
          cases.emplace_back(event, place, store, setting);
        }
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Failure, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string("Rank") + name_of(std::get<0>(info.param)) + "In" + name_of(std::get<1>(info.param)) + "_" +
         std::get<2>(info.param) + name_of(std::get<3>(info.param));
});

}  // namespace
}  // namespace zero::testing::failure_test
