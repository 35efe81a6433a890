// Memory for whole units that the ranks of a host share: who brings which part, what is kept, and what is reused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "storage/host_units.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "zero/errors.h"

namespace zero::storage::host_units_test {
namespace {

using testing::expect_all_ok;
using testing::spawn;
using Part = HostUnits::Part;

constexpr std::int64_t kNumel = 3 * 1024;

std::vector<HostUnitSize> sizes(int units) {
  return std::vector<HostUnitSize>(static_cast<std::size_t>(units), {kNumel, 2});
}

void barrier(Group& group) { group.barrier({.label = "test"}).wait(); }

TEST(HostUnits, AllRanksSeeTheSameMemory) {
  expect_all_ok(spawn(3, [](Group group) {
    Ledger ledger;
    HostUnits units(group, ledger, DType::kFloat32, sizes(2));
    auto* const memory = static_cast<float*>(units.join(1, 7));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 4096, 0u);
    memory[group.rank()] = static_cast<float>(group.rank() + 1);
    barrier(group);
    for (int r = 0; r < group.size(); ++r) EXPECT_EQ(memory[r], r + 1);
    barrier(group);
    units.leave(1);
    // What all have together, divided among them.
    EXPECT_EQ(ledger.report()[MemoryKind::kGather].current_nbytes, kNumel * 4 / 3);
  }));
}

TEST(HostUnits, OneRankBringsAPart) {
  expect_all_ok(spawn(4, [](Group group) {
    Ledger ledger;
    HostUnits units(group, ledger, DType::kBFloat16, sizes(3));
    for (std::uint64_t version = 0; version < 50; ++version) {
      units.join(2, version);
      barrier(group);
      std::int64_t mine = 0;
      for (int part = units.first_part(2); part < units.first_part(3); ++part) {
        EXPECT_NE(units.state(part), Part::kThere);
        mine += units.claim(part);
      }
      group.all_reduce(&mine, 1, DType::kInt64, ReduceOp::kSum).wait();
      EXPECT_EQ(mine, 2);
      for (int part = units.first_part(2); part < units.first_part(3); ++part) units.put(part);
      EXPECT_EQ(units.state(units.first_part(2)), Part::kThere);
      EXPECT_EQ(units.state(units.first_part(1)), Part::kMissing) << "of another unit";
      units.leave(2);
      barrier(group);
    }
  }));
}

TEST(HostUnits, WhatIsThereStaysUntilItsMemoryIsNeeded) {
  Group group;
  Ledger ledger;
  HostUnits units(group, ledger, DType::kFloat32, sizes(4));
  const auto bring = [&](int unit) {
    void* const memory = units.join(unit, 1);
    for (int part = units.first_part(unit); part < units.first_part(unit + 1); ++part) units.put(part);
    return memory;
  };
  const auto is_there = [&](int unit, std::uint64_t version) {
    units.join(unit, version);
    const bool there = units.state(units.first_part(unit)) == Part::kThere;
    units.leave(unit);
    return there;
  };
  void* const zero = bring(0);
  void* const one = bring(1);
  EXPECT_NE(zero, one);
  units.leave(0);
  units.leave(1);
  EXPECT_TRUE(is_there(1, 1));
  EXPECT_TRUE(is_there(0, 1));
  // The one that was used longest ago goes.
  EXPECT_EQ(bring(2), one);
  units.leave(2);
  EXPECT_TRUE(is_there(0, 1));
  EXPECT_TRUE(is_there(2, 1));
  EXPECT_FALSE(is_there(2, 2)) << "of another version";
  EXPECT_EQ(ledger.report()[MemoryKind::kGather].current_nbytes, 2 * kNumel * 4);
}

TEST(HostUnits, ASmallUnitDoesNotTakeALargeOnesMemoryWhereItNeedNot) {
  Group group;
  Ledger ledger;
  HostUnits units(group, ledger, DType::kFloat32, {{1024, 1}, {8192, 1}, {1024, 1}, {8192, 1}});
  void* const small = units.join(0, 0);
  void* const large = units.join(1, 0);
  units.leave(1);
  units.leave(0);
  EXPECT_EQ(units.join(2, 0), small);
  EXPECT_EQ(units.join(3, 0), large);
  EXPECT_EQ(ledger.report()[MemoryKind::kGather].current_nbytes, (1024 + 8192) * 4);
}

TEST(HostUnits, NeverMoreThanWasHeldAtATime) {
  Group group;
  Ledger ledger;
  HostUnits units(group, ledger, DType::kFloat32, {{8192, 1}, {8192, 1}, {1024, 1}, {2048, 1}, {8192, 1}});
  const auto kept = [&] { return ledger.report()[MemoryKind::kGather].current_nbytes / 4; };
  const auto hold = [&](int unit) { return static_cast<float*>(units.join(unit, 0)); };
  hold(0);
  hold(1);
  for (const int unit : {0, 1}) units.leave(unit);
  float* const small = hold(2);
  float* const middle = hold(3);
  small[0] = middle[0] = 5;
  EXPECT_EQ(kept(), 2 * 8192) << "in the buffers there are";
  hold(4);
  EXPECT_EQ(kept(), 3 * 8192) << "the most that was held, and one more";
  for (const int unit : {2, 3, 4}) units.leave(unit);
  hold(0);
  hold(1);
  EXPECT_EQ(kept(), 3 * 8192);
  hold(2);
  EXPECT_EQ(kept(), 3 * 8192) << "in the third";
  EXPECT_EQ(ledger.report()[MemoryKind::kGather].peak_nbytes, 3 * 8192 * 4);
}

TEST(HostUnits, WhatIsBehindASmallUnitIsGivenBackFirst) {
  Group group;
  Ledger ledger;
  HostUnits units(group, ledger, DType::kFloat32, {{8192, 1}, {1024, 1}, {8192, 1}, {8192, 1}, {1024, 1}});
  units.join(0, 0);
  units.leave(0);
  auto* const small = static_cast<float*>(units.join(1, 0));  // in the same buffer
  small[0] = 5;
  units.join(2, 0);
  units.leave(2);
  units.join(4, 0);
  units.leave(4);
  units.join(3, 0);
  EXPECT_LE(ledger.report()[MemoryKind::kGather].current_nbytes, (1024 + 8192 + 8192) * 4);
  EXPECT_EQ(small[0], 5);
}

TEST(HostUnits, ValuesOfAnotherTimeAreNotMixedIn) {
  Group group;
  Ledger ledger;
  HostUnits units(group, ledger, DType::kFloat32, sizes(1));
  units.join(0, 1);
  const std::string error = testing::error_of<ModelError>([&] { units.join(0, 2); });
  EXPECT_NE(error.find("GatheredParameters"), std::string::npos) << error;
  units.leave(0);
  units.join(0, 2);
  EXPECT_EQ(units.state(0), Part::kMissing);
}

/// Killed at any time, most of all with the lock: the others go on, or hear of it.
TEST(HostUnits, OfADeadRankNobodyKeepsWaiting) {
  int heard = 0;
  for (int sample = 0; sample < 40; ++sample) {
    const auto results = spawn(2,
                               [&](Group group) {
                                 Ledger ledger;
                                 HostUnits units(group, ledger, DType::kFloat32, sizes(2));
                                 const auto use = [&] {
                                   units.join(0, 1);
                                   units.leave(0);
                                 };
                                 if (group.rank() == 1) {
                                   std::signal(SIGALRM, SIG_DFL);
                                   ::ualarm(static_cast<useconds_t>(1000 + 37 * sample), 0);
                                   while (true) use();
                                 }
                                 const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
                                 while (std::chrono::steady_clock::now() < end) use();
                               },
                               {.timeout = std::chrono::seconds(10)});
    EXPECT_FALSE(results[0].timed_out);
    EXPECT_EQ(results[1].signal, SIGALRM);
    if (results[0].ok) continue;
    EXPECT_NE(results[0].error.find("a rank of this host died"), std::string::npos) << results[0].error;
    ++heard;
  }
  EXPECT_GT(heard, 0);
}

}  // namespace
}  // namespace zero::storage::host_units_test
