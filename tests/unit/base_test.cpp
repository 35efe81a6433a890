// Cores and their shares, and memory as the kernel counts it.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>

#include "base/cores.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "support/temporary_folder.h"
#include "zero/memory.h"

namespace zero::base::base_test {
namespace {

/// Two sockets with a memory node each, four cores a socket, two threads a core; numbered as Linux often
/// does: first threads 0-7, second threads 8-15.
std::vector<Cpu> two_sockets() {
  std::vector<Cpu> cpus;
  for (int id = 0; id < 16; ++id) cpus.push_back({id, id % 8 / 4, id % 8 / 4, id % 4});
  return cpus;
}

using Ids = std::vector<int>;

TEST(Cores, ARankLiesOnOneMemoryNode) {
  EXPECT_EQ(core_share(two_sockets(), 0, 2), (Ids{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(core_share(two_sockets(), 1, 2), (Ids{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(core_share(two_sockets(), 3, 4), (Ids{6, 7, 14, 15}));
  EXPECT_EQ(core_share(two_sockets(), 0, 1).size(), 16u);
}

TEST(Cores, RanksShareACoreOnlyWhenTheyMust) {
  EXPECT_EQ(core_share(two_sockets(), 5, 8), (Ids{5, 13}));
  std::set<int> all;
  for (int rank = 0; rank < 12; ++rank) {
    const Ids share = core_share(two_sockets(), rank, 12);
    EXPECT_FALSE(share.empty());
    all.insert(share.begin(), share.end());
  }
  EXPECT_EQ(all.size(), 16u);
  EXPECT_EQ(core_share(two_sockets(), 15, 16).size(), 1u);
  EXPECT_TRUE(core_share(two_sockets(), 0, 17).empty());
}

TEST(Cores, SharesAreDisjointAndWholeForEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    std::set<int> all;
    std::size_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Ids share = core_share(two_sockets(), rank, ranks);
      all.insert(share.begin(), share.end());
      sum += share.size();
    }
    EXPECT_EQ(all.size(), 16u) << ranks;
    EXPECT_EQ(sum, 16u) << ranks;
  }
  EXPECT_EQ(count_cores(two_sockets()), 8);
}

TEST(Cores, ARankLiesBesideItsDevice) {
  const auto shares_of = [](std::vector<int> nodes) {
    Ids shares;
    for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank) shares.push_back(share_of_rank(nodes, rank));
    return shares;
  };
  EXPECT_EQ(shares_of({0, 0, 1, 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(shares_of({1, 1, 0, 0}), (Ids{2, 3, 0, 1}));
  EXPECT_EQ(shares_of({1, 0, 1, 0, 0}), (Ids{3, 0, 4, 1, 2}));
  EXPECT_EQ(shares_of({1, -1, 0, 0}), (Ids{0, 1, 2, 3})) << "one is not known";
  EXPECT_EQ(core_share(two_sockets(), share_of_rank(Ids{1, 0}, 0), 2), (Ids{4, 5, 6, 7, 12, 13, 14, 15}));
}

TEST(Cores, TheNodeOfADeviceIsTheSystems) {
  const zero::testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder.file("0000:3b:00.0"));
  std::ofstream(folder.file("0000:3b:00.0/numa_node")) << "1\n";
  EXPECT_EQ(memory_node_of_pci("0000:3B:00.0", folder.path()), 1);
  EXPECT_EQ(memory_node_of_pci("0000:3C:00.0", folder.path()), -1);
}

TEST(Log, ALevelThatIsNoneIsSaidAndInfoUsed) {
  ::setenv("ZERO_LOG_LEVEL", "foo", 1);  // read at the first line
  ::testing::internal::CaptureStderr();
  log_info("a line");
  const std::string said = ::testing::internal::GetCapturedStderr();
  ::unsetenv("ZERO_LOG_LEVEL");
  EXPECT_NE(said.find("ZERO_LOG_LEVEL: got 'foo', wanted debug, info, warning, error or off; info is used"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("a line"), std::string::npos) << said;
}

TEST(Cores, ThisProcessMayUseSome) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  const std::vector<Cpu> cpus = usable_cpus();
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&mine));
  for (const Cpu& cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu.id, &mine));
  EXPECT_GE(count_cores(cpus), 1);
}

TEST(Text, BytesAreInTheUnitThatFits) {
  EXPECT_EQ(human_nbytes(0), "0 bytes");
  EXPECT_EQ(human_nbytes(999), "999 bytes");
  EXPECT_EQ(human_nbytes(65'536), "65.5 kB");
  EXPECT_EQ(human_nbytes(1'500'000), "1.5 MB");
  EXPECT_EQ(human_nbytes(12'345'000'000), "12.35 GB");
  EXPECT_EQ(megabytes(43'760'000), "43.8");
  EXPECT_EQ(megabytes(0), "-");
}

TEST(ProcessMemory, SeesAPeakThatIsOver) {
  constexpr std::int64_t kBlock = 64 << 20;
  const bool can_reset = reset_peak();
  const std::int64_t before = resident_nbytes();
  ASSERT_GT(before, 0);
  if (can_reset) {
    EXPECT_LT(peak_proportional_nbytes(), before + kBlock / 2);
  }
  {
    const std::unique_ptr<char, decltype(&std::free)> block(static_cast<char*>(std::malloc(kBlock)), &std::free);
    std::memset(block.get(), 1, kBlock);
    EXPECT_GE(resident_nbytes(), before + kBlock * 9 / 10);
    EXPECT_GE(proportional_nbytes(), kBlock * 9 / 10);
  }
  EXPECT_GE(peak_proportional_nbytes(), kBlock);
  if (!reset_peak()) return;
  EXPECT_LT(peak_proportional_nbytes(), before + kBlock / 2);
}

}  // namespace
}  // namespace zero::base::base_test
