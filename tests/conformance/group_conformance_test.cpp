// Every backend must pass the same tests. One binary, run as
//   group_conformance_test --backend=self
//   group_conformance_test --backend=shm --ranks=4        (forked processes)
//   group_conformance_test --backend=threads --ranks=4    (threads of one process)
//   mpirun -n 4 group_conformance_test --backend=mpi
// (or ZERO_CONFORMANCE_BACKEND and ZERO_CONFORMANCE_RANKS).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "conformance_main.h"
#include "reference.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zero::testing::group_conformance_test {
namespace {

using namespace std::chrono_literals;

std::int64_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

/// Even, uneven, with empty shards, one rank has all, nothing at all.
std::vector<Counts> count_patterns(int n) {
  const auto make = [n](auto count_of) {
    Counts counts;
    for (int r = 0; r < n; ++r) counts.push_back(count_of(r));
    return counts;
  };
  return {make([](int) { return 1024; }), make([](int r) { return 1 + 977 * r; }),
          make([](int r) { return r % 2 == 0 ? 0 : 5003; }), make([n](int r) { return r == n - 1 ? 4099 : 0; }),
          make([](int) { return 0; })};
}

/// Memory that other ranks read in place (allocate) or through staging (private).
class Buffer {
 public:
  Buffer(Group& group, bool shared, const std::vector<std::byte>& content) : nbytes_(content.size()) {
    if (shared) {
      memory_ = group.allocate(content.size());
    } else {
      private_.resize(content.size() + 1);
    }
    if (nbytes_ > 0) std::memcpy(data(), content.data(), nbytes_);
  }
  void* data() { return memory_ ? memory_.data() : private_.data(); }
  std::vector<std::byte> content() {
    const auto* begin = static_cast<const std::byte*>(data());
    return {begin, begin + nbytes_};
  }

