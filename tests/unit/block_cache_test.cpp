// The cache of freed blocks, and libtorch's CPU allocator over it.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "storage/block_cache.h"
#include "storage/cpu_allocator.h"
#include "zero/memory.h"

namespace zero::storage::block_cache_test {
namespace {

using Place = BlockCache::Place;

constexpr std::size_t kMiB = std::size_t{1} << 20;

char* bytes(const BlockCache::Allocated& block) { return static_cast<char*>(block.data); }

TEST(BlockCache, BlocksAreAlignedApartAndKeepTheirContent) {
  BlockCache cache(64 * kMiB);
  std::mt19937_64 random(7);
  std::map<char*, std::pair<std::size_t, char>> out;  // by address: size and content
  std::size_t nbytes_out = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (out.size() < 50 && random() % 2) {
      const std::size_t wanted = random() % 3 == 0 ? random() % 400'000 : random() % 5'000;
      const auto block = cache.allocate(wanted, random() % 4 ? Place::kBestFit : Place::kHigh);
      ASSERT_TRUE(block.data);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % BlockCache::kAlignment, 0U);
      ASSERT_GE(block.nbytes, wanted);
      ASSERT_TRUE(cache.owns(bytes(block)) && cache.owns(bytes(block) + block.nbytes - 1));
      const auto next = out.lower_bound(bytes(block));
      if (next != out.end()) {
        ASSERT_LE(bytes(block) + block.nbytes, next->first);
      }
      if (next != out.begin()) {
        const auto& [before, what] = *std::prev(next);
        ASSERT_LE(before + what.first, bytes(block));
      }
      const char content = static_cast<char>(random());
      std::memset(block.data, content, block.nbytes);
      out[bytes(block)] = {block.nbytes, content};
      nbytes_out += block.nbytes;
    } else if (!out.empty()) {
      const auto it = std::next(out.begin(), static_cast<long>(random() % out.size()));
      const auto [nbytes, content] = it->second;
      ASSERT_EQ(it->first[0], content);
      ASSERT_EQ(it->first[nbytes - 1], content);
      ASSERT_EQ(cache.release(it->first), nbytes);
      nbytes_out -= nbytes;
      out.erase(it);
    }
    if (i % 1000 == 0) cache.give_back();
    ASSERT_EQ(cache.use().in_use_nbytes, nbytes_out);
  }
  for (const auto& [data, block] : out) cache.release(data);
  cache.give_back();
  EXPECT_EQ(cache.use().in_use_nbytes, 0U);
  EXPECT_EQ(cache.use().extent_nbytes, 0U);  // all neighbours became one block
}

TEST(BlockCache, TakesTheSmallestGapThatFits) {
  BlockCache cache(16 * kMiB);
  std::vector<BlockCache::Allocated> blocks;
  for (const std::size_t nbytes : {3000, 64, 1000, 64, 2000, 64, 2000, 64}) blocks.push_back(cache.allocate(nbytes));
  for (const int i : {0, 2, 4, 6}) cache.release(blocks[i].data);
  EXPECT_EQ(cache.allocate(1000).data, blocks[2].data);
  EXPECT_EQ(cache.allocate(1900).data, blocks[4].data);
  EXPECT_EQ(cache.allocate(1900).data, blocks[6].data);
  EXPECT_EQ(cache.allocate(2900).data, blocks[0].data);
  EXPECT_EQ(bytes(cache.allocate(512)), bytes(blocks[7]) + 64);  // no gap is large enough: at the end
}

TEST(BlockCache, HighBlocksLieAtTheOtherEnd) {
  BlockCache cache(16 * kMiB);
  const auto low = cache.allocate(kMiB), gap = cache.allocate(kMiB), top = cache.allocate(kMiB);
  const auto fence = cache.allocate(64);
  for (const auto& block : {low, gap, top}) cache.release(block.data);
  const auto high = cache.allocate(1024, Place::kHigh);
  EXPECT_EQ(bytes(high) + high.nbytes, bytes(fence));
  EXPECT_EQ(cache.allocate(1024).data, low.data);
}

