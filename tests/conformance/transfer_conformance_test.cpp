// Exchange boards and shard windows, on every backend. Same program and arguments as
// group_conformance_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "comm/transport.h"
#include "conformance_main.h"
#include "reference.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zero::testing::transfer_conformance_test {
namespace {

using namespace std::chrono_literals;
using comm::ExchangeBoard;
using comm::make_exchange_board;
using comm::make_shard_window;
using comm::Parcel;
using comm::ShardWindow;

/// Even, odd, empty at some ranks, empty, large.
std::vector<Parcel> parcels_of(int ranks) {
  std::vector<Parcel> parcels;
  const auto add = [&](auto count_of) {
    Parcel& parcel = parcels.emplace_back();
    parcel.label = "parcel " + std::to_string(parcels.size() - 1);
    for (int r = 0; r < ranks; ++r) parcel.counts.push_back(count_of(r));
  };
  add([](int) { return 1024; });
  add([](int r) { return 1 + 977 * r; });
  add([](int r) { return r % 2 == 0 ? 0 : 5003; });
  add([](int) { return 0; });
  add([ranks](int r) { return r == ranks - 1 ? 4099 : 0; });
  add([](int) { return 600'003; });  // more pieces than a message has under way, of any transport
  add([](int r) { return 7 - r % 3; });
  return parcels;
}

std::int64_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

std::uint64_t salt_of(std::size_t parcel, int generation) {
  return 100'000 + parcel * 1000 + static_cast<std::uint64_t>(generation);
}

std::vector<int> shuffled(std::size_t n, std::uint64_t seed) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[mix(seed * 977 + i) % i]);
  return order;
}

/// One rank's side of a board whose sums are checked bit for bit. `block`: so many ranks' slices may be added first.
class SummingBoard {
 public:
  SummingBoard(Group& group, bool shared, std::string label = "gradients", int block = 1)
      : group_(group), block_(block), parcels_(parcels_of(group.size())), works_(parcels_.size()) {
    for (std::size_t p = 0; p < parcels_.size(); ++p) {
      const auto numel = static_cast<std::size_t>(total(parcels_[p].counts));
      private_.emplace_back(numel + 1);
      memory_.push_back(shared ? group.allocate(numel * sizeof(float)) : SharedMemory());
      sums_.emplace_back(static_cast<std::size_t>(mine(p)));
      sinks_.push_back(0);
    }
    board_ = make_exchange_board(
        group, std::move(label), parcels_, DType::kFloat32,
        [this](int parcel, std::span<const void* const> slices) { add_up(static_cast<std::size_t>(parcel), slices); },
        {.ranks = block > 1 ? block : 0, .add = [](std::span<const void* const> slices, std::int64_t numel, void* sum) {
           add(slices, numel, static_cast<float*>(sum));
         }});
  }

  std::size_t size() const { return parcels_.size(); }
  ExchangeBoard& board() { return *board_; }
  Work& work(std::size_t p) { return works_[p]; }
  bool wait_while_others_run(int parcel, std::chrono::milliseconds limit) {
    return board_->wait_while_others_run(parcel, works_[static_cast<std::size_t>(parcel)], limit);
  }
  std::int64_t mine(std::size_t p) const { return parcels_[p].counts[static_cast<std::size_t>(group_.rank())]; }

  void post(int parcel, int generation) {
    const auto p = static_cast<std::size_t>(parcel);
    const auto data = wild_data(DType::kFloat32, total(parcels_[p].counts), group_.rank(), salt_of(p, generation));
    void* const in = memory_[p] ? memory_[p].data() : private_[p].data();
    if (!data.empty()) std::memcpy(in, data.data(), data.size());
    works_[p] = board_->post(parcel, in);
  }

  void expect_sums(int parcel, int generation) {
    const auto p = static_cast<std::size_t>(parcel);
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r < group_.size(); ++r)
      inputs.push_back(wild_data(DType::kFloat32, total(parcels_[p].counts), r, salt_of(p, generation)));
    const int block = board_->sums_on_hosts() ? block_ : 1;
    std::vector<std::vector<std::byte>> sums;
    for (int first = 0; first < group_.size(); first += block) {
      sums.push_back(reduce_in_order({inputs.begin() + first, inputs.begin() + first + block}, DType::kFloat32,
                                     DType::kFloat32, ReduceOp::kSum, nullptr,
                                     before(parcels_[p].counts, group_.rank()), mine(p)));
    }
    const auto expected = reduce_in_order(sums, DType::kFloat32, DType::kFloat32, ReduceOp::kSum, nullptr, 0, mine(p));
    ASSERT_EQ(expected.size(), sums_[p].size() * sizeof(float));
    EXPECT_TRUE(expected.empty() || std::memcmp(expected.data(), sums_[p].data(), expected.size()) == 0)
        << parcels_[p].label << " generation " << generation;
    EXPECT_EQ(sinks_[p], board_->posts(parcel));
  }