 private:
  std::size_t nbytes_;
  SharedMemory memory_;
  std::vector<std::byte> private_;
};

std::vector<std::vector<std::byte>> all_inputs(int n, DType dtype, std::int64_t numel, std::uint64_t salt) {
  std::vector<std::vector<std::byte>> inputs;
  for (int r = 0; r < n; ++r) inputs.push_back(wild_data(dtype, numel, r, salt));
  return inputs;
}

constexpr DType kAllTypes[] = {DType::kByte,    DType::kFloat16, DType::kBFloat16,
                               DType::kFloat32, DType::kFloat64, DType::kInt64};

TEST(GroupConformance, RanksAndSizes) {
  on_ranks([](Group group) {
    EXPECT_EQ(group.size(), conformance_ranks());
    EXPECT_GE(group.rank(), 0);
    EXPECT_LT(group.rank(), group.size());
    EXPECT_EQ(group.local_size(), group.size());
    EXPECT_EQ(group.local_rank(), group.rank());
    EXPECT_TRUE(group.single_node());
    if (!std::getenv("ZERO_TIMEOUT_S")) {
      EXPECT_EQ(group.timeout(), 30min);
    }
    group.set_timeout(5s);
    EXPECT_EQ(group.timeout(), 5s);
    group.barrier().wait();
  });
}

TEST(GroupConformance, AllGather) {
  on_ranks([](Group group) {
    std::uint64_t salt = 0;
    for (const Counts& counts : count_patterns(group.size())) {
      for (const DType dtype : kAllTypes) {
        for (const bool shared : {false, true}) {
          for (const bool in_place : {false, true}) {
            ++salt;
            const std::size_t element = element_nbytes(dtype);
            std::vector<std::byte> expected;
            for (int r = 0; r < group.size(); ++r) {
              const auto part = wild_data(dtype, counts[static_cast<std::size_t>(r)], r, salt);
              expected.insert(expected.end(), part.begin(), part.end());
            }
            const auto mine = wild_data(dtype, counts[static_cast<std::size_t>(group.rank())], group.rank(), salt);
            Buffer out(group, shared, std::vector<std::byte>(expected.size()));
            Buffer in(group, shared, mine);
            void* source = in.data();
            if (in_place) {
              source = static_cast<std::byte*>(out.data()) +
                       static_cast<std::size_t>(before(counts, group.rank())) * element;
              if (!mine.empty()) std::memcpy(source, mine.data(), mine.size());
            }
            group.all_gather(source, out.data(), counts, dtype, {.label = "unit"}).wait();
            EXPECT_EQ(out.content(), expected) << dtype_name(dtype) << " shared " << shared << " in place " << in_place;
          }
        }
      }
    }
  });
}

TEST(GroupConformance, AllGatherOfManySizes) {
  on_ranks([](Group group) {
    for (const std::int64_t share : {1LL, 63LL, 4096LL, 100'003LL, (64LL << 20) / 4 / group.size()}) {
      const Counts counts(static_cast<std::size_t>(group.size()), share);
      for (const bool shared : {false, true}) {
        Buffer in(group, shared, std::vector<std::byte>(static_cast<std::size_t>(share) * 4));
        Buffer out(group, shared, std::vector<std::byte>(static_cast<std::size_t>(share * group.size()) * 4));
        auto* const mine = static_cast<std::uint32_t*>(in.data());
        for (std::int64_t i = 0; i < share; ++i) mine[i] = static_cast<std::uint32_t>(i * 7 + group.rank());
        group.all_gather(in.data(), out.data(), counts, DType::kFloat32).wait();
        const auto* const all = static_cast<const std::uint32_t*>(out.data());
        std::int64_t wrong = 0;
        for (int r = 0; r < group.size(); ++r) {
          for (std::int64_t i = 0; i < share; ++i) wrong += all[r * share + i] != static_cast<std::uint32_t>(i * 7 + r);
        }
        EXPECT_EQ(wrong, 0) << share << " shared " << shared;
      }
    }
  });
}

TEST(GroupConformance, ReduceScatterAddsInRankOrder) {
  on_ranks([](Group group) {
    const std::pair<DType, DType> types[] = {{DType::kFloat32, DType::kFloat32},
                                             {DType::kBFloat16, DType::kFloat32},
                                             {DType::kFloat16, DType::kFloat32},
                                             {DType::kFloat64, DType::kFloat64},
                                             {DType::kInt64, DType::kInt64}};
    std::uint64_t salt = 1000;
    for (const Counts& counts : count_patterns(group.size())) {
      const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())];
      for (const auto& [dtype, out_dtype] : types) {
        for (const bool shared : {false, true}) {
          for (const bool accumulate : {false, true}) {
            ++salt;
            const auto inputs = all_inputs(group.size(), dtype, total(counts), salt);
            const auto start = wild_data(out_dtype, mine, group.rank(), salt + 77);
            const std::vector<std::byte> zeros(start.size());
            Buffer in(group, shared, inputs[static_cast<std::size_t>(group.rank())]);
            Buffer out(group, shared, start);
            group.reduce_scatter(in.data(), out.data(), counts, dtype, out_dtype, accumulate, {.label = "bucket"})
                .wait();
            const auto expected = reduce_in_order(inputs, dtype, out_dtype, ReduceOp::kSum,
                                                  accumulate ? &start : &zeros, before(counts, group.rank()), mine);
            EXPECT_EQ(out.content(), expected)
                << dtype_name(dtype) << " shared " << shared << " accumulate " << accumulate;
          }
        }
      }
    }
  });
}

TEST(GroupConformance, ReduceScatterOf64MiB) {
  on_ranks([](Group group) {
    const std::int64_t numel = (64 << 20) / 4;
    const Counts counts(static_cast<std::size_t>(group.size()), numel / group.size() / 16 * 16);
    for (const bool shared : {false, true}) {
      Buffer in(group, shared, std::vector<std::byte>(static_cast<std::size_t>(total(counts)) * 4));
      std::vector<float> out(static_cast<std::size_t>(counts[0]));
      auto* const mine = static_cast<float*>(in.data());
      const auto value = [](int rank, std::int64_t i) {
        return static_cast<float>((i * 2654435761u + static_cast<unsigned>(rank) * 97u) % 10007u) * 0.1f;
      };
      for (std::int64_t i = 0; i < total(counts); ++i) mine[i] = value(group.rank(), i);
      group.reduce_scatter(in.data(), out.data(), counts, DType::kFloat32, DType::kFloat32, false).wait();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < counts[0]; ++i) {
        float sum = 0;
        for (int r = 0; r < group.size(); ++r) sum += value(r, before(counts, group.rank()) + i);
        wrong += sum != out[static_cast<std::size_t>(i)];
      }
      EXPECT_EQ(wrong, 0) << "shared " << shared;
    }
  });
}