/// What a training step does: blocks of a forward pass, freed in the opposite order while others come.
TEST(BlockCache, TheSameStepsTakeNoMore) {
  BlockCache cache(256 * kMiB);
  const auto step = [&] {
    std::vector<BlockCache::Allocated> kept, sums;
    for (int layer = 0; layer < 12; ++layer) {
      for (const std::size_t kib : {100, 1024, 3072, 1024, 4096, 4096}) {
        cache.release(cache.allocate(kib * 700).data);  // a temporary
        kept.push_back(cache.allocate(kib * 1024));
      }
    }
    for (int layer = 0; layer < 12; ++layer) {
      sums.push_back(cache.allocate(12 * kMiB, Place::kHigh));
      for (int i = 0; i < 6; ++i) {
        cache.release(kept.back().data);
        kept.pop_back();
      }
    }
    for (const auto& block : sums) cache.release(block.data);
  };
  step();
  const std::size_t first = cache.use().extent_nbytes;
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(cache.use().extent_nbytes, first);
  // 157 MiB are kept by the forward pass, and 144 MiB of sums come in backward.
  EXPECT_LT(first, 190 * kMiB);
}

TEST(BlockCache, SaysWhenItsAddressesAreUsedUp) {
  BlockCache cache(kMiB);
  EXPECT_EQ(cache.allocate(kMiB + 1).data, nullptr);
  EXPECT_EQ(cache.allocate(~std::size_t{0}).data, nullptr);
  const auto all = cache.allocate(kMiB);
  ASSERT_TRUE(all.data);
  EXPECT_EQ(cache.allocate(1).data, nullptr);
  EXPECT_EQ(cache.allocate(1, Place::kHigh).data, nullptr);
  cache.release(all.data);
  EXPECT_EQ(cache.allocate(1).data, all.data);
  EXPECT_FALSE(cache.owns(&cache));
  EXPECT_FALSE(cache.owns(nullptr));
}

TEST(BlockCache, WithoutAddressesItHasNothing) {
  BlockCache cache(std::size_t{1} << 60);  // more than any processor has
  EXPECT_EQ(cache.allocate(64).data, nullptr);
  EXPECT_FALSE(cache.owns(nullptr));
}

std::size_t resident_pages(const void* data, std::size_t nbytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(data) + nbytes;
  std::vector<unsigned char> there((end - begin + page - 1) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), end - begin, there.data()), 0);
  std::size_t count = 0;
  for (const unsigned char flag : there) count += flag & 1;
  return count;
}

TEST(BlockCache, KeepsMemoryUntilToldToGiveItBack) {
  BlockCache cache(64 * kMiB);
  const auto kept = cache.allocate(kMiB), freed = cache.allocate(8 * kMiB), last = cache.allocate(kMiB);
  for (const auto& block : {kept, freed, last}) std::memset(block.data, 1, block.nbytes);
  cache.release(freed.data);
  EXPECT_GE(resident_pages(freed.data, freed.nbytes), 2048U);
  cache.give_back();
  EXPECT_LE(resident_pages(freed.data, freed.nbytes), 2U);
  EXPECT_EQ(bytes(kept)[kept.nbytes - 1], 1);
  EXPECT_EQ(bytes(last)[0], 1);
  const auto again = cache.allocate(8 * kMiB);
  EXPECT_EQ(again.data, freed.data);
  bytes(again)[100] = 2;
}

class CpuAllocator : public testing::Test {
 protected:
  void SetUp() override {
    install_cpu_allocator(/*keep_blocks=*/true);
    if (!keeps_blocks()) GTEST_SKIP() << "no cache here";
  }
};

TEST_F(CpuAllocator, TensorsGetTheBlocksThatWereFreed) {
  at::Tensor tensor = at::zeros({1 << 20});
  const void* data = tensor.const_data_ptr();
  tensor.reset();
  EXPECT_EQ(at::empty({1 << 20}).const_data_ptr(), data);
}

TEST_F(CpuAllocator, CountsWhatIsOut) {
  const std::int64_t before = activation_use().current_nbytes;
  {
    const at::Tensor large = at::empty({4 << 20}, at::kByte), small = at::empty({1000}, at::kByte);
    const std::int64_t seen = activation_use().current_nbytes - before;
    EXPECT_GE(seen, (4 << 20) + 1000);
    EXPECT_LT(seen, (4 << 20) + 3000);
    EXPECT_GE(activation_use().peak_nbytes, before + (4 << 20));
    void* block = take_block(1 << 20);  // the engine's: not an activation
    ASSERT_TRUE(block);
    EXPECT_EQ(activation_use().current_nbytes - before, seen);
    return_block(block);
  }
  EXPECT_EQ(activation_use().current_nbytes, before);
}