 private:
  void add_up(std::size_t p, std::span<const void* const> slices) {
    ++sinks_[p];
    EXPECT_EQ(slices.size(), static_cast<std::size_t>(group_.size() / (board_->sums_on_hosts() ? block_ : 1)));
    add(slices, static_cast<std::int64_t>(sums_[p].size()), sums_[p].data());
  }
  static void add(std::span<const void* const> slices, std::int64_t numel, float* sums) {
    for (std::int64_t i = 0; i < numel; ++i) {
      float sum = static_cast<const float*>(slices[0])[i];
      for (std::size_t r = 1; r < slices.size(); ++r) sum += static_cast<const float*>(slices[r])[i];
      sums[i] = sum;
    }
  }

  Group& group_;
  const int block_;
  std::vector<Parcel> parcels_;
  std::vector<Work> works_;
  std::vector<std::vector<float>> private_, sums_;
  std::vector<SharedMemory> memory_;
  std::vector<std::int64_t> sinks_;
  std::shared_ptr<ExchangeBoard> board_;
};

TEST(GroupConformance, BoardMeetsByParcelInAnyOrder) {
  on_ranks([](Group group) {
    for (const bool shared : {true, false}) {
      // Where several hosts have ranks, each adds theirs first.
      SummingBoard summing(group, shared, "gradients", shared ? 1 : group.local_size());
      EXPECT_EQ(summing.board().sums_on_hosts(),
                !shared && comm::sends_messages(group) && group.local_size() > 1 && group.local_size() < group.size());
      for (int generation = 0; generation < 12; ++generation) {
        const auto seed = static_cast<std::uint64_t>(generation * 10 + group.rank());
        for (const int parcel : shuffled(summing.size(), seed)) summing.post(parcel, generation);
        for (const int parcel : shuffled(summing.size(), seed + 5)) {
          const auto p = static_cast<std::size_t>(parcel);
          if (mix(seed + p) % 3 == 0) {
            while (!summing.work(p).test()) std::this_thread::yield();
          }
          summing.work(p).wait();
          EXPECT_TRUE(summing.work(p).test());
          EXPECT_GE(summing.work(p).moving_seconds(), 0);
          summing.expect_sums(parcel, generation);
        }
      }
      EXPECT_EQ(summing.board().posts(1), 12);
    }
  });
}

TEST(GroupConformance, BoardBesideOtherCalls) {
  on_ranks([](Group group) {
    SummingBoard first(group, true, "first"), second(group, false, "second", group.local_size());
    // As many ordinary calls on all ranks, but at other places between the posts, and one rank is slow.
    constexpr int kCalls = 30;
    for (int generation = 0; generation < 4; ++generation) {
      const auto seed = static_cast<std::uint64_t>(generation * 100 + group.rank());
      int calls = 0;
      std::vector<Work> works;
      std::vector<std::int64_t> values(kCalls, group.rank());
      const auto call = [&](int how_many) {
        for (; how_many > 0 && calls < kCalls; --how_many, ++calls)
          works.push_back(group.all_reduce(&values[static_cast<std::size_t>(calls)], 1, DType::kInt64));
      };
      for (const int parcel : shuffled(first.size(), seed)) {
        if (group.rank() == group.size() - 1) std::this_thread::sleep_for(3ms);
        call(static_cast<int>(mix(seed + static_cast<std::uint64_t>(parcel)) % 7));
        first.post(parcel, generation);
        if (parcel % 2 == 0) second.post(parcel, generation);
      }
      call(kCalls);
      for (Work& work : works) work.wait();
      for (const int parcel : shuffled(first.size(), seed + 9)) {
        const auto p = static_cast<std::size_t>(parcel);
        first.work(p).wait();
        if (parcel % 2 == 0) second.work(p).wait();
        first.expect_sums(parcel, generation);
        if (parcel % 2 == 0) second.expect_sums(parcel, generation);
      }
      for (const std::int64_t value : values) EXPECT_EQ(value, group.size() * (group.size() - 1) / 2);
    }
  });
}

