#include "comm/shm/segment.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "zero/errors.h"

namespace zero::comm {

RankBlock& ControlSegment::block(int rank) const {
  return reinterpret_cast<RankBlock*>(mapping_.data() + round_up(sizeof(SegmentHeader), kPageBytes))[rank];
}

ProcessId ControlSegment::process_of(int rank) const {
  const RankBlock& ranks_block = block(rank);
  return {ranks_block.pid.load(std::memory_order_relaxed), ranks_block.start_time.load(std::memory_order_relaxed)};
}

void ControlSegment::attach(int rank) {
  RankBlock& mine = block(rank);
  const ProcessId self = this_process();
  std::int32_t expected = 0;
  if (!mine.pid.compare_exchange_strong(expected, self.pid)) {
    throw ConfigError(
        fmt::format("rank {} is taken by process {}: process {} has the same rank. Give every process its "
                    "own ZERO_RANK (or RANK), "
                    "and every job its own ZERO_JOB_ID.",
                    rank, expected, self.pid));
  }
  mine.start_time.store(self.start_time, std::memory_order_relaxed);
  mine.state.store(RankState::kPresent, std::memory_order_seq_cst);
  notify();
}

void ControlSegment::notify() {
  SegmentHeader& head = header();
  // seq_cst here and on the counters: either this load sees the sleeper, or the sleeper saw the counter.
  if (head.sleepers.load(std::memory_order_seq_cst) == 0) return;
  head.event.fetch_add(1, std::memory_order_seq_cst);
  wake_sleepers();
}

void ControlSegment::wake_sleepers() {
  ::syscall(SYS_futex, &header().event, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// seq_cst on all of them: of ranks that fall asleep at the same time, the last one sees the others.
void ControlSegment::fall_asleep(int rank, std::uint32_t event) {
  block(rank).asleep_since.store(event + std::uint64_t{1}, std::memory_order_seq_cst);
}

void ControlSegment::wake_up(int rank) { block(rank).asleep_since.store(0, std::memory_order_seq_cst); }

bool ControlSegment::all_asleep(std::uint32_t event) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (block(rank).asleep_since.load(std::memory_order_seq_cst) != event + std::uint64_t{1}) return false;
  }
  return header().event.load(std::memory_order_seq_cst) == event;
}

void ControlSegment::sleep(std::uint32_t event, std::int64_t timeout_ns) {
  const timespec timeout{timeout_ns / base::kNanosPerSecond, timeout_ns % base::kNanosPerSecond};
  ::syscall(SYS_futex, &header().event, FUTEX_WAIT, event, &timeout, nullptr, 0);
}

void ControlSegment::fail(int rank, const std::string& reason) noexcept {
  SegmentHeader& head = header();
  FailureState expected = FailureState::kNone;
  if (head.failure.compare_exchange_strong(expected, FailureState::kWriting)) {
    const std::size_t length = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(head.reason, reason.data(), length);
    head.reason[length] = '\0';
    head.failed_by.store(rank, std::memory_order_relaxed);
    head.failure.store(FailureState::kFailed, std::memory_order_release);
  }
  head.event.fetch_add(1, std::memory_order_seq_cst);
  wake_sleepers();
}

std::string ControlSegment::reason() const {
  const std::int64_t deadline = base::monotonic_ns() + base::kNanosPerSecond;
  while (header().failure.load(std::memory_order_acquire) == FailureState::kWriting) {
    if (base::monotonic_ns() > deadline) return "the group failed, and the rank that saw why died while saying so";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return header().reason;
}

}  // namespace zero::comm
