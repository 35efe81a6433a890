// Promise P6: no rank ever hangs silently. A rank that is killed, stopped, throws or leaves ends all
// others within seconds, with its number and the collective in their errors, and leaves nothing behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/segment.h"
#include "support/collective_caller.h"
#include "support/spawn.h"
#include "zero/errors.h"

namespace zero::testing::comm_failure_test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr double kDeadlineS = 10;

/// Everybody makes a few calls, then the victim does `fate` instead of the next, the others go on for ever.
std::vector<RankResult> run_with_fate(const std::string& collective, const std::function<void(Group&)>& fate,
                                      int victim, bool never_ends = false) {
  SpawnOptions options;
  options.timeout = 20s;
  if (never_ends) options.expendable_rank = victim;
  return spawn(
      kRanks,
      [&](Group group) {
        CollectiveCaller caller(group, collective);
        for (int step = 0; step < 5; ++step) caller.call("warm up");
        if (group.rank() == victim) return fate(group);
        while (true) caller.call("layer.7");
      },
      options);
}

void expect_others_end(const std::vector<RankResult>& results, const std::string& collective, int victim,
                       const std::string& cause) {
  const std::string name = name_in_errors(collective);
  for (const RankResult& result : results) {
    if (result.rank == victim) continue;
    EXPECT_EQ(result.exit_code, 1) << "rank " << result.rank << " signal " << result.signal;
    EXPECT_LT(result.seconds, kDeadlineS);
    for (const std::string& part :
         {"rank " + std::to_string(victim) + " (pid", name, cause, std::string("This is rank")}) {
      EXPECT_NE(result.error.find(part), std::string::npos)
          << collective << ": rank " << result.rank << ", wanted \"" << part << "\" in: " << result.error;
    }
  }
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

TEST(CommFailure, KilledRankEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    const auto results = run_with_fate(
        collective, [](Group&) { ::raise(SIGKILL); }, kVictim);
    expect_others_end(results, collective, kVictim, "died");
    EXPECT_EQ(results[kVictim].signal, SIGKILL);
  }
}

TEST(CommFailure, KilledRankZeroEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    expect_others_end(run_with_fate(
                          collective, [](Group&) { ::raise(SIGKILL); }, 0),
                      collective, 0, "died");
  }
}

TEST(CommFailure, StoppedRankEndsTheOthers) {
  expect_others_end(run_with_fate(
                        "barrier", [](Group&) { ::raise(SIGSTOP); }, kVictim, true),
                    "barrier", kVictim, "is stopped");
  ::setenv("ZERO_STOPPED_LIMIT_S", "0.4", 1);
  for (const std::string& collective : kCollectives) {
    expect_others_end(run_with_fate(
                          collective, [](Group&) { ::raise(SIGSTOP); }, kVictim, true),
                      collective, kVictim, "is stopped");
  }
  ::unsetenv("ZERO_STOPPED_LIMIT_S");
}

TEST(CommFailure, ShortStopIsNoFailure) {
  SpawnOptions options;
  options.on_started = [](const std::vector<pid_t>& pids) {
    ::kill(pids[kVictim], SIGSTOP);
    ::usleep(700'000);
    ::kill(pids[kVictim], SIGCONT);
  };
  expect_all_ok(spawn(
      kRanks,
      [](Group group) {
        for (int i = 0; i < 20; ++i) {
          std::this_thread::sleep_for(10ms);
          group.barrier().wait();
        }
      },
      options));
}

TEST(CommFailure, ThrowingRankEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    const auto results = run_with_fate(
        collective, [](Group&) { throw std::runtime_error("loss is NaN"); }, kVictim);
    expect_others_end(results, collective, kVictim, "aborted the group");
    EXPECT_EQ(results[kVictim].error, "loss is NaN");
  }
}

TEST(CommFailure, AbortingRankEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    expect_others_end(run_with_fate(
                          collective, [](Group& group) { group.abort("no more data"); }, kVictim),
                      collective, kVictim, "no more data");
  }
}