/// A rank that is slow to read finds what was posted, not what the poster writes when its own work is complete.
TEST(GroupConformance, BoardMemoryChangesOnlyWhenAllHaveRead) {
  on_ranks([](Group group) {
    constexpr std::int64_t kNumel = 5000;
    const Counts counts(static_cast<std::size_t>(group.size()), kNumel);
    const SharedMemory memory = group.allocate(static_cast<std::size_t>(kNumel * group.size()) * sizeof(float));
    auto* const values = static_cast<float*>(memory.data());
    std::vector<float> sums(kNumel);
    const auto board = make_exchange_board(group, "gradients", {{"p", counts}}, DType::kFloat32,
                                           [&](int, std::span<const void* const> slices) {
                                             std::this_thread::sleep_for(10ms * group.rank());
                                             std::fill(sums.begin(), sums.end(), 0.0f);
                                             for (const void* slice : slices) {
                                               for (std::int64_t i = 0; i < kNumel; ++i)
                                                 sums[i] += static_cast<const float*>(slice)[i];
                                             }
                                           });
    for (int round = 0; round < 4; ++round) {
      std::fill(values, values + kNumel * group.size(), static_cast<float>(group.rank() + round));
      board->post(0, values).wait();
      std::fill(values, values + kNumel * group.size(), -1e6f);
      const int ranks = group.size();
      EXPECT_EQ(sums, std::vector<float>(kNumel, static_cast<float>(ranks * (ranks - 1) / 2 + ranks * round)));
    }
  });
}

TEST(GroupConformance, BoardWaitsForALimitedTime) {
  on_ranks([](Group group) {
    SummingBoard summing(group, true);
    if (group.size() > 1 && group.rank() == 1) std::this_thread::sleep_for(400ms);
    summing.post(0, 0);
    int tries = 0;
    const auto begin = std::chrono::steady_clock::now();
    while (!summing.work(0).wait_for(20ms)) ++tries;
    if (group.size() > 1 && group.rank() == 0) {
      EXPECT_GE(tries, 3);
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
    }
    EXPECT_TRUE(summing.work(0).wait_for(0ms));
    summing.expect_sums(0, 0);
    Work barrier = group.barrier();
    while (!barrier.wait_for(1ms)) {
    }
    EXPECT_TRUE(Work().wait_for(1ms));
  });
}

TEST(GroupConformance, BoardWaitsAsLongAsALateRankRuns) {
  on_ranks([](Group group) {
    SummingBoard summing(group, true);
    if (group.rank() == group.size() - 1) std::this_thread::sleep_for(400ms);
    summing.post(0, 0);
    EXPECT_TRUE(summing.wait_while_others_run(0, 30s));
    summing.expect_sums(0, 0);
    EXPECT_TRUE(summing.wait_while_others_run(1, 0ms)) << "never posted";
    group.barrier().wait();
  });
}

TEST(GroupConformance, BoardWaitsForARankWhoseDeviceIsBusy) {
  on_ranks([](Group group) {
    if (group.size() == 1) return;
    SummingBoard summing(group, true);
    if (group.rank() == group.size() - 1) {
      comm::Backend& backend = *comm::GroupAccess::backend(group);
      const comm::BackendGuard guard(*backend.lock());
      const auto begin = std::chrono::steady_clock::now();
      backend.block_until([&] { return std::chrono::steady_clock::now() - begin > 400ms; },
                          [] {
                            return comm::Blocker{"its device", "is busy", {}};
                          },
                          {.timeout = group.timeout(), .for_device = true});
    }
    summing.post(0, 0);
    EXPECT_TRUE(summing.wait_while_others_run(0, 30s));
    summing.expect_sums(0, 0);
    group.barrier().wait();
  });
}

/// Of a wait that ranks can see, or of one that has to end by its limit.
std::chrono::milliseconds limit_of(const ExchangeBoard& board) { return board.sees_waits() ? 60s : 50ms; }

TEST(GroupConformance, BoardWaitsNoLongerOnceAllRanksWaitForEachOther) {
  on_ranks([](Group group) {
    SummingBoard summing(group, true);
    for (int round = 0; round < 20; ++round) {
      const int first = group.rank() == 0 ? 0 : 1, second = 1 - first;
      summing.post(first, round);
      const auto begin = std::chrono::steady_clock::now();
      std::int64_t given_up = summing.wait_while_others_run(first, limit_of(summing.board())) ? 0 : 1;
      EXPECT_LE(std::chrono::steady_clock::now() - begin, 20s);
      summing.post(second, round);
      for (const int p : {first, second}) {
        summing.work(static_cast<std::size_t>(p)).wait();
        summing.expect_sums(p, round);
      }
      group.all_reduce(&given_up, 1, DType::kInt64).wait();
      EXPECT_GE(given_up, group.size() > 1 ? 1 : 0);
    }
  });
}