TEST_F(CpuAllocator, ResizedTensorsKeepTheirValues) {
  at::Tensor tensor = at::zeros({100}).fill_(3);  // glibc's
  tensor.resize_({1 << 20});
  EXPECT_EQ(tensor.slice(0, 0, 100).sum().item<float>(), 300);
  tensor.fill_(2).resize_({1 << 21});
  EXPECT_EQ(tensor.slice(0, 0, 1 << 20).sum().item<float>(), 2 << 20);
}

TEST_F(CpuAllocator, ThreadsMayFreeForEachOther) {
  constexpr int kThreads = 8;
  std::mutex mutex;
  std::vector<at::Tensor> handed(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i < 300; ++i) {
        at::Tensor mine = at::full({40'000 + 1000 * ((i * 7 + t) % 50)}, t);
        ASSERT_EQ(mine[mine.numel() - 1].item<float>(), static_cast<float>(t));
        const std::lock_guard lock(mutex);
        at::Tensor& neighbours = handed[(t + i) % kThreads];
        std::swap(mine, neighbours);  // what another thread has left there goes here
        if (mine.defined()) {
          ASSERT_EQ(mine[0].item<float>(), mine[mine.numel() - 1].item<float>());
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

/// 0: what `limit` of memory or addresses leaves possible works, and the rest is refused with an exception.
int train_within(int resource, rlim_t limit) {
  const rlimit limits{limit, limit};
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0) return 2;
  install_cpu_allocator(/*keep_blocks=*/true);
  if (resource == RLIMIT_AS && keeps_blocks()) return 3;
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 10; ++i) kept.push_back(at::full({1 << 20}, i));
  if (kept[7][5].item<float>() != 7) return 4;
  std::vector<void*> blocks;
  while (void* block = take_block(100 << 20)) blocks.push_back(block);
  if (blocks.empty() || blocks.size() > 100) return 5;
  std::memset(blocks.back(), 1, 100 << 20);
  for (void* block : blocks) return_block(block);
  try {
    const at::Tensor too_much = at::empty({std::int64_t{4} << 30}, at::kByte);
    return 6;
  } catch (const c10::Error&) {
    return 0;
  }
}

/// Googletest runs suites of such a name first: no child may inherit a cache.
TEST(CpuAllocatorDeathTest, LimitsLeaveThingsToTheCLibrary) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more than any limit";
#endif
  if (keeps_blocks()) GTEST_SKIP() << "there is a cache already";
  for (const int resource : {static_cast<int>(RLIMIT_AS), static_cast<int>(RLIMIT_DATA)}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int code = 7;
      try {
        code = train_within(resource, std::size_t{3} << 30);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(code);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "resource " << resource << ": " << status;
  }
}

TEST_F(CpuAllocator, RefusesWhatNoMemoryCouldHold) {
  std::ifstream policy("/proc/sys/vm/overcommit_memory");
  if (policy.get() == '1') GTEST_SKIP() << "this system promises everything";
  const std::int64_t memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  struct sysinfo info {};
  ASSERT_EQ(sysinfo(&info), 0);
  const auto swap = static_cast<std::int64_t>(info.totalswap) * info.mem_unit;
  EXPECT_THROW(at::empty({2 * (memory + swap)}, at::kByte), c10::Error);
  EXPECT_EQ(at::full({1 << 20}, 3)[77].item<float>(), 3);
}

TEST_F(CpuAllocator, AForkedChildMayAllocate) {
  bool stop = false;
  std::thread busy([&stop] {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) at::empty({100'000});
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      void* block = take_block(1 << 20);
      if (!block) _exit(1);
      return_block(block);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
  busy.join();
}

TEST_F(CpuAllocator, EmptyCacheGivesMemoryBack) {
  at::Tensor tensor = at::zeros({32 << 20}, at::kByte).fill_(1);
  const void* data = tensor.const_data_ptr();
  tensor.reset();
  EXPECT_GE(resident_pages(data, 32 << 20), 8192U);
  zero::empty_cache();
  EXPECT_LE(resident_pages(data, 32 << 20), 2U);
}

}  // namespace
}  // namespace zero::storage::block_cache_test