TEST(CommFailure, RankThatReturnsEarlyEndsTheOthers) {
  for (const std::string& collective : kCollectives) {
    // Of a window nobody leaves before all are done with it.
    expect_others_end(run_with_fate(
                          collective, [](Group&) {}, kVictim),
                      collective, kVictim, collective == "fetch" ? "destroyed its shard window" : "left the group");
  }
}

TEST(CommFailure, RankThatExitsWithoutDestructorsEndsTheOthers) {
  expect_others_end(run_with_fate(
                        "reduce_scatter", [](Group&) { ::_exit(0); }, kVictim),
                    "reduce_scatter", kVictim, "ended without leaving the group");
}

TEST(CommFailure, KilledAtAnyMomentNobodyHangsAndNothingIsWrong) {
  for (int round = 0; round < 24; ++round) {
    const int victim = round % kRanks;
    SpawnOptions options;
    options.timeout = 20s;
    options.on_started = [&](const std::vector<pid_t>& pids) {
      ::usleep(static_cast<useconds_t>(round * 733 % 9000));
      ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
    };
    const auto results = spawn(
        kRanks,
        [](Group group) {
          const std::vector<std::int64_t> counts(kRanks, 40'000);
          const SharedMemory in = group.allocate(kRanks * 40'000 * 8);
          auto* const values = static_cast<std::int64_t*>(in.data());
          std::vector<std::int64_t> out(40'000), all(kRanks * 40'000);
          for (std::int64_t step = 0;; ++step) {
            std::fill(values, values + kRanks * 40'000, step);
            group.reduce_scatter(values, out.data(), counts, DType::kInt64, DType::kInt64, false).wait();
            if (out[39'999] != kRanks * step) throw ModelError("wrong sum");
            group.all_gather(out.data(), all.data(), counts, DType::kInt64).wait();
            if (all[0] != kRanks * step || all.back() != kRanks * step) throw ModelError("wrong gather");
            group.all_reduce(all.data(), 3, DType::kInt64).wait();
          }
        },
        options);
    for (const RankResult& result : results) {
      if (result.rank == victim) continue;
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_LT(result.seconds, kDeadlineS);
      EXPECT_NE(result.error.find("rank " + std::to_string(victim) + " (pid"), std::string::npos) << result.error;
      EXPECT_NE(result.error.find("died"), std::string::npos) << result.error;
    }
    EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
  }
}

TEST(CommFailure, KilledAtAnyMomentPostsAndFetchesAreRightOrFail) {
  for (int round = 0; round < 24; ++round) {
    const int victim = round % kRanks;
    SpawnOptions options;
    options.timeout = 20s;
    options.on_started = [&](const std::vector<pid_t>& pids) {
      ::usleep(static_cast<useconds_t>(round * 733 % 9000));
      ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
    };
    const auto results = spawn(
        kRanks,
        [](Group group) {
          constexpr std::int64_t kNumel = 40'000;
          const std::vector<std::int64_t> counts(kRanks, kNumel);
          const SharedMemory in = group.allocate(kRanks * kNumel * 8), slice = group.allocate(kNumel * 8);
          auto* const values = static_cast<std::int64_t*>(in.data());
          auto* const mine = static_cast<std::int64_t*>(slice.data());
          std::vector<std::int64_t> all(kRanks * kNumel);
          const auto board = comm::make_exchange_board(group, "sums", {{"p", counts}}, DType::kInt64,
                                                       [&](int, std::span<const void* const> slices) {
                                                         for (std::int64_t i = 0; i < kNumel; ++i) {
                                                           mine[i] = 0;
                                                           for (const void* part : slices)
                                                             mine[i] += static_cast<const std::int64_t*>(part)[i];
                                                         }
                                                       });
          const auto window = comm::make_shard_window(group, "sums", {{"p", counts}}, DType::kInt64, {mine});
          for (std::int64_t step = 0;; ++step) {
            std::fill(values, values + kRanks * kNumel, step);
            board->post(0, values).wait();
            if (mine[kNumel - 1] != kRanks * step) throw ModelError("wrong sum");
            window->publish();
            window->fetch(0, all.data(), "a check").wait();
            if (all[0] != kRanks * step || all.back() != kRanks * step) throw ModelError("wrong fetch");
            group.barrier().wait();
          }
        },
        options);
    for (const RankResult& result : results) {
      if (result.rank == victim) continue;
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_LT(result.seconds, kDeadlineS);
      EXPECT_NE(result.error.find("rank " + std::to_string(victim) + " (pid"), std::string::npos) << result.error;
      EXPECT_NE(result.error.find("died"), std::string::npos) << result.error;
    }
    EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
  }
}

TEST(CommFailure, AWindowThatAnExceptionHasEndedIsNotReadAnyMore) {
  const auto results =
      spawn(2,
            [](Group group) {
              const SharedMemory slice = group.allocate(8000);
              std::vector<std::int64_t> all(2000);
              const auto open = [&] {
                return comm::make_shard_window(group, "weights", {{"p", {1000, 1000}}}, DType::kInt64, {slice.data()});
              };
              if (group.rank() == kVictim) {
                try {
                  const auto window = open();
                  throw std::runtime_error("not this model");
                } catch (const std::runtime_error&) {  // the program goes on without it
                }
                while (true) group.barrier().wait();
              }
              const auto window = open();
              group.barrier().wait();
              window->fetch(0, all.data(), "a check").wait();
            },
            {.timeout = 20s});
  for (const RankResult& result : results) {
    EXPECT_NE(result.error.find("destroyed its shard window (an exception?"), std::string::npos) << result.error;
  }
}

TEST(CommFailure, LeavingInAnyOrderIsNoFailure) {
  for (int late = 0; late < kRanks; ++late) {
    expect_all_ok(spawn(kRanks, [&](Group group) {
      const SharedMemory in = group.allocate(4096);
      std::vector<float> all(1024 * kRanks);
      const std::vector<std::int64_t> counts(kRanks, 1024);
      group.barrier().wait();
      if (group.rank() == late) std::this_thread::sleep_for(300ms);
      // The fast ranks are through and leave before the late one has read their input.
      group.all_gather(in.data(), all.data(), counts, DType::kFloat32, {.input_stable_until_barrier = true});
      group.barrier();
    }));
  }
}

TEST(CommFailure, WorksAndMemoryMayOutliveTheirGroup) {
  expect_all_ok(spawn(2, [](Group group) {
    std::vector<float> all(2048);
    const std::vector<std::int64_t> counts(2, 1024);
    SharedMemory memory = group.allocate(4096);
    Work pending = group.all_gather(memory.data(), all.data(), counts, DType::kFloat32);
    group = Group();
    static_cast<char*>(memory.data())[4095] = 1;
    try {
      pending.wait();
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("the group was destroyed"), std::string::npos) << error.what();
    }
  }));
}

// Rendezvous.

std::string unique_id(const std::string& name) { return "failure-test-" + name + "-" + std::to_string(::getpid()); }

template <class Error>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing thrown";
}

/// Runs `action` in a child; its exit code is 0 unless it throws.
pid_t in_child(const std::function<void()>& action) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    action();
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);
}

int exit_code_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(CommRendezvous, NamesTheRanksThatDoNotCome) {
  const std::string text =
      error_of<CommError>([] { comm::ControlSegment::rendezvous(unique_id("late"), 0, 3, 200ms); });
  EXPECT_NE(text.find("ranks 1, 2 of 3 did not arrive within 0.2 s"), std::string::npos) << text;
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
  const std::string other =
      error_of<CommError>([] { comm::ControlSegment::rendezvous(unique_id("late"), 1, 3, 200ms); });
  EXPECT_NE(other.find("rank 0 did not arrive"), std::string::npos) << other;
}

TEST(CommRendezvous, DeadRankIsNoticedBeforeTheTimeout) {
  const std::string id = unique_id("dead");
  const pid_t child = in_child([&] {
    ::alarm(1);  // dies while it waits for rank 2
    comm::ControlSegment::rendezvous(id, 1, 3, 30s);
  });
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = error_of<CommError>([&] { comm::ControlSegment::rendezvous(id, 0, 3, 30s); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_NE(text.find("rank 1 (pid " + std::to_string(child) + ") died"), std::string::npos) << text;
  EXPECT_EQ(exit_code_of(child), -SIGALRM);
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

TEST(CommRendezvous, SegmentOfADeadJobIsTakenOver) {
  const std::string id = unique_id("stale");
  const pid_t dead = in_child([&] { comm::ControlSegment::rendezvous(id, 0, 2, 30s); });
  while (leftover_shm_names().empty()) ::usleep(1000);
  ::usleep(20'000);
  ::kill(dead, SIGKILL);
  exit_code_of(dead);
  ASSERT_EQ(leftover_shm_names().size(), 1u);
  const pid_t peer = in_child([&] { comm::ControlSegment::rendezvous(id, 1, 2, 20s); });
  ::usleep(50'000);  // it meets the stale segment first and must not trust it
  comm::ControlSegment::rendezvous(id, 0, 2, 20s);
  EXPECT_EQ(exit_code_of(peer), 0);
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

TEST(CommRendezvous, HalfMadeSegmentIsTakenOver) {
  const std::string id = unique_id("half");
  const std::string name = comm::ControlSegment::name_of(id);
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);  // as left by a creator killed at once
  ASSERT_GE(fd, 0);
  const timespec long_ago[2] = {{::time(nullptr) - 60, 0}, {::time(nullptr) - 60, 0}};
  ::futimens(fd, long_ago);
  ::close(fd);
  const std::string text = error_of<CommError>([&] { comm::ControlSegment::rendezvous(id, 0, 2, 300ms); });
  EXPECT_NE(text.find("rank 1 of 2 did not arrive"), std::string::npos) << text;
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

TEST(CommRendezvous, ContradictionsAreConfigErrors) {
  const std::string id = unique_id("contradiction");
  const pid_t creator = in_child([&] { comm::ControlSegment::rendezvous(id, 0, 3, 15s); });
  while (leftover_shm_names().empty()) ::usleep(1000);
  const pid_t first = in_child([&] { comm::ControlSegment::rendezvous(id, 1, 3, 15s); });
  ::usleep(100'000);
  const std::string width = error_of<ConfigError>([&] { comm::ControlSegment::rendezvous(id, 1, 2, 5s); });
  EXPECT_NE(width.find("rank 1 wants a group of 2 ranks"), std::string::npos) << width;
  const std::string twice = error_of<ConfigError>([&] { comm::ControlSegment::rendezvous(id, 1, 3, 5s); });
  EXPECT_NE(twice.find("rank 1 is taken"), std::string::npos) << twice;
  const std::string in_use = error_of<ConfigError>([&] { comm::ControlSegment::rendezvous(id, 0, 3, 300ms); });
  EXPECT_NE(in_use.find("job id is in use"), std::string::npos) << in_use;
  comm::ControlSegment::rendezvous(id, 2, 3, 5s);
  EXPECT_EQ(exit_code_of(creator), 0);
  EXPECT_EQ(exit_code_of(first), 0);
}

TEST(CommRendezvous, ManyGroupsOneAfterTheOther) {
  const std::string id = unique_id("again");
  const auto join = [&](int rank) {
    for (int i = 0; i < 30; ++i) comm::ControlSegment::rendezvous(id, rank, 2, 10s);
  };
  const pid_t peer = in_child([&] { join(1); });
  join(0);
  EXPECT_EQ(exit_code_of(peer), 0);
  EXPECT_EQ(leftover_shm_names(), std::vector<std::string>{});
}

}  // namespace
}  // namespace zero::testing::comm_failure_test
