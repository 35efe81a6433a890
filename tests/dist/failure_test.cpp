// Promise P6, no rank hangs silently: a rank that throws, is killed or is stopped in forward, backward or
// step ends every other rank within 9 s with an error that names it and the collective.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <tuple>

#include "support/odd_model.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

enum class Event { kThrow, kKill, kStop };
enum class Place { kForward, kBackward, kStep };

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

void train_until_struck(Group group, const std::string& store, Event event, Place place) {
  at::set_num_threads(1);
  at::manual_seed(1);
  DeepModel model(8, 64);
  auto engine = initialize(model,
                           fmt::format(R"({{"train_micro_batch_size_per_gpu": 2,
      "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}},
      "zerotorch": {{"store": "{}"}}}})",
                                       store),
                           InitializeOptions{.group = group});
  for (int step = 0; step < 20; ++step) {
    const bool now = step == 5 && group.rank() == 1;
    at::Tensor x = at::ones({2, 64}).requires_grad_();
    if (now && place == Place::kForward) strike(event);
    at::Tensor y = engine(x);
    if (now && place == Place::kBackward) {
      y.register_hook([event](const at::Tensor& gradient) {
        strike(event);
        return gradient;
      });
    }
    engine.backward(y.square().mean());
    if (now && place == Place::kStep) strike(event);
    engine.step();
  }
}

class Failure : public ::testing::TestWithParam<std::tuple<Event, Place, const char*>> {};

TEST_P(Failure, EndsEveryOtherRankWithItsName) {
  const auto [event, place, store] = GetParam();
  const auto results = spawn(3, [&](Group group) { train_until_struck(group, store, event, place); },
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

INSTANTIATE_TEST_SUITE_P(All, Failure,
                         ::testing::Combine(::testing::Values(Event::kThrow, Event::kKill, Event::kStop),
                                            ::testing::Values(Place::kForward, Place::kBackward,
                                                              Place::kStep),
                                            ::testing::Values("node_shared", "copying")),
                         [](const auto& info) {
                           return std::string("Rank") + name_of(std::get<0>(info.param)) + "In" +
                                  name_of(std::get<1>(info.param)) + "_" + std::get<2>(info.param);
                         });

}  // namespace
}  // namespace zero::testing
