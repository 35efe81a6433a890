// Promise P2, one curve: for a fixed global batch, losses, norms, weights and optimizer states are the same
// bits whatever the stage, store, backend, world size, bucket size and overlap, for every optimizer and schedule; and
// close to plain libtorch.
//
//   parity_test                 sampled cases, shm and mpi
//   ZERO_PARITY=quick           few of those, on fewer numbers of ranks
//   ZERO_PARITY=full            every case
//   ZERO_PARITY=recipes         every case of other optimizers and schedules than AdamW at a constant rate
//   parity_test --worker FILE   one rank of an mpirun job: rank 0 writes "case<TAB>result" lines
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "support/parity.h"
#include "support/spawn.h"

namespace zero::testing::parity_test {
namespace {

std::string g_program;

std::string_view wanted() {
  const char* const given = std::getenv("ZERO_PARITY");
  return given ? given : "";
}

bool is_quick() { return wanted() == "quick"; }
bool is_sample() { return wanted() != "full" && wanted() != "recipes"; }

std::vector<ParityCase> wanted_cases(bool one_host = true) {
  auto cases = parity_cases(is_sample());
  if (wanted() == "recipes") std::erase_if(cases, [](const ParityCase& one) { return one.recipe == 0; });
  if (is_quick()) {
    int number = 0;
    std::erase_if(cases, [&](const ParityCase&) { return number++ % 7 != 0; });
  }
  if (!one_host) std::erase_if(cases, &ParityCase::nvme_parameters);
  return cases;
}

void run_all_cases(Group group, const std::string& path) {
  std::ofstream out;
  if (group.rank() == 0) out.open(path);
  for (const auto& test_case : wanted_cases(group.single_node())) {
    const auto result = run_parity_case(test_case, group);
    if (group.rank() == 0)
      out << test_case.curve() << '\t' << test_case.name() << '\t' << result.text() << '\n' << std::flush;
  }
}

/// curve -> case -> result
using Results = std::map<std::string, std::map<std::string, std::string>>;

Results read_results(const std::string& path) {
  Results results;
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    results[line.substr(0, first)][line.substr(first + 1, second - first - 1)] = line.substr(second + 1);
  }
  return results;
}

class Parity : public ::testing::Test {
 protected:
  std::string path_ = fmt::format("/tmp/zero_parity_{}.txt", getpid());
  void TearDown() override { std::remove(path_.c_str()); }
};

TEST_F(Parity, EveryCombinationGivesTheSameBits) {
  Results expected;  // curve -> {"": result of the first case}
  std::size_t compared = 0;
  const auto compare = [&](const std::string& where, bool one_host) {
    const auto results = read_results(path_);
    const std::size_t before = compared;
    for (const auto& [curve, cases] : results) {
      for (const auto& [name, result] : cases) {
        const auto [first, is_new] = expected[curve].try_emplace("", result);
        EXPECT_EQ(first->second, result) << where << ", " << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared - before, wanted_cases(one_host).size()) << where;
    std::remove(path_.c_str());
  };
  const auto timeout = std::chrono::seconds(is_sample() ? 300 : 1800);
  for (int ranks = 1; ranks <= (is_quick() ? 3 : 4); ++ranks) {
    expect_all_ok(spawn(ranks, [&](Group group) { run_all_cases(group, path_); }, {.timeout = timeout}));
    compare(fmt::format("{} ranks, shm", ranks), /*one_host=*/true);
  }
  for (const auto& [ranks, per_host] : {std::pair{2, 1}, std::pair{4, 2}}) {
    if (is_quick()) break;
    const OneHostAsSeveral hosts(per_host);
    expect_all_ok(spawn(ranks, [&](Group group) { run_all_cases(group, path_); }, {.timeout = timeout}));
    compare(fmt::format("{} ranks, shm, {} to a host", ranks, per_host), /*one_host=*/false);
  }
  const char* mpirun = std::getenv("ZERO_MPIRUN");
  if (!mpirun) {
    std::printf("no MPI in this build: shm only\n");
  } else {
    for (const auto& [ranks, per_host] : {std::pair{1, 1}, {2, 2}, {3, 3}, {4, 4}, {2, 1}, {4, 2}}) {
      if (is_quick() && ranks != 2) continue;
      if (is_sample() && ranks == 1) continue;  // it has no one to send to, in either backend
      const OneHostAsSeveral hosts(per_host);
      const int status = std::system(
          fmt::format("ZERO_BACKEND=mpi timeout {} {} -n {} --oversubscribe --allow-run-as-root {} --worker {}",
                      timeout.count(), mpirun, ranks, g_program, path_)
              .c_str());
      EXPECT_EQ(status, 0) << "mpirun with " << ranks << " ranks";
      compare(fmt::format("{} ranks, mpi{}", ranks, per_host == ranks ? "" : " on several hosts"), per_host == ranks);
    }
  }
  std::set<std::string> curves, results;
  for (const auto& test_case : wanted_cases()) curves.insert(test_case.curve());
  for (const auto& [curve, result] : expected) results.insert(result.at(""));
  EXPECT_EQ(expected.size(), curves.size());
  EXPECT_EQ(results.size(), curves.size()) << "no two curves are alike";
  std::printf("%zu runs compared, %zu curves\n", compared, expected.size());
}

/// Both sides do the same additions in other orders and with other roundings of beta and step size, so
/// weights drift apart by float rounding: relative 2e-4 of the largest weight is allowed after 5 steps
/// (Adam divides by a root of squares, which amplifies differences of tiny gradients).
void expect_close(const PlainResult& plain, const PlainResult& ours, double tolerance) {
  ASSERT_EQ(plain.losses.size(), ours.losses.size());
  for (std::size_t i = 0; i < plain.losses.size(); ++i) {
    EXPECT_NEAR(plain.losses[i], ours.losses[i], tolerance * std::abs(plain.losses[i])) << "loss " << i;
  }
  for (std::size_t i = 0; i < plain.norms.size(); ++i) {
    EXPECT_NEAR(plain.norms[i], ours.norms[i], 5 * tolerance * plain.norms[i]) << "norm " << i;
  }
  ASSERT_EQ(plain.weights.size(), ours.weights.size());
  for (std::size_t p = 0; p < plain.weights.size(); ++p) {
    ASSERT_EQ(plain.weights[p].size(), ours.weights[p].size());
    for (std::size_t i = 0; i < plain.weights[p].size(); ++i) {
      ASSERT_NEAR(plain.weights[p][i], ours.weights[p][i], tolerance) << "parameter " << p << ", element " << i;
    }
  }
}

TEST(PlainParity, Fp32AgreesWithLibtorchAdamW) {
  expect_all_ok(spawn(1, [](Group) {
    for (bool clipping : {false, true}) {
      expect_close(run_plain(false, clipping), run_engine_plain({.stage = 3, .clipping = clipping}), 2e-4);
    }
  }));
}

TEST(PlainParity, Bf16AgreesWithMastersByHand) {
  expect_all_ok(spawn(1, [](Group) {
    for (bool clipping : {false, true}) {
      // One bf16 rounding that falls the other way changes a gradient by 2^-8.
      expect_close(run_plain(true, clipping), run_engine_plain({.stage = 3, .bf16 = true, .clipping = clipping}), 2e-2);
    }
  }));
}

}  // namespace
}  // namespace zero::testing::parity_test

int main(int argc, char** argv) {
  zero::testing::parity_test::g_program = argv[0];
  if (argc == 3 && std::string_view(argv[1]) == "--worker") {
    zero::testing::parity_test::run_all_cases(zero::init_distributed(), argv[2]);
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
