#include "conformance_main.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "support/spawn.h"
#include "zero/errors.h"

namespace zero::testing {
namespace {

std::string g_backend = "shm";
int g_ranks = 2;
bool g_progress_thread = false;

/// Ranks above 0 of a job that a launcher has started say only what failed.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) {
      std::fprintf(stderr, "[rank %d] %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "?",
                   result.line_number(), result.message());
    }
  }

 private:
  int rank_;
};

void read_arguments(int argc, char** argv) {
  if (const char* backend = std::getenv("ZERO_CONFORMANCE_BACKEND")) g_backend = backend;
  if (const char* ranks = std::getenv("ZERO_CONFORMANCE_RANKS")) g_ranks = std::atoi(ranks);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument.starts_with("--backend=")) g_backend = argument.substr(std::strlen("--backend="));
    if (argument.starts_with("--ranks=")) g_ranks = std::atoi(argv[i] + std::strlen("--ranks="));
    if (argument == "--progress-thread") g_progress_thread = true;
  }
  if (g_backend == "self") g_ranks = 1;
}

}  // namespace

const std::string& conformance_backend() { return g_backend; }
int conformance_ranks() { return g_ranks; }
bool conformance_is_launched() { return g_backend == "mpi" || g_backend == "ucx"; }

bool conformance_progress_thread() { return g_progress_thread; }

void on_ranks(const std::function<void(Group)>& test) {
  const auto fn = [&](Group group) {
    group.set_progress_thread(g_progress_thread);
    test(std::move(group));
  };
  if (g_backend == "shm") {
    expect_all_ok(spawn(g_ranks, fn));
  } else if (g_backend == "threads") {
    expect_all_ok(spawn_threads(g_ranks, fn));
  } else if (g_backend == "self") {
    fn(Group());
  } else {
    try {
      fn(init_distributed({.backend = g_backend}));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "exception on this rank: " << error.what();
    }
  }
}

}  // namespace zero::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  zero::testing::read_arguments(argc, argv);
  if (zero::testing::conformance_is_launched()) {
    const zero::Group group = zero::init_distributed({.backend = zero::testing::g_backend});
    zero::testing::g_ranks = group.size();
    if (group.rank() > 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new zero::testing::FailurePrinter(group.rank()));
    }
  }
  return RUN_ALL_TESTS();
}