TEST(GroupConformance, ExchangeShowsEverySliceOnce) {
  on_ranks([](Group group) {
    std::uint64_t salt = 3000;
    for (const Counts& counts : count_patterns(group.size())) {
      for (const DType dtype : kAllTypes) {
        for (const bool shared : {false, true}) {
          ++salt;
          const auto inputs = all_inputs(group.size(), dtype, total(counts), salt);
          Buffer in(group, shared, inputs[static_cast<std::size_t>(group.rank())]);
          int calls = 0;
          const auto consume = [&](std::span<const void* const> slices) {
            ++calls;
            ASSERT_EQ(slices.size(), static_cast<std::size_t>(group.size()));
            const std::size_t element = element_nbytes(dtype);
            const std::size_t nbytes =
                static_cast<std::size_t>(counts[static_cast<std::size_t>(group.rank())]) * element;
            const std::size_t offset = static_cast<std::size_t>(before(counts, group.rank())) * element;
            for (std::size_t r = 0; r < slices.size() && nbytes > 0; ++r) {
              EXPECT_EQ(std::memcmp(slices[r], inputs[r].data() + offset, nbytes), 0) << "slice of rank " << r;
            }
          };
          group.exchange(in.data(), counts, dtype, consume).wait();
          EXPECT_EQ(calls, 1);
        }
      }
    }
  });
}

TEST(GroupConformance, AllReduceGivesTheSameBitsEverywhere) {
  on_ranks([](Group group) {
    std::uint64_t salt = 5000;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt64}) {
      // 1 element to above the limit of the one-step path, with odd ends.
      for (const std::int64_t numel : {0LL, 1LL, 17LL, 5001LL, 40'003LL}) {
        for (const bool shared : {false, true}) {
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
            ++salt;
            const auto inputs = all_inputs(group.size(), dtype, numel, salt);
            Buffer inout(group, shared, inputs[static_cast<std::size_t>(group.rank())]);
            group.all_reduce(inout.data(), numel, dtype, op, {.label = "norm"}).wait();
            EXPECT_EQ(inout.content(), reduce_in_order(inputs, dtype, dtype, op, nullptr, 0, numel))
                << dtype_name(dtype) << " numel " << numel << " shared " << shared << " op " << static_cast<int>(op);
          }
        }
      }
    }
  });
}

TEST(GroupConformance, BroadcastFromEveryRoot) {
  on_ranks([](Group group) {
    std::uint64_t salt = 7000;
    for (int root = 0; root < group.size(); ++root) {
      for (const DType dtype : kAllTypes) {
        for (const std::int64_t numel : {0LL, 1LL, 10'007LL}) {
          for (const bool shared : {false, true}) {
            ++salt;
            const auto wanted = wild_data(dtype, numel, root, salt);
            Buffer inout(group, shared, group.rank() == root ? wanted : std::vector<std::byte>(wanted.size()));
            group.broadcast(inout.data(), numel, dtype, root, {.label = "init"}).wait();
            EXPECT_EQ(inout.content(), wanted);
          }
        }
      }
    }
    std::vector<std::uint8_t> large(64 << 20, static_cast<std::uint8_t>(group.rank() + 1));
    group.broadcast(large.data(), static_cast<std::int64_t>(large.size()), DType::kByte, group.size() - 1).wait();
    EXPECT_TRUE(std::all_of(large.begin(), large.end(), [&](std::uint8_t b) { return b == group.size(); }));
  });
}

TEST(GroupConformance, BarrierHoldsEveryoneBack) {
  on_ranks([](Group group) {
    const SharedMemory memory = group.allocate_node_shared(4096, "arrivals");
    auto* const arrivals = static_cast<std::atomic<int>*>(memory.data());
    for (int round = 1; round <= 50; ++round) {
      if (group.rank() == round % group.size() && round % 10 == 0) std::this_thread::sleep_for(2ms);
      arrivals->fetch_add(1);
      group.barrier().wait();
      EXPECT_GE(arrivals->load(), round * group.size());
      group.barrier().wait();
    }
  });
}

TEST(GroupConformance, NodeSharedMemoryIsOneMapping) {
  on_ranks([](Group group) {
    const std::size_t nbytes = 3 << 20;
    SharedMemory memory = group.allocate_node_shared(nbytes, "parameters");
    ASSERT_EQ(memory.nbytes(), nbytes);
    auto* const words = static_cast<std::uint32_t*>(memory.data());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(words) % 4096, 0u);
    for (std::size_t i = 0; i < nbytes / 4; ++i) EXPECT_TRUE(words[i] == 0) << i;
    group.barrier().wait();
    const std::size_t share = nbytes / 4 / static_cast<std::size_t>(group.size());
    const auto me = static_cast<std::size_t>(group.rank());
    for (std::size_t i = me * share; i < (me + 1) * share; ++i) words[i] = static_cast<std::uint32_t>(i) ^ 0xa5a5u;
    group.barrier().wait();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < share * static_cast<std::size_t>(group.size()); ++i) {
      wrong += words[i] != (static_cast<std::uint32_t>(i) ^ 0xa5a5u);
    }
    EXPECT_EQ(wrong, 0u);
    group.barrier().wait();
    // It may be an input and an output: every rank gathers its slice in place, which moves nothing.
    const Counts counts(static_cast<std::size_t>(group.size()), static_cast<std::int64_t>(share));
    group.all_gather(words + me * share, words, counts, DType::kFloat32).wait();
    group.barrier().wait();
    std::vector<std::uint32_t> copy(share * static_cast<std::size_t>(group.size()));
    group.all_gather(words + me * share, copy.data(), counts, DType::kFloat32).wait();
    EXPECT_EQ(std::memcmp(copy.data(), words, copy.size() * 4), 0);
  });
}