TEST(GroupConformance, BoardWaitsNoLongerOnceTheOthersWaitInACollective) {
  on_ranks([](Group group) {
    SummingBoard summing(group, true);
    for (int round = 0; round < 20; ++round) {
      if (group.rank() == 0) {
        summing.post(0, round);
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_EQ(summing.wait_while_others_run(0, limit_of(summing.board())), group.size() == 1);
        EXPECT_LE(std::chrono::steady_clock::now() - begin, 20s);
      }
      group.barrier().wait();
      if (group.rank() != 0) summing.post(0, round);
      summing.work(0).wait();
      summing.expect_sums(0, round);
    }
  });
}

TEST(GroupConformance, BoardRefusesWrongUse) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 3);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    const auto sink = [](int, std::span<const void* const>) {};
    EXPECT_THROW(make_exchange_board(group, "b", {{"p", {1, 2, 3, 4, 5, 6, 7}}}, DType::kFloat32, sink), ConfigError);
    EXPECT_THROW(make_exchange_board(group, "b", {{"p", counts}}, DType::kFloat32, nullptr), ConfigError);
    EXPECT_THROW(make_shard_window(group, "w", {{"p", counts}}, DType::kFloat32, {}), ConfigError);
    EXPECT_THROW(make_shard_window(group, "w", {{"p", counts}}, DType::kFloat32, {nullptr}), ConfigError);
    const auto board = make_exchange_board(group, "b", {{"p", counts}}, DType::kFloat32, sink);
    EXPECT_THROW(board->post(1, in.data()), ConfigError);
    EXPECT_THROW(board->post(-1, in.data()), ConfigError);
    EXPECT_THROW(board->post(0, nullptr), ConfigError);
    EXPECT_EQ(board->posts(0), 0);
    if (group.size() > 1) {
      if (group.rank() > 0) group.barrier().wait();
      Work work = board->post(0, in.data());
      if (group.rank() == 0) {
        EXPECT_THROW(board->post(0, in.data()), ConfigError);
        group.barrier().wait();
      }
      work.wait();
    }
  });
}

TEST(GroupConformance, BoardAndWindowCountWhatTheyMove) {
  on_ranks([](Group group) {
    Counts counts;
    for (int r = 0; r < group.size(); ++r) counts.push_back(100 + 10 * r);
    const std::int64_t mine = counts[static_cast<std::size_t>(group.rank())], all = total(counts), n = group.size();
    std::vector<std::uint16_t> in(static_cast<std::size_t>(all)), out(in.size());
    const SharedMemory slice = group.allocate(static_cast<std::size_t>(mine) * 2);
    const auto board = make_exchange_board(group, "b", {{"p", counts}}, DType::kBFloat16, [](int, auto) {});
    const auto window = make_shard_window(group, "w", {{"p", counts}}, DType::kBFloat16, {slice.data()});
    group.reset_counters();
    for (int i = 0; i < 3; ++i) board->post(0, in.data()).wait();
    for (int i = 0; i < 2; ++i) window->fetch(0, out.data(), "a test").wait();
    const CommunicationCounters counters = group.counters();
    EXPECT_EQ(counters.reduce_scatter.calls, 3);
    EXPECT_EQ(counters.reduce_scatter.numel_sent, 3 * (all - mine));
    EXPECT_EQ(counters.reduce_scatter.numel_received, 3 * mine * (n - 1));
    EXPECT_EQ(counters.reduce_scatter.nbytes_sent, 2 * counters.reduce_scatter.numel_sent);
    EXPECT_EQ(counters.all_gather.calls, 2);
    EXPECT_EQ(counters.all_gather.numel_sent, 2 * mine * (n - 1));
    EXPECT_EQ(counters.all_gather.numel_received, 2 * (all - mine));
    EXPECT_EQ(counters.all_gather.nbytes_received, 2 * counters.all_gather.numel_received);
    EXPECT_EQ(counters.barrier.calls, 0);
    group.barrier().wait();
  });
}

