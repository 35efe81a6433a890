// comms_logger: every collective of training is in the table with its calls and bytes, which are those of the counters
// and of the theory, and the rank that keeps the others waiting is named.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "support/layers.h"
#include "support/mpi_job.h"
#include "support/spawn.h"

namespace zero::testing::comms_logger_test {
namespace {

std::string json_of(int stage, const std::string& store, const std::string& logger, int accumulation = 1) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "comms_logger": {{"enabled": true{}}}, "zerotorch": {{"store": "{}"}}}})",
                     accumulation, stage, logger, store);
}

std::int64_t calls_of(const CommsSummary& summary, const std::string& operation) {
  std::int64_t calls = 0;
  for (const auto& one : summary.records) calls += one.operation == operation ? one.calls : 0;
  return calls;
}

std::int64_t nbytes_of(const CommsSummary& summary, const std::string& operation) {
  std::int64_t nbytes = 0;
  for (const auto& one : summary.records) nbytes += one.operation == operation ? one.calls * one.nbytes : 0;
  return nbytes;
}

void expect_like_counters(const CommsSummary& summary, const CommunicationCounters& before,
                          const CommunicationCounters& after) {
  const auto calls = [](const CollectiveCounter& a, const CollectiveCounter& b) { return b.calls - a.calls; };
  EXPECT_EQ(calls_of(summary, "all_gather"), calls(before.all_gather, after.all_gather));
  EXPECT_EQ(calls_of(summary, "reduce_scatter"), calls(before.reduce_scatter, after.reduce_scatter));
  EXPECT_EQ(calls_of(summary, "all_reduce"), calls(before.all_reduce, after.all_reduce));
  EXPECT_EQ(calls_of(summary, "broadcast"), calls(before.broadcast, after.broadcast));
  EXPECT_EQ(calls_of(summary, "barrier"), calls(before.barrier, after.barrier));
}

/// At all stages, in both stores. *Collective.*
void expect_every_call(Group group) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* store : {"copying", "node_shared"}) {
      auto engine = layers_engine(group, 3, {}, json_of(stage, store, ""));
      const CommunicationCounters before = group.counters();
      train(engine, 3);
      // All gradients, in fp32; alone there is nobody to send them to.
      const std::int64_t padded = engine.communication_report().padded_numel;
      const CommunicationCounters after = group.counters();
      const CommsSummary summary = engine.comms_summary();
      expect_like_counters(summary, before, after);
      EXPECT_EQ(nbytes_of(summary, "reduce_scatter"), group.size() > 1 ? 3 * padded * 4 : 0) << stage << store;
      for (const auto& one : summary.records) {
        EXPECT_EQ(one.group, "data-parallel");
        EXPECT_EQ(one.ranks, group.size());
        EXPECT_GT(one.seconds, 0);
        EXPECT_LE(one.moving_seconds, one.seconds);
        EXPECT_TRUE(one.label.empty());
        const double mean = one.seconds / static_cast<double>(one.calls), n = group.size();
        EXPECT_DOUBLE_EQ(one.algorithm_bandwidth(), static_cast<double>(one.nbytes) / mean);
        const double factor = one.operation == "all_reduce"                                ? 2 * (n - 1) / n
                              : one.operation == "broadcast" || one.operation == "barrier" ? n > 1
                                                                                           : (n - 1) / n;
        EXPECT_DOUBLE_EQ(one.bus_bandwidth(), one.algorithm_bandwidth() * factor);
      }
      // What the summary itself needs is not in the next one.
      const CommsSummary again = engine.comms_summary();
      EXPECT_EQ(calls_of(again, "all_gather"), calls_of(summary, "all_gather"));
      EXPECT_EQ(group.size() == 1, again.stragglers.empty());
      EXPECT_EQ(again.to_string().find("reduce_scatter") != std::string::npos, group.size() > 1);
    }
  }
}

TEST(CommsLogger, HasEveryCallOfTraining) {
  for (const int ranks : {1, 2, 3})
    expect_all_ok(spawn(ranks, &expect_every_call, {.timeout = std::chrono::minutes(2)}));
}