TEST(GroupConformance, AllocatedMemoryIsZeroAlignedAndReusable) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 3000);
    std::vector<float> out(static_cast<std::size_t>(3000 * group.size()));
    for (int round = 0; round < 400; ++round) {  // more than the freed regions that peers remember
      const SharedMemory memory = group.allocate(12'000);
      auto* const values = static_cast<float*>(memory.data());
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(values) % 4096, 0u);
      ASSERT_EQ(memory.nbytes(), 12'000u);
      ASSERT_EQ(values[0], 0.0f);
      ASSERT_EQ(values[2999], 0.0f);
      std::fill(values, values + 3000, static_cast<float>(round * 10 + group.rank()));
      group.all_gather(values, out.data(), counts, DType::kFloat32, {.input_stable_until_barrier = round % 2 == 0})
          .wait();
      for (int r = 0; r < group.size(); ++r)
        ASSERT_EQ(out[static_cast<std::size_t>(3000 * r + 2999)], static_cast<float>(round * 10 + r));
    }
    EXPECT_EQ(group.allocate(0).nbytes(), 0u);
    EXPECT_THROW(group.allocate(std::size_t{1} << 50), IoError);
    EXPECT_THROW(group.allocate_node_shared(std::size_t{1} << 50, "too much"), IoError);
    group.barrier().wait();
  });
}