TEST(GroupConformance, BoardSinkThatThrowsEndsAllRanks) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    const auto board = make_exchange_board(group, "gradients", {{"bucket 3", counts}}, DType::kFloat32,
                                           [&](int, std::span<const void* const>) {
                                             if (group.rank() == 0) throw std::runtime_error("broken sink");
                                           });
    // On the others either may see it first.
    if (group.rank() == 0) {
      Work work = board->post(0, in.data());
      EXPECT_THROW(work.wait(), std::runtime_error);
      const auto test = [&] {  // false while a progress thread has the turn
        for (int i = 0; i < 5000 && !work.test(); ++i) std::this_thread::sleep_for(1ms);
      };
      EXPECT_THROW(test(), std::runtime_error);
    } else {
      const std::string text = comm_error_of([&] {
        board->post(0, in.data()).wait();
        group.barrier({.timeout = 5s}).wait();
      });
      EXPECT_CONTAINS(text, "broken sink");
      EXPECT_CONTAINS(text, "post 1 of parcel \"bucket 3\"");
      EXPECT_CONTAINS(text, "exchange board \"gradients\"");
    }
  });
}

const std::string kLongLabel(60, 'x');

TEST(GroupConformance, BoardNamesTheRankThatNeverPosts) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  for (const bool by_limits : {false, true}) {
    on_ranks([&](Group group) {
      group.barrier({.label = "before"}).wait();
      const Counts counts(static_cast<std::size_t>(group.size()), 4);
      std::vector<float> in(static_cast<std::size_t>(total(counts)));
      const auto board = make_exchange_board(group, "gradients", {{"other", counts}, {kLongLabel + "end", counts}},
                                             DType::kFloat32, [](int, auto) {});
      group.barrier({.label = "last of all"}).wait();
      const int missing = group.size() - 1;
      if (group.rank() == missing) {
        std::this_thread::sleep_for(1200ms);
        EXPECT_CONTAINS(comm_error_of([&] { group.barrier().wait(); }), "timeout");
        return;
      }
      group.set_timeout(500ms);
      Work work = board->post(1, in.data());
      EXPECT_CONTAINS(group.flight_recorder(), "post 1 of parcel \"" + kLongLabel + "end\"");
      const std::string text = comm_error_of([&] {
        while (by_limits && !work.wait_for(10ms)) {
        }
        work.wait();
      });
      EXPECT_CONTAINS(text, "timeout");
      EXPECT_CONTAINS(text, "post 1 of parcel \"" + kLongLabel + "end\"");
      EXPECT_CONTAINS(text, "exchange board \"gradients\"");
      EXPECT_CONTAINS(text, "rank " + std::to_string(missing) + " (pid");
      EXPECT_CONTAINS(text, "has not posted it");
      EXPECT_CONTAINS(text, "last of all");
    });
  }
}

TEST(GroupConformance, BoardThatGoesTooEarlyEndsAllRanks) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    const std::string text = comm_error_of([&] {
      auto board = make_exchange_board(group, "gradients", {{"p", counts}}, DType::kFloat32, [](int, auto) {});
      if (group.rank() == 0) {
        Work work = board->post(0, in.data());
        board.reset();
        EXPECT_CONTAINS(comm_error_of([&] { work.wait(); }), "destroyed before it was complete");
      }
      group.barrier().wait();
    });
    EXPECT_CONTAINS(text, "destroyed exchange board \"gradients\" in the middle of post 1");
  });
}

TEST(GroupConformance, RanksThatAbandonABoardWaitForNobody) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    std::vector<int> arrived(2);
    const auto sink = [&](int parcel, auto) { ++arrived[static_cast<std::size_t>(parcel)]; };
    auto board = make_exchange_board(group, "gradients", {{"all", counts}, {"some", counts}}, DType::kFloat32, sink);
    Work all = board->post(0, in.data()), some;
    if (group.rank() != 0) some = board->post(1, in.data());
    if (group.rank() == 0) std::this_thread::sleep_for(50ms);
    if (!board->abandon()) {  // then the last one to post completes it
      if (group.rank() == 0) some = board->post(1, in.data());
      some.wait();
      all.wait();
      group.barrier().wait();
      return;
    }
    all.wait();
    if (some.valid()) some.wait();
    EXPECT_EQ(arrived, (std::vector<int>{1, 0}));
    board.reset();
    group.barrier().wait();
    EXPECT_FALSE(group.failed());
  });
}

TEST(GroupConformance, APostThatAnotherRankNeverMakesStaysUnderWayUntilThisOneGoes) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    std::vector<float> in(static_cast<std::size_t>(total(counts)));
    auto board = make_exchange_board(group, "gradients", {{"p", counts}}, DType::kFloat32, [](int, auto) {});
    Work work;
    if (group.rank() != 0) work = board->post(0, in.data());
    const bool told = group.rank() == 0 && board->abandon();
    group.barrier().wait();
    if (work.valid()) {
      EXPECT_FALSE(work.wait_for(20ms));
    }
    group.barrier().wait();
    if (group.rank() == 0 && !told) work = board->post(0, in.data());
    board->abandon();
    if (work.valid()) work.wait();
    board.reset();
    group.barrier().wait();
    EXPECT_FALSE(group.failed());
  });
}

