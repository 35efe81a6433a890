// Promise P6 under mpirun: when a rank throws, is killed or is stopped, the job ends within 10 s with an exit
// code that is not 0, and neither processes nor shared memory stay. mpirun ends everybody as soon as one
// rank is dead, so that only a throw and a stop leave the others the time to name rank and collective.
//
//   mpi_failure_test                              the tests; skipped when ZERO_MPIRUN is not set
//   mpi_failure_test --rank EVENT WHERE           one rank; WHERE is a collective or engine:STORE
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/collective_caller.h"
#include "support/mpi_job.h"
#include "support/struck_training.h"

namespace zero::testing::mpi_failure_test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr double kDeadlineS = 10;
constexpr std::string_view kEngine = "engine:";

void strike(const std::string& event) {
  announce_strike();
  if (event == "throws") throw std::runtime_error("loss is NaN");
  if (event == "is killed") ::raise(SIGKILL);
  if (event == "is stopped") ::raise(SIGSTOP);
}

void call_until_struck(Group group, const std::string& collective, const std::string& event) {
  CollectiveCaller caller(group, collective);
  for (int step = 0; step < 5; ++step) caller.call("warm up");
  if (group.rank() == 1) strike(event);
  while (true) caller.call("layer.7");
}

/// What mpirun starts. As a trainer would: errors go to standard error and make the exit code.
int be_rank(const std::string& event, const std::string& where) {
  int rank = -1;
  try {
    Group group = join_mpi_job();
    rank = group.rank();
    if (where.starts_with(kEngine)) {
      train_until_struck(std::exchange(group, Group()), where.substr(kEngine.size()), Place::kBackward,
                         [&] { strike(event); });
    } else {
      call_until_struck(std::exchange(group, Group()), where, event);
    }
  } catch (const std::exception& error) {
    report_error(rank, error.what());
    return 1;
  }
  return 0;
}

class MpiFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build (ZERO_MPIRUN is not set)";
  }

  static MpiJobResult run(const std::string& event, const std::string& where) {
    MpiJobResult result = run_under_mpirun(kRanks, {"--rank", event, where}, 60s);
    EXPECT_FALSE(result.timed_out) << where << ": " << result.output;
    EXPECT_NE(result.exit_code, 0) << where;
    EXPECT_LT(result.end_seconds, kDeadlineS) << where;
    EXPECT_EQ(result.leftovers, std::vector<std::string>{}) << where;
    EXPECT_NE(result.output.find("@strike"), std::string::npos)
        << where << " failed before it should: " << result.output;
    return result;
  }

  /// `collectives`: one of these must be named.
  static void expect_others_say(const MpiJobResult& result, const std::vector<std::string>& collectives,
                                const std::string& cause) {
    for (const int rank : {0, 2}) {
      const std::string error = error_of_rank(result, rank);
      const auto says = [&](const std::string& part) { return error.find(part) != std::string::npos; };
      EXPECT_TRUE(says("rank 1 (pid") && says(cause) && std::any_of(collectives.begin(), collectives.end(), says))
          << "rank " << rank << ", wanted rank 1, \"" << cause << "\" and " << collectives.front() << " in: " << error
          << "\nall: " << result.output;
    }
  }
};

TEST_F(MpiFailure, ThrowingRankEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    const MpiJobResult result = run("throws", collective);
    expect_others_say(result, {name_in_errors(collective)}, "aborted the group");
    EXPECT_EQ(error_of_rank(result, 1), "loss is NaN");
  }
}

TEST_F(MpiFailure, StoppedRankEndsTheOthers) {
  expect_others_say(run("is stopped", "barrier"), {"barrier"}, "is stopped");
  ::setenv("ZERO_STOPPED_LIMIT_S", "0.4", 1);
  for (const std::string& collective : kCollectives)
    expect_others_say(run("is stopped", collective), {name_in_errors(collective)}, "is stopped");
  ::unsetenv("ZERO_STOPPED_LIMIT_S");
}

TEST_F(MpiFailure, KilledRankEndsTheOthers) {
  for (const std::string collective : {"all_gather", "reduce_scatter", "exchange", "allocate_node_shared"})
    run("is killed", collective);
}

TEST_F(MpiFailure, RankStruckInBackwardEndsTheOthers) {
  const std::vector<std::string> collectives = {"reduce_scatter", "all_gather", "barrier"};
  for (const std::string store : {"copying", "node_shared"}) {
    const std::string where = std::string(kEngine) + store;
    run("is killed", where);
    expect_others_say(run("throws", where), collectives, "aborted the group");
    expect_others_say(run("is stopped", where), collectives, "is stopped");
  }
}

}  // namespace
}  // namespace zero::testing::mpi_failure_test

int main(int argc, char** argv) {
  if (argc >= 4 && std::string_view(argv[1]) == "--rank")
    return zero::testing::mpi_failure_test::be_rank(argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