TEST(GroupConformance, ManyWorksInFlightCompleteInAnyOrder) {
  on_ranks([](Group group) {
    constexpr int kWorks = 300;  // more than fit at once
    const Counts counts(static_cast<std::size_t>(group.size()), 257);
    const std::int64_t numel = total(counts);
    std::vector<std::vector<std::int64_t>> outs(kWorks), sums(kWorks);
    std::vector<Work> works;
    for (int w = 0; w < kWorks; ++w) {
      std::vector<std::int64_t> in(257, w * 100 + group.rank());
      std::vector<std::int64_t>& out = outs[static_cast<std::size_t>(w)];
      std::vector<std::int64_t>& sum = sums[static_cast<std::size_t>(w)];
      out.assign(static_cast<std::size_t>(numel), -1);
      sum.assign(20'000, w + group.rank());
      if (w % 3 == 0) {
        std::copy(in.begin(), in.end(), out.begin() + before(counts, group.rank()));
        works.push_back(group.all_gather(out.data() + before(counts, group.rank()), out.data(), counts, DType::kInt64));
      } else if (w % 3 == 1) {
        works.push_back(group.all_reduce(sum.data(), 20'000, DType::kInt64));
      } else {
        works.push_back(group.barrier());
      }
    }
    // Each rank completes them in another order.
    std::vector<int> order(kWorks);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      std::swap(order[i], order[mix(i * 31 + static_cast<std::uint64_t>(group.rank())) % (i + 1)]);
    }
    for (const int w : order) {
      if (w % 2 == 0) {
        works[static_cast<std::size_t>(w)].wait();
      } else {
        while (!works[static_cast<std::size_t>(w)].test()) std::this_thread::yield();
      }
    }
    const std::int64_t ranks_sum = group.size() * (group.size() - 1) / 2;
    for (int w = 0; w < kWorks; ++w) {
      EXPECT_TRUE(works[static_cast<std::size_t>(w)].test());
      if (w % 3 == 0) {
        for (int r = 0; r < group.size(); ++r) {
          EXPECT_EQ(outs[static_cast<std::size_t>(w)][static_cast<std::size_t>(257 * r + 100)], w * 100 + r);
        }
      } else if (w % 3 == 1) {
        EXPECT_EQ(sums[static_cast<std::size_t>(w)][19'999], w * group.size() + ranks_sum);
      }
    }
  });
}

TEST(GroupConformance, InputMayChangeAfterWait) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 20'000);
    for (const bool shared : {false, true}) {
      Buffer in(group, shared, std::vector<std::byte>(20'000 * 4));
      auto* const mine = static_cast<std::int32_t*>(in.data());
      std::vector<std::int32_t> out(static_cast<std::size_t>(total(counts)));
      for (int round = 0; round < 40; ++round) {
        std::fill(mine, mine + 20'000, round);
        // One rank is there before another one's input is, and reads it later than that one waits.
        if (group.rank() == round % group.size()) std::this_thread::sleep_for(1ms);
        Work work = group.all_gather(mine, out.data(), counts, DType::kFloat32);
        if (group.rank() == (round + 1) % group.size()) std::this_thread::sleep_for(3ms);
        work.wait();
        std::fill(mine, mine + 20'000, -1);  // must not be seen by slower ranks
        ASSERT_TRUE(std::all_of(out.begin(), out.end(), [&](std::int32_t v) { return v == round; })) << round;
      }
    }
  });
}

TEST(GroupConformance, StableInputMayChangeAfterBarrier) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 20'000);
    const SharedMemory memory = group.allocate(80'000);
    auto* const mine = static_cast<std::int32_t*>(memory.data());
    std::vector<std::int32_t> out(static_cast<std::size_t>(total(counts)));
    for (int round = 0; round < 40; ++round) {
      std::fill(mine, mine + 20'000, round);
      Work work = group.all_gather(mine, out.data(), counts, DType::kFloat32, {.input_stable_until_barrier = true});
      Work barrier = group.barrier();
      if (group.rank() == round % group.size()) std::this_thread::sleep_for(1ms);
      if (round % 2 == 0) work.wait();
      barrier.wait();
      std::fill(mine, mine + 20'000, -1);
      work.wait();
      ASSERT_TRUE(std::all_of(out.begin(), out.end(), [&](std::int32_t v) { return v == round; })) << round;
      group.barrier().wait();
    }
  });
}

TEST(GroupConformance, FinishStepMayCallTheGroup) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 8);
    std::vector<float> in(static_cast<std::size_t>(total(counts)), 1.0f);
    float sum = 0;
    Work inner;
    group
        .exchange(in.data(), counts, DType::kFloat32,
                  [&](std::span<const void* const> slices) {
                    for (const void* slice : slices) sum += *static_cast<const float*>(slice);
                    inner = group.all_reduce(&sum, 1, DType::kFloat32);
                  })
        .wait();
    inner.wait();
    EXPECT_EQ(sum, static_cast<float>(group.size() * group.size()));
  });
}

TEST(GroupConformance, DroppedWorksStillHappen) {
  on_ranks([](Group group) {
    std::vector<std::int64_t> value(1, group.rank());
    group.all_reduce(value.data(), 1, DType::kInt64);
    group.barrier();
    group.barrier().wait();
    EXPECT_EQ(value[0], group.size() * (group.size() - 1) / 2);
  });
}

TEST(GroupConformance, CountersAreExact) {
  on_ranks([](Group group) {
    group.barrier().wait();
    group.reset_counters();
    const std::int64_t n = group.size();
    Counts counts;
    for (int r = 0; r < group.size(); ++r) counts.push_back(100 + 10 * r);
    const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())], all = total(counts);
    std::vector<float> in(static_cast<std::size_t>(all)), out(static_cast<std::size_t>(all));
    std::vector<std::uint16_t> half(static_cast<std::size_t>(all));
    for (int i = 0; i < 3; ++i) group.all_gather(in.data(), out.data(), counts, DType::kFloat32).wait();
    for (int i = 0; i < 2; ++i) {
      group.reduce_scatter(half.data(), out.data(), counts, DType::kBFloat16, DType::kFloat32, true).wait();
    }
    group.exchange(half.data(), counts, DType::kBFloat16, [](auto) {}).wait();
    std::vector<double> large(64'000);
    group.all_reduce(large.data(), 10, DType::kFloat64).wait();
    group.all_reduce(large.data(), 64'000, DType::kFloat64).wait();
    group.broadcast(large.data(), 1000, DType::kFloat64, 0).wait();
    group.barrier().wait();
    const CommunicationCounters counters = group.counters();
    EXPECT_EQ(counters.all_gather.calls, 3);
    EXPECT_EQ(counters.all_gather.numel_sent, 3 * mine * (n - 1));
    EXPECT_EQ(counters.all_gather.numel_received, 3 * (all - mine));
    EXPECT_EQ(counters.all_gather.nbytes_sent, 4 * counters.all_gather.numel_sent);
    EXPECT_EQ(counters.all_gather.nbytes_received, 4 * counters.all_gather.numel_received);
    EXPECT_EQ(counters.reduce_scatter.calls, 3);
    EXPECT_EQ(counters.reduce_scatter.numel_sent, 3 * (all - mine));
    EXPECT_EQ(counters.reduce_scatter.numel_received, 3 * mine * (n - 1));
    EXPECT_EQ(counters.reduce_scatter.nbytes_sent, 2 * counters.reduce_scatter.numel_sent);
    EXPECT_EQ(counters.all_reduce.calls, 2);
    // 64,000 is a multiple of 64 n for n = 1, 2, 4; else the slices are uneven.
    if (64'000 % (64 * n) == 0) {
      EXPECT_EQ(counters.all_reduce.numel_sent, 10 * (n - 1) + 2 * 64'000 * (n - 1) / n);
      EXPECT_EQ(counters.all_reduce.numel_received, counters.all_reduce.numel_sent);
    }
    EXPECT_EQ(counters.broadcast.calls, 1);
    EXPECT_EQ(counters.broadcast.numel_sent, group.rank() == 0 ? 1000 * (n - 1) : 0);
    EXPECT_EQ(counters.broadcast.numel_received, group.rank() == 0 ? 0 : 1000);
    EXPECT_EQ(counters.barrier.calls, 1);
    EXPECT_EQ(counters.barrier.numel_sent, 0);
    EXPECT_GE(counters.all_gather.wait_seconds, 0.0);
  });
}

TEST(GroupConformance, WrongArgumentsAreRefusedAndHarmless) {
  on_ranks([](Group group) {
    std::vector<float> data(64);
    Counts counts(static_cast<std::size_t>(group.size()), 4);
    Counts too_many(static_cast<std::size_t>(group.size() + 1), 1);
    Counts negative = counts;
    negative[0] = -1;
    const DType f32 = DType::kFloat32;
    EXPECT_THROW(group.all_gather(data.data(), data.data() + 32, too_many, f32), ConfigError);
    EXPECT_THROW(group.all_gather(data.data(), data.data() + 32, negative, f32), ConfigError);
    EXPECT_THROW(group.all_gather(nullptr, data.data(), counts, f32), ConfigError);
    EXPECT_THROW(group.all_gather(data.data(), nullptr, counts, f32), ConfigError);
    EXPECT_THROW(group.all_gather(data.data() + 4 * group.rank() + 1, data.data(), counts, f32), ConfigError);
    EXPECT_THROW(group.reduce_scatter(data.data(), data.data(), counts, DType::kByte, DType::kByte, false),
                 ConfigError);
    EXPECT_THROW(group.reduce_scatter(data.data(), data.data(), counts, f32, DType::kBFloat16, false), ConfigError);
    EXPECT_THROW(group.reduce_scatter(data.data(), data.data(), counts, DType::kBFloat16, DType::kBFloat16, false),
                 ConfigError);
    EXPECT_THROW(group.exchange(data.data(), counts, f32, nullptr), ConfigError);
    EXPECT_THROW(group.all_reduce(data.data(), -1, f32), ConfigError);
    EXPECT_THROW(group.all_reduce(data.data(), 4, DType::kByte), ConfigError);
    EXPECT_THROW(group.broadcast(data.data(), 4, f32, group.size()), ConfigError);
    EXPECT_THROW(group.broadcast(data.data(), 4, f32, -1), ConfigError);
    EXPECT_THROW(group.set_timeout(0ms), ConfigError);
    group.barrier().wait();
  });
}

TEST(GroupConformance, FlightRecorderTellsTheLastCalls) {
  on_ranks([](Group group) {
    float value = 1;
    group
        .broadcast(&value, 1, DType::kFloat32, 0,
                   {.label = "a label that is much longer than the forty-seven characters shown"})
        .wait();
    group.barrier({.label = "end"}).wait();
    const std::string text = group.flight_recorder();
    EXPECT_CONTAINS(text, "broadcast #0 \"a label that is much longer than the forty-s...\"");
    EXPECT_CONTAINS(text, "barrier #1 \"end\"");
    group.barrier().wait();
  });
}

TEST(GroupConformance, ProgressThreadMovesDataWhileTheCallerDoesNot) {
  if (conformance_backend() == "self") GTEST_SKIP() << "a group of one moves everything at once";
  on_ranks([](Group group) {
    if (group.size() == 1) return;
    group.set_progress_thread(true);
    EXPECT_TRUE(group.has_progress_thread());
    const Counts counts(static_cast<std::size_t>(group.size()), 100'000);
    for (const bool shared : {false, true}) {
      const auto mine = wild_data(DType::kFloat32, total(counts), group.rank(), 77);
      Buffer in(group, shared, mine);
      std::atomic<int> seen{0};
      Work work = group.exchange(in.data(), counts, DType::kFloat32,
                                 [&](std::span<const void* const> slices) { seen = static_cast<int>(slices.size()); });
      const auto deadline = std::chrono::steady_clock::now() + 20s;
      while (seen == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(seen, group.size()) << "nobody moved the data";
      work.wait();
      EXPECT_GE(work.moving_seconds(), 0);
    }
    group.set_progress_thread(false);
    EXPECT_FALSE(group.has_progress_thread());
    group.barrier().wait();
  });
}

TEST(GroupConformance, GatherAtOffsets) {
  on_ranks([](Group group) {
    std::uint64_t salt = 9000;
    for (const Counts& counts : count_patterns(group.size())) {
      // In the opposite order, with gaps that nobody may touch.
      constexpr std::int64_t kGap = 5;
      Counts offsets(counts.size());
      std::int64_t end = kGap;
      for (std::size_t r = counts.size(); r-- > 0; end += counts[r] + kGap) offsets[r] = end;
      for (const bool in_place : {false, true}) {
        ++salt;
        const auto me = static_cast<std::size_t>(group.rank());
        std::vector<float> out(static_cast<std::size_t>(end), -7), expected = out;
        for (std::size_t r = 0; r < counts.size(); ++r) {
          const auto part = wild_data(DType::kFloat32, counts[r], static_cast<int>(r), salt);
          if (!part.empty()) std::memcpy(expected.data() + offsets[r], part.data(), part.size());
        }
        const auto mine = wild_data(DType::kFloat32, counts[me], group.rank(), salt);
        const void* source = mine.data();
        if (in_place) {
          if (!mine.empty()) std::memcpy(out.data() + offsets[me], mine.data(), mine.size());
          source = out.data() + offsets[me];
        }
        group.all_gather_at(source, out.data(), counts, offsets, DType::kFloat32, {.label = "parts"}).wait();
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
      }
    }
    const Counts counts(static_cast<std::size_t>(group.size()), 1), offsets(counts.size() + 1, 0);
    std::vector<float> out(counts.size());
    EXPECT_THROW(group.all_gather_at(out.data(), out.data(), counts, offsets, DType::kFloat32), ConfigError);
  });
}

TEST(GroupConformance, SplitGroupsWorkBesideTheWhole) {
  on_ranks([](Group group) {
    for (const bool by_parity : {true, false}) {
      const int color = by_parity ? group.rank() % 2 : group.rank() / 2;
      Group part = group.split(color);
      std::vector<int> members;
      for (int r = 0; r < group.size(); ++r) {
        if ((by_parity ? r % 2 : r / 2) == color) members.push_back(r);
      }
      ASSERT_EQ(part.size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[static_cast<std::size_t>(part.rank())], group.rank());
      EXPECT_EQ(part.timeout(), group.timeout());
      // Calls of both groups between each other.
      for (int round = 0; round < 20; ++round) {
        std::int64_t in_part = group.rank() + round, in_all = in_part;
        Work first = group.all_reduce(&in_all, 1, DType::kInt64);
        Work second = part.all_reduce(&in_part, 1, DType::kInt64);
        second.wait();
        first.wait();
        std::int64_t expected = 0;
        for (const int member : members) expected += member + round;
        EXPECT_EQ(in_part, expected);
        EXPECT_EQ(in_all, group.size() * (group.size() - 1) / 2 + round * group.size());
      }
      if (part.single_node()) {
        EXPECT_EQ(part.local_rank(), part.rank());
        const SharedMemory memory = part.allocate_node_shared(4096, "of a part");
        static_cast<int*>(memory.data())[part.rank()] = group.rank() + 1;
        part.barrier().wait();
        for (std::size_t i = 0; i < members.size(); ++i) EXPECT_EQ(static_cast<int*>(memory.data())[i], members[i] + 1);
        part.barrier().wait();
      }
    }
    Group host = group.split_by_host();
    EXPECT_EQ(host.size(), group.local_size());
    EXPECT_EQ(host.rank(), group.local_rank());
    EXPECT_TRUE(host.single_node());
  });
}

TEST(GroupConformance, OneHostAsSeveral) {
  if (conformance_backend() == "self" || conformance_ranks() < 2) GTEST_SKIP();
  if (conformance_is_launched() && !std::getenv("ZERO_RANKS_PER_NODE")) {
    GTEST_SKIP() << "needs ZERO_RANKS_PER_NODE=1 from the start";
  }
  setenv("ZERO_RANKS_PER_NODE", "1", 1);
  on_ranks([](Group group) {
    EXPECT_EQ(group.local_size(), 1);
    EXPECT_EQ(group.local_rank(), 0);
    EXPECT_FALSE(group.single_node());
    EXPECT_CONTAINS(comm_error_of([&] { group.allocate_node_shared(64, "across"); }), "on this host");
    EXPECT_EQ(group.split_by_host().size(), 1);
    Group across = group.split(group.local_rank());
    EXPECT_EQ(across.size(), group.size());
    EXPECT_FALSE(across.single_node());
  });
  if (!conformance_is_launched()) unsetenv("ZERO_RANKS_PER_NODE");
}

TEST(GroupConformance, TwoGroupsAtATime) {
  if (!conformance_is_launched()) GTEST_SKIP() << "spawned ranks have one group each";
  on_ranks([](Group first) {
    on_ranks([&](Group second) {
      Work a = first.barrier({.label = "first"});
      Work b = second.barrier({.label = "second"});
      b.wait();
      a.wait();
    });
  });
}

TEST(GroupConformance, AWaitInOneGroupLetsAnotherMove) {
  if (!conformance_is_launched()) GTEST_SKIP() << "spawned ranks have one group each";
  on_ranks([](Group first) {
    if (first.size() == 1) return;
    Group second = first.split(0);
    on_ranks([&](Group other) {
      // Rank 0 waits in one group while the others wait, first, for what it has posted in the other one.
      first.set_progress_thread(true);
      other.set_progress_thread(true);
      std::int64_t a = 1, b = 1;
      Work in_other = other.all_reduce(&b, 1, DType::kInt64);
      if (other.rank() > 0) in_other.wait();
      Work in_first = first.all_reduce(&a, 1, DType::kInt64);
      in_first.wait();
      in_other.wait();
      EXPECT_EQ(a, first.size());
      EXPECT_EQ(b, first.size());
      first.set_progress_thread(conformance_progress_thread());
    });
    EXPECT_EQ(second.size(), first.size());
  });
}

}  // namespace
}  // namespace zero::testing::group_conformance_test