TEST(GroupConformance, BoardsAndWindowsMustBeTheSameEverywhere) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 4);
    Counts others = counts;
    const bool odd = group.rank() == group.size() - 1;
    if (odd) others[0] = 5;
    const SharedMemory slice = group.allocate(1024);
    const auto sink = [](int, std::span<const void* const>) {};
    const std::string here = odd ? "there" : "here";
    const auto board = [&](const std::string& label, std::vector<Parcel> parcels, DType dtype) {
      return comm_error_of([&] { make_exchange_board(group, label, std::move(parcels), dtype, sink); });
    };
    std::string text = board(kLongLabel + here, {{"p", counts}}, DType::kFloat32);
    EXPECT_CONTAINS(text, "rank 0 has exchange board \"" + kLongLabel + "here\"");
    EXPECT_CONTAINS(text,
                    "rank " + std::to_string(group.size() - 1) + " has exchange board \"" + kLongLabel + "there\"");
    text = board("b", {{"p", counts}, {"q " + here, counts}}, DType::kFloat32);
    EXPECT_CONTAINS(text, "parcel 1 \"q here\"");
    EXPECT_CONTAINS(text, "parcel 1 \"q there\"");
    EXPECT_CONTAINS(board("b", {{"p", others}}, DType::kFloat32), "parcel 0 \"p\" with counts [5");
    EXPECT_CONTAINS(board("b", {{"p", counts}}, odd ? DType::kFloat16 : DType::kFloat32), "fp16");
    std::vector<Parcel> parcels(odd ? 2 : 1, Parcel{"p", counts});
    EXPECT_CONTAINS(board("b", parcels, DType::kFloat32), "2 parcels");
    text = comm_error_of([&] {
      make_shard_window(group, "w", {{"p " + here, counts}}, DType::kFloat32, {slice.data()});
    });
    EXPECT_CONTAINS(text, "shard window");
    EXPECT_CONTAINS(text, "parcel 0 \"p there\"");
    group.barrier().wait();  // nothing has failed
  });
}

TEST(GroupConformance, LabelsThatDifferAfterWhatIsShown) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    const std::string label = kLongLabel + (group.rank() == 0 ? "a" : "b");
    const std::string text = comm_error_of([&] {
      group.barrier({.label = label, .timeout = 5s}).wait();
      group.barrier({.timeout = 5s}).wait();
    });
    EXPECT_CONTAINS(text, "diverge");
    EXPECT_CONTAINS(text, "label, after the part shown, differs");
    EXPECT_CONTAINS(text, std::string(44, 'x') + "...\"");
  });
}

/// One rank's side of a window whose values tell parcel, rank, version and place.
class VersionedWindow {
 public:
  explicit VersionedWindow(Group& group) : group_(group), parcels_(parcels_of(group.size())) {
    std::vector<const void*> mine;
    for (const Parcel& parcel : parcels_) {
      const std::int64_t count = parcel.counts[static_cast<std::size_t>(group.rank())];
      slices_.push_back(count > 0 ? group.allocate(static_cast<std::size_t>(count) * 8) : SharedMemory());
      mine.push_back(slices_.back().data());
    }
    write(0);
    window_ = make_shard_window(group, "parameters", parcels_, DType::kInt64, mine);
  }

  std::size_t size() const { return parcels_.size(); }
  ShardWindow& window() { return *window_; }
  void close() { window_.reset(); }

  static std::int64_t value(std::size_t p, std::size_t r, std::int64_t i, std::int64_t version) {
    return static_cast<std::int64_t>(p * 1'000'003 + r * 10'007) + i * 31 + version * 1'000'000'007;
  }

  void write(std::int64_t version) {
    const auto me = static_cast<std::size_t>(group_.rank());
    for (std::size_t p = 0; p < parcels_.size(); ++p) {
      auto* const slice = static_cast<std::int64_t*>(slices_[p].data());
      for (std::int64_t i = 0; i < parcels_[p].counts[me]; ++i) slice[i] = value(p, me, i, version);
    }
  }

  std::vector<std::int64_t> buffer(std::size_t p) const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(total(parcels_[p].counts)) + 1, -1);
  }

  std::int64_t wrong(const std::vector<std::int64_t>& got, std::size_t p, std::int64_t version) const {
    std::int64_t wrong = 0;
    std::size_t at = 0;
    for (std::size_t r = 0; r < parcels_[p].counts.size(); ++r) {
      for (std::int64_t i = 0; i < parcels_[p].counts[r]; ++i) wrong += got[at++] != value(p, r, i, version);
    }
    return wrong + (got[at] != -1);
  }

 private:
  Group& group_;
  std::vector<Parcel> parcels_;
  std::vector<SharedMemory> slices_;
  std::shared_ptr<ShardWindow> window_;
};

