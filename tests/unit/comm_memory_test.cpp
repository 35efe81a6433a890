// Regions, staging and the memory that is left.
#include "comm/memory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "comm/staging.h"
#include "zero/errors.h"

namespace zero::comm::comm_memory_test {
namespace {

TEST(CommMemory, AvailableMemoryIsPlausible) {
  EXPECT_GT(available_memory_nbytes(), 16u << 20);
  EXPECT_LT(available_memory_nbytes(), std::uint64_t{1} << 50);
}

TEST(CommMemory, TooLargeARequestSaysWantedAndFree) {
  try {
    check_memory_available(std::size_t{1} << 50, "buckets");
    FAIL();
  } catch (const IoError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("buckets: wanted 1048576.00 GiB"), std::string::npos) << text;
    EXPECT_NE(text.find("are available"), std::string::npos) << text;
  }
  check_memory_available(1 << 20, "small");
}

TEST(CommMemory, RegistryFindsTheRegionOfAnAddress) {
  auto registry = std::make_shared<RegionRegistry>(3, nullptr);
  const auto a = Region::create(registry, 10'000, Region::Sharing::kReadable, "a");
  const auto b = Region::create(registry, 5000, Region::Sharing::kPrivate, "b");
  EXPECT_EQ(registry->find(a->data(), 10'000), a);
  EXPECT_EQ(registry->find(a->data() + 9'000, 1'000), a);
  EXPECT_EQ(registry->find(a->data() + 9'000, 1'001), nullptr);
  EXPECT_EQ(registry->find(b->data() + 1, 10), b);
  int local = 0;
  EXPECT_EQ(registry->find(&local, sizeof(local)), nullptr);
  EXPECT_EQ(registry->find(a->id()), a);
  EXPECT_EQ(a->id().owner, 3);
  EXPECT_TRUE(a->shared());
  EXPECT_FALSE(b->shared());
}

TEST(CommMemory, FreedRegionsAreReportedAndGiveTheirPagesBack) {
  std::vector<std::uint32_t> freed;
  auto registry = std::make_shared<RegionRegistry>(0, [&](std::uint32_t number) { freed.push_back(number); });
  auto region = Region::create(registry, 1 << 20, Region::Sharing::kReadable, "r");
  const std::uint32_t number = region->id().number;
  std::memset(region->data(), 1, 1 << 20);
  // A peer's mapping must not keep the pages.
  const FileDescriptor peer_fd = open_descriptor_of(::getpid(), region->fd());
  const Mapping peer(peer_fd.get(), 1 << 20);
  EXPECT_EQ(peer.data()[1000], std::byte{1});
  region.reset();
  EXPECT_EQ(freed, std::vector<std::uint32_t>{number});
  struct stat stats {};
  ASSERT_EQ(::fstat(peer_fd.get(), &stats), 0);
  EXPECT_EQ(stats.st_blocks, 0);
}

TEST(CommMemory, NodeSharedRegionsAreOneMemory) {
  auto registry = std::make_shared<RegionRegistry>(0, nullptr);
  auto other = std::make_shared<RegionRegistry>(1, nullptr);
  auto created = Region::create(registry, 100, Region::Sharing::kNodeShared, "p");
  const auto opened = Region::open(other, created->id(), ::getpid(), created->fd(), 100);
  created->data()[7] = std::byte{42};
  EXPECT_EQ(opened->data()[7], std::byte{42});
  created.reset();  // the others keep theirs
  EXPECT_EQ(opened->data()[7], std::byte{42});
  EXPECT_THROW(open_descriptor_of(::getpid(), 9999), IoError);
}

TEST(CommStaging, ReusesItsRegionInOrder) {
  StagingArena arena(std::make_shared<RegionRegistry>(0, nullptr));
  const auto first = arena.take(100'000, 0);
  for (std::uint64_t s = 1; s < 1000; ++s) {
    arena.release_before(s);
    EXPECT_EQ(arena.used_nbytes(), 0u);
    EXPECT_EQ(arena.take(100'000, s).data, first.data) << s;
  }
}

TEST(CommStaging, BlocksInFlightNeverOverlap) {
  StagingArena arena(std::make_shared<RegionRegistry>(0, nullptr));
  struct Taken {
    StagingArena::Block block;
    std::size_t nbytes;
  };
  std::vector<Taken> taken;
  std::size_t oldest = 0;
  for (std::uint64_t s = 0; s < 3000; ++s) {
    const std::size_t nbytes = 1 + (s * 7919) % 90'000;
    taken.push_back({arena.take(nbytes, s), nbytes});
    std::memset(taken.back().block.data, static_cast<int>(s % 251), nbytes);
    const std::size_t in_flight = 1 + (s / 100) % 20;
    while (taken.size() - oldest > in_flight) {
      const Taken& done = taken[oldest];
      for (std::size_t i = 0; i < done.nbytes; ++i) ASSERT_EQ(done.block.data[i], static_cast<std::byte>(oldest % 251));
      taken[oldest].block = {};
      arena.release_before(++oldest);
    }
  }
}

TEST(CommStaging, GrowsForALargeInput) {
  StagingArena arena(std::make_shared<RegionRegistry>(0, nullptr));
  const auto small = arena.take(10, 0);
  const auto large = arena.take(8 << 20, 1);
  std::memset(large.data, 1, 8 << 20);
  EXPECT_NE(small.region, large.region);
  arena.release_before(2);
  EXPECT_EQ(arena.take(8 << 20, 2).data, large.data);
}

}  // namespace
}  // namespace zero::comm::comm_memory_test
