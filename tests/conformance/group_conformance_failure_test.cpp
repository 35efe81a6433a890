// The failures that every backend must report alike: late ranks, diverging calls, aborts. Same program and
// arguments as group_conformance_test.cpp.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "conformance_main.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zero::testing::group_conformance_failure_test {
namespace {

using namespace std::chrono_literals;

TEST(GroupConformance, LateRankIsNamedAfterTheTimeout) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    group.barrier({.label = "start"}).wait();
    const int late = group.size() - 1;
    if (group.rank() == late) std::this_thread::sleep_for(1500ms);
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = comm_error_of([&] {
      for (int i = 0; i < 2; ++i) group.barrier({.label = "too late", .timeout = 300ms}).wait();
    });
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took, 1s);
    EXPECT_CONTAINS(text, "timeout");
    EXPECT_CONTAINS(text, "barrier #1 \"too late\"");
    EXPECT_CONTAINS(text, "rank " + std::to_string(late));
    EXPECT_CONTAINS(text, "has not arrived");
    EXPECT_CONTAINS(text, "barrier #0 \"start\"");
    // From now on every call throws at once.
    EXPECT_CONTAINS(comm_error_of([&] { group.barrier().wait(); }), "timeout");
  });
}

/// All ranks must fail with a message that holds both calls.
void expect_divergence(const std::function<void(Group&)>& first_rank, const std::function<void(Group&)>& others,
                       const std::vector<std::string>& parts) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([&](Group group) {
    group.set_timeout(10s);
    const std::string text = comm_error_of([&] {
      group.barrier({.label = "before"}).wait();
      group.rank() == 0 ? first_rank(group) : others(group);
      group.barrier({.label = "after"}).wait();
      group.barrier({.label = "after"}).wait();
    });
    EXPECT_CONTAINS(text, "diverge");
    EXPECT_CONTAINS(text, "\"before\"");  // the recent calls
    for (const std::string& part : parts) EXPECT_CONTAINS(text, part);
  });
}

TEST(GroupConformance, LabelMismatch) {
  float x[2] = {};
  expect_divergence([&](Group& g) { g.all_reduce(x, 2, DType::kFloat32, ReduceOp::kSum, {.label = "layer.1"}).wait(); },
                    [&](Group& g) { g.all_reduce(x, 2, DType::kFloat32, ReduceOp::kSum, {.label = "layer.2"}).wait(); },
                    {"label differs", "all_reduce #1 \"layer.1\" (2 fp32)", "all_reduce #1 \"layer.2\" (2 fp32)"});
}

TEST(GroupConformance, CountMismatch) {
  std::vector<float> x(4096);
  expect_divergence(
      [&](Group& g) {
        g.all_gather(x.data(), x.data() + 2048, Counts(static_cast<std::size_t>(g.size()), 100), DType::kFloat32)
            .wait();
      },
      [&](Group& g) {
        g.all_gather(x.data(), x.data() + 2048, Counts(static_cast<std::size_t>(g.size()), 101), DType::kFloat32)
            .wait();
      },
      {"number of elements differs", "all_gather #1"});
}

TEST(GroupConformance, DivisionMismatch) {
  std::vector<float> x(4096);
  const auto counts = [](const Group& g, bool first) {
    Counts c(static_cast<std::size_t>(g.size()), 100);
    c[first ? 0 : 1] += 7;
    return c;
  };
  expect_divergence(
      [&](Group& g) {
        g.reduce_scatter(x.data(), x.data() + 2048, counts(g, true), DType::kFloat32, DType::kFloat32, false).wait();
      },
      [&](Group& g) {
        g.reduce_scatter(x.data(), x.data() + 2048, counts(g, false), DType::kFloat32, DType::kFloat32, false).wait();
      },
      {"counts", "reduce_scatter #1"});
}

TEST(GroupConformance, KindMismatch) {
  std::vector<float> x(1 << 16);
  expect_divergence([&](Group& g) { g.all_reduce(x.data(), 1 << 16, DType::kFloat32).wait(); },
                    [&](Group& g) { g.broadcast(x.data(), 1 << 16, DType::kFloat32, 0).wait(); },
                    {"kind of collective differs", "all_reduce #1", "broadcast #1"});
}

TEST(GroupConformance, DtypeMismatch) {
  std::vector<float> x(64);
  expect_divergence([&](Group& g) { g.all_reduce(x.data(), 2, DType::kFloat32).wait(); },
                    [&](Group& g) { g.all_reduce(x.data(), 2, DType::kFloat64).wait(); }, {"dtype differs"});
}

TEST(GroupConformance, RootMismatch) {
  float x = 0;
  expect_divergence([&](Group& g) { g.broadcast(&x, 1, DType::kFloat32, 0).wait(); },
                    [&](Group& g) { g.broadcast(&x, 1, DType::kFloat32, 1).wait(); }, {"root"});
}

TEST(GroupConformance, ForgottenCallMismatch) {
  expect_divergence([&](Group& g) { g.barrier({.label = "only rank 0 is here"}).wait(); }, [](Group&) {},
                    {"barrier #1 \"only rank 0 is here\"", "barrier #1 \"after\""});
}

TEST(GroupConformance, NodeSharedSizeMismatch) {
  expect_divergence([&](Group& g) { g.allocate_node_shared(4096, "p"); },
                    [](Group& g) { g.allocate_node_shared(8192, "p"); }, {"allocate_node_shared #1 \"p\""});
}

TEST(GroupConformance, AbortReachesEveryRank) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    group.barrier().wait();
    if (group.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      group.abort("the loss is not a number");
      group.abort("a second reason does not count");
    }
    const std::string text = comm_error_of([&] { group.barrier({.label = "step 7"}).wait(); });
    EXPECT_CONTAINS(text, "rank 1");
    EXPECT_CONTAINS(text, "the loss is not a number");
    EXPECT_EQ(text.find("second reason"), std::string::npos);
  });
}

TEST(GroupConformance, FinishStepThatThrowsEndsAllRanks) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    Work work = group.exchange(in.data(), counts, DType::kFloat32,
                               [&](auto) {
                                 if (group.rank() == 0) throw std::runtime_error("broken finish step");
                               },
                               {.label = "bucket 3"});
    if (group.rank() == 0) {
      EXPECT_THROW(work.wait(), std::runtime_error);
    } else {
      const std::string text = comm_error_of([&] {
        work.wait();
        group.barrier({.timeout = 5s}).wait();
      });
      EXPECT_CONTAINS(text, "broken finish step");
      EXPECT_CONTAINS(text, "reduce_scatter #0 \"bucket 3\"");
    }
  });
}

}  // namespace
}  // namespace zero::testing::group_conformance_failure_test