TEST(GroupConformance, WindowServesOneRankAlone) {
  on_ranks([](Group group) {
    VersionedWindow w(group);
    EXPECT_TRUE(w.window().one_sided());
    if (group.rank() == group.size() - 1) {
      for (int round = 0; round < 3; ++round) {
        for (const int parcel : shuffled(w.size(), static_cast<std::uint64_t>(round))) {
          const auto p = static_cast<std::size_t>(parcel);
          auto out = w.buffer(p);
          Work work = w.window().fetch(parcel, out.data(), "a test");
          work.wait();
          EXPECT_GE(work.moving_seconds(), 0);
          EXPECT_EQ(w.wrong(out, p, 0), 0) << p;
        }
      }
    }
    // The others are at the end of their window already.
  });
}

TEST(GroupConformance, WindowGivesWhatWasPublished) {
  on_ranks([](Group group) {
    VersionedWindow w(group);
    const int slow = group.size() - 1;
    for (std::int64_t version = 0; version < 6; ++version) {
      if (version > 0) {
        group.barrier().wait();
        if (group.rank() == slow) std::this_thread::sleep_for(20ms);
        w.write(version);
        w.window().publish();
      }
      // Those that are ready early get the new values of the slow one.
      std::vector<std::vector<std::int64_t>> outs;
      std::vector<Work> works;
      const auto order = shuffled(w.size(), static_cast<std::uint64_t>(version * 10 + group.rank()));
      for (const int parcel : order) {
        outs.push_back(w.buffer(static_cast<std::size_t>(parcel)));
        works.push_back(w.window().fetch(parcel, outs.back().data(), "forward"));
      }
      for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
      for (std::size_t i = 0; i < works.size(); ++i)
        EXPECT_EQ(w.wrong(outs[i], static_cast<std::size_t>(order[i]), version), 0) << order[i];
    }
  });
}

TEST(GroupConformance, WindowOfRandomFetchesAndPublishes) {
  on_ranks([](Group group) {
    VersionedWindow w(group);
    SummingBoard summing(group, true);
    std::vector<std::vector<std::int64_t>> outs;
    for (std::size_t p = 0; p < w.size(); ++p) outs.push_back(w.buffer(p));
    std::int64_t version = 0;
    for (int step = 0; step < 1000; ++step) {
      const auto seed = static_cast<std::uint64_t>(step);
      if (mix(seed) % 20 == 0) {  // on all ranks alike
        group.barrier().wait();
        w.write(++version);
        w.window().publish();
        const int generation = static_cast<int>(version);
        summing.work(1).wait();
        if (version > 1) summing.expect_sums(1, generation - 1);
        summing.post(1, generation);
        continue;
      }
      // The large one seldom: its values are checked one by one.
      auto p = static_cast<std::size_t>(mix(seed * 31 + static_cast<std::uint64_t>(group.rank())) % w.size());
      if (p == 5 && step % 8 != 0) p = 1;
      outs[p].assign(outs[p].size(), -1);
      w.window().fetch(static_cast<int>(p), outs[p].data(), "step").wait();
      ASSERT_EQ(w.wrong(outs[p], p, version), 0) << "step " << step << " parcel " << p;
    }
    summing.work(1).wait();
  });
}

TEST(GroupConformance, WindowGivesOneLargeParcelSeveralTimesAtOnce) {
  on_ranks([](Group group) {
    VersionedWindow w(group);
    constexpr std::size_t kLarge = 5;
    std::vector<std::vector<std::int64_t>> outs;
    std::vector<Work> works;
    for (int i = 0; i < 3; ++i) {
      outs.push_back(w.buffer(kLarge));
      works.push_back(w.window().fetch(kLarge, outs.back().data(), "a test"));
    }
    for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
    for (const auto& out : outs) EXPECT_EQ(w.wrong(out, kLarge, 0), 0);
  });
}