TEST(CommsLogger, HasEveryCallOfTrainingOverMpi) {
  if (!mpirun_path()) GTEST_SKIP() << "no MPI in this build";
  for (const int ranks : {2, 3}) {
    const MpiJobResult result = run_under_mpirun(ranks, {"--rank"}, std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_FALSE(result.timed_out);
  }
}

TEST(CommsLogger, CountsWhatAUserCallsToo) {
  expect_all_ok(spawn(3, [](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(2, "copying", R"(, "debug": true)"));
    std::vector<float> values(40'000, 1.0f);  // a large all-reduce: two halves, one call
    const auto sum = [&](std::int64_t numel) {
      group.all_reduce(values.data(), numel, DType::kFloat32, ReduceOp::kSum, {.label = "mine"}).wait();
    };
    for (int i = 0; i < 5; ++i) sum(40'000);
    sum(7);
    group.broadcast(values.data(), 9, DType::kBFloat16, 1, {.label = "theirs"}).wait();
    std::map<std::pair<std::string, std::int64_t>, std::int64_t> calls;
    for (const auto& one : engine.comms_summary().records)
      calls[{one.operation + " " + one.label, one.nbytes}] = one.calls;
    EXPECT_EQ((calls[{"all_reduce mine", 160'000}]), 5);
    EXPECT_EQ((calls[{"all_reduce mine", 28}]), 1);
    EXPECT_EQ((calls[{"broadcast theirs", 18}]), 1);
  }));
}

TEST(CommsLogger, OnlyKindsThatWereAskedFor) {
  expect_all_ok(spawn(2, [](Group group) {
    const std::string gathers = R"(, "prof_all": false, "prof_ops": ["all_gather_base"])";
    auto engine = layers_engine(group, 3, {}, json_of(1, "copying", gathers));
    train(engine, 2);
    const CommsSummary summary = engine.comms_summary();
    EXPECT_GT(calls_of(summary, "all_gather"), 0);
    for (const auto& one : summary.records) EXPECT_EQ(one.operation, "all_gather");
    auto none = layers_engine(group.split(0), 3, {}, json_of(1, "copying", R"(, "prof_all": false)"));
    train(none, 1);
    EXPECT_TRUE(none.comms_summary().records.empty());
  }));
}

TEST(CommsLogger, NamesTheRankThatTheOthersWaitFor) {
  expect_all_ok(spawn(3, [](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(1, "copying", R"(, "debug": true)"));
    constexpr int kCalls = 4;
    constexpr double kLate = 0.03;
    for (int i = 0; i < kCalls; ++i) {
      group.barrier({.label = "meet"}).wait();
      if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
      if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::duration<double>(kLate / 3));
      float value = 1;
      group.all_reduce(&value, 1, DType::kFloat32, ReduceOp::kSum, {.label = "late"}).wait();
    }
    int found = 0;
    for (const auto& one : engine.comms_summary().stragglers) {
      if (one.label != "late") continue;
      ++found;
      EXPECT_EQ(one.calls, kCalls);
      EXPECT_EQ(one.slowest_rank, 1);
      EXPECT_EQ(one.fastest_rank, 0);
      EXPECT_GT(one.most_seconds, kCalls * kLate * 0.8);
      EXPECT_GT(one.straggler_seconds, kCalls * kLate * (1 + 2.0 / 3) / 3 * 0.5);
      EXPECT_LT(one.straggler_seconds, one.most_seconds);
      EXPECT_LT(one.communication_seconds, kCalls * kLate * 0.8);
    }
    EXPECT_EQ(found, 1);
  }));
}

/// More calls than are kept one by one, and on a rank more than on the others under way.
TEST(CommsLogger, OldCallsStayInTheTotals) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = layers_engine(group, 3, {}, json_of(1, "copying", R"(, "debug": true)"));
    for (int i = 0; i < 700; ++i) group.barrier({.label = "many"}).wait();
    const CommsSummary summary = engine.comms_summary();
    EXPECT_EQ(calls_of(summary, "barrier"), 700);
    for (const auto& one : summary.stragglers) {
      if (one.label == "many") {
        EXPECT_EQ(one.calls, 256);
      }
    }
  }));
}

TEST(CommsLogger, IsOffUnlessItIsOn) {
  expect_all_ok(spawn(2, [](Group group) {
    auto engine = layers_engine(group, 3, {}, layers_json());
    EXPECT_EQ(error_of<ConfigError>([&] { (void)engine.comms_summary(); }),
              "comms_summary(): nothing is recorded; set comms_logger.enabled to true");
    {
      auto first = layers_engine(group, 3, {}, json_of(1, "copying", ""));
      auto second = layers_engine(group, 3, {}, json_of(1, "copying", ""));
      { auto third = layers_engine(group, 3, {}, json_of(1, "copying", "")); }
      train(second, 1);  // over one group: one log
      EXPECT_EQ(calls_of(first.comms_summary(), "reduce_scatter"), calls_of(second.comms_summary(), "reduce_scatter"));
      EXPECT_GT(calls_of(first.comms_summary(), "reduce_scatter"), 0);
    }
    auto later = layers_engine(group, 3, {}, json_of(1, "copying", ""));
    EXPECT_EQ(calls_of(later.comms_summary(), "reduce_scatter"), 0);  // a new log
  }));
}

}  // namespace

/// A rank of an mpirun job.
int be_rank() {
  const Group group = join_mpi_job();
  expect_every_call(group);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace zero::testing::comms_logger_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc >= 2 && std::string_view(argv[1]) == "--rank") return zero::testing::comms_logger_test::be_rank();
  return RUN_ALL_TESTS();
}