TEST(GroupConformance, WindowInPlaceAndOfNodeSharedMemory) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 1000);
    const auto me = static_cast<std::size_t>(group.rank());
    const SharedMemory memory = group.allocate(8000 * counts.size());
    const SharedMemory common = group.allocate_node_shared(8000 * counts.size(), "parameters");
    for (const SharedMemory& whole : {memory, common}) {
      auto* const all = static_cast<std::int64_t*>(whole.data());
      for (std::int64_t i = 0; i < 1000; ++i) all[me * 1000 + static_cast<std::size_t>(i)] = group.rank() * 5000 + i;
      group.barrier().wait();
      const auto window = make_shard_window(group, "in place", {{"p", counts}}, DType::kInt64, {all + me * 1000});
      window->fetch(0, all, "a test").wait();
      for (std::int64_t i = 0; i < 1000 * group.size(); ++i) ASSERT_EQ(all[i], i / 1000 * 5000 + i % 1000);
      std::vector<std::int64_t> out(1000 * counts.size());
      window->fetch(0, out.data(), "a test").wait();
      EXPECT_EQ(std::memcmp(out.data(), all, out.size() * 8), 0);
      group.barrier().wait();
    }
  });
}

TEST(GroupConformance, WindowOfPrivateMemoryFallsBackToCalls) {
  on_ranks([](Group group) {
    const Counts counts(static_cast<std::size_t>(group.size()), 1000);
    std::vector<std::int64_t> mine(1000, group.rank()), out(1000 * counts.size());
    const SharedMemory memory = group.allocate(8000);
    auto* const shared = static_cast<std::int64_t*>(memory.data());
    std::fill(shared, shared + 1000, group.rank());
    const bool odd = group.rank() == group.size() - 1;
    const auto window = make_shard_window(group, "w", {{kLongLabel, counts}}, DType::kInt64,
                                          {odd ? static_cast<void*>(mine.data()) : memory.data()});
    if (conformance_backend() == "shm" || conformance_backend() == "threads") {
      EXPECT_FALSE(window->one_sided());
    }
    for (int round = 0; round < 3; ++round) {
      window->fetch(0, out.data(), "forward").wait();
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<std::int64_t>(i / 1000));
      window->publish();
    }
    group.barrier().wait();
  });
}

TEST(GroupConformance, WindowNamesTheOwnerThatDoesNotPublish) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    VersionedWindow w(group);
    group.barrier({.label = "step 3"}).wait();
    const int missing = group.size() - 1;
    if (group.rank() == missing) {
      std::this_thread::sleep_for(1200ms);
      EXPECT_CONTAINS(comm_error_of([&] { group.barrier().wait(); }), "timeout");
      return;
    }
    group.set_timeout(500ms);
    w.window().publish();
    auto out = w.buffer(0);
    Work work = w.window().fetch(0, out.data(), "forward of layer 7");
    EXPECT_FALSE(work.wait_for(20ms));
    const std::string text = comm_error_of([&] { work.wait(); });
    EXPECT_CONTAINS(text, "timeout");
    EXPECT_CONTAINS(text, "fetch of parcel \"parcel 0\"");
    EXPECT_CONTAINS(text, "shard window \"parameters\", version 1, for forward of layer 7");
    EXPECT_CONTAINS(text, "rank " + std::to_string(missing) + " (pid");
    EXPECT_CONTAINS(text, "has not");
    EXPECT_CONTAINS(text, "step 3");
  });
}

TEST(GroupConformance, ProgressThreadMovesPostsAndFetches) {
  if (conformance_ranks() == 1) GTEST_SKIP() << "needs peers";
  on_ranks([](Group group) {
    group.set_progress_thread(true);
    {
      VersionedWindow w(group);
      SummingBoard summing(group, true);
      for (const int parcel : shuffled(summing.size(), static_cast<std::uint64_t>(group.rank())))
        summing.post(parcel, 0);
      auto out = w.buffer(5);
      Work work = w.window().fetch(5, out.data(), "a test");
      const auto deadline = std::chrono::steady_clock::now() + 20s;
      const auto moved = [&] {
        bool all = work.moving_seconds() > 0;
        for (std::size_t p = 0; p < summing.size(); ++p) all = all && summing.work(p).moving_seconds() > 0;
        return all;
      };
      while (!moved() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
      EXPECT_TRUE(moved()) << "nobody moved the data";
      work.wait();
      EXPECT_EQ(w.wrong(out, 5, 0), 0);
      for (int parcel = 0; parcel < static_cast<int>(summing.size()); ++parcel) {
        summing.work(static_cast<std::size_t>(parcel)).wait();
        summing.expect_sums(parcel, 0);
      }
    }
    group.barrier().wait();
    group.set_progress_thread(conformance_progress_thread());
  });
}

}  // namespace
}  // namespace zero::testing::transfer_conformance_test
