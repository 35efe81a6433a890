// Waiting, and finding out why it takes so long.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "comm/interrupt.h"
#include "comm/shm/backend.h"
#include "comm/wait_policy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// Counts this rank among the sleepers for the length of a scope.
class SleeperGuard {
 public:
  SleeperGuard(ControlSegment& segment, int rank) : segment_(segment), rank_(rank) {
    segment_.header().sleepers.fetch_add(1);
  }
  ~SleeperGuard() {
    segment_.wake_up(rank_);
    segment_.header().sleepers.fetch_sub(1);
  }
  SleeperGuard(const SleeperGuard&) = delete;
  SleeperGuard& operator=(const SleeperGuard&) = delete;

 private:
  ControlSegment& segment_;
  const int rank_;
};

}  // namespace

bool ShmBackend::block_until(const std::function<bool()>& done, const std::function<Blocker()>& blocker,
                             const Patience& patience) {
  const auto arrived = [&] {
    progress();
    if (moves_others()) move_others();
    if (done()) return true;
    if (!segment_->failed()) return false;
    progress();  // who failed may have come first
    if (done()) return true;
    throw_failure();
  };
  if (arrived()) return true;
  const std::int64_t begin_ns = base::monotonic_ns();
  const std::int64_t spin_ns = std::min(policy_.spin_ns, patience.limit_ns);
  constexpr int kLooksPerClock = 16;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      cpu_relax();
      if (arrived()) return true;
    }
  } while (base::monotonic_ns() - begin_ns < spin_ns);
  for (int i = 0; i < policy_.yields; ++i) {
    ::sched_yield();
    if (arrived()) return true;
  }
  const std::int64_t since_ns = begin_ns - patience.waited_ns;
  const std::int64_t deadline_ns = since_ns + patience.timeout.count() * base::kNanosPerMilli;
  std::optional<std::uint32_t> told;  ///< the last event at which this rank told others that all sleep
  while (true) {
    check_peers(blocker, since_ns, patience.timeout);
    const SleeperGuard guard(*segment_, rank());
    const std::uint32_t event = segment_->header().event.load(std::memory_order_seq_cst);
    if (arrived()) return true;
    const std::int64_t now_ns = base::monotonic_ns();
    const std::int64_t limit_left_ns = patience.limit_ns - (now_ns - begin_ns);
    if (limit_left_ns <= 0) return false;
    if (!patience.for_device) segment_->fall_asleep(rank(), event);
    if (segment_->all_asleep(event)) {
      if (patience.while_others_run) return false;
      if (std::exchange(told, event) != event) segment_->wake_sleepers();
    }
    // What comes in other groups does not wake this one.
    constexpr std::int64_t kNapNs = base::kNanosPerMilli / 5;
    const std::int64_t longest_ns = std::min(moves_others() ? kNapNs : policy_.slice_ns, limit_left_ns);
    // Past the deadline where this process was paused: check_peers() knows.
    segment_->sleep(event, deadline_ns > now_ns ? std::min(longest_ns, deadline_ns - now_ns) : longest_ns);
    if (arrived()) return true;
  }
}

void ShmBackend::block_until(const std::function<bool()>& done, std::uint64_t target) {
  block_until(done, [this, target] { return blocker_of(target); }, {default_timeout()});
}

void ShmBackend::wait_for_room(std::uint64_t sequence) {
  if (sequence - retired_sequence_ < kRingSlots) return;
  if (progressing_) {
    throw CommError(fmt::format("{} calls are under way, no room for another one inside a finish step", kRingSlots));
  }
  const std::uint64_t oldest = sequence - kRingSlots;
  block_until([&] { return retired_sequence_ > oldest; }, oldest);
}

void ShmBackend::wait_for_staging_room(std::size_t nbytes) {
  constexpr std::size_t kStagingLimit = 256u << 20;
  const auto fits = [&] { return staging_.used_nbytes() == 0 || staging_.used_nbytes() + nbytes <= kStagingLimit; };
  while (!progressing_ && !fits()) {
    const std::uint64_t oldest = retired_sequence_;
    block_until([&] { return retired_sequence_ > oldest; }, oldest);
  }
}

void ShmBackend::wait_for_readers(std::uint64_t sequence) {
  const auto read_by_all = [&] {
    retire();
    return retired_sequence_ > sequence;
  };
  block_until(read_by_all, sequence);
}

Blocker ShmBackend::blocker_of(std::uint64_t target) const {
  const std::uint64_t sequence = std::min(target, data_sequence_);
  const bool readers = data_sequence_ > target;  // they have come, but still read this rank's input
  Blocker blocker{call_text(sequence), readers ? "has not read this rank's input" : "has not arrived", {}};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const bool missing =
        readers ? !peer_has(&RankBlock::left, peer, target)
                : works_[sequence % kRingSlots]->peers_[static_cast<std::size_t>(peer)] != ShmWork::Peer::kDone &&
                      !peer_has(&RankBlock::ready, peer, sequence);
    if (missing) blocker.ranks.push_back(peer);
  }
  return blocker;
}

void ShmBackend::check_peers(const std::function<Blocker()>& blocker_now, std::int64_t since_ns,
                             std::chrono::milliseconds timeout) {
  const std::int64_t now_ns = base::monotonic_ns();
  if (since_ns != paused_wait_ns_) paused_wait_ns_ = since_ns, paused_ns_ = 0;
  // Looks of one wait follow each other closely, unless the whole job was paused (Ctrl-Z) in between.
  const std::int64_t since_look_ns = now_ns - last_check_ns_;
  if (last_check_ns_ > since_ns && since_look_ns > 10 * policy_.slice_ns) paused_ns_ += since_look_ns;
  const bool look_at_processes = since_look_ns >= policy_.slice_ns;
  const bool late = now_ns - since_ns - paused_ns_ >= timeout.count() * base::kNanosPerMilli;
  bool somebody_left = false;
  for (int peer = 0; peer < size(); ++peer) {
    somebody_left |= segment_->block(peer).state.load(std::memory_order_seq_cst) == RankState::kLeft;
  }
  if (!look_at_processes && !late && !somebody_left) return;
  if (look_at_processes) {
    // After a while without looks nothing is known about how long a peer has been stopped.
    if (since_look_ns > 10 * policy_.slice_ns) std::fill(stopped_since_ns_.begin(), stopped_since_ns_.end(), 0);
    last_check_ns_ = now_ns;
    check_interrupt(*this);
  }
  const Blocker blocker = blocker_now();
  for (const int peer : blocker.ranks) {
    const std::string problem = problem_of(peer, now_ns, look_at_processes);
    if (problem.empty()) continue;
    // It may have come just before it left.
    const Blocker still = blocker_now();
    if (still.what != blocker.what || std::find(still.ranks.begin(), still.ranks.end(), peer) == still.ranks.end()) {
      return;
    }
    fail_group(fmt::format("rank {} (pid {}) {} while rank {} waited for it in {}. {}", peer, pid_of(peer), problem,
                           rank(), blocker.what, position_of(peer)));
  }
  const std::int64_t waited_ns = now_ns - since_ns - paused_ns_;
  const auto missing = [&] {
    std::vector<LongWait::Missing> all;
    for (const int peer : blocker.ranks) all.push_back({peer, pid_of(peer), true, position_of(peer)});
    return all;
  };
  if (!late && speaker_of(blocker.ranks, size()) == rank() && long_wait_.is_due(waited_ns))
    LongWait::tell(rank(), blocker, waited_ns, missing());
  if (late) fail_group(LongWait::timeout(rank(), blocker, now_ns - since_ns, missing()));
}

std::string ShmBackend::problem_of(int peer, std::int64_t now_ns, bool look_at_process) {
  if (segment_->block(peer).state.load(std::memory_order_acquire) == RankState::kLeft) {
    return "left the group (it was destroyed there)";
  }
  if (!look_at_process) return {};
  std::int64_t& stopped_since_ns = stopped_since_ns_[static_cast<std::size_t>(peer)];
  switch (process_state(segment_->process_of(peer))) {
    case ProcessState::kGone:
      return "ended without leaving the group (exited or died; see its own output; killed for lack of "
             "memory? see dmesg)";
    case ProcessState::kRunning:
      stopped_since_ns = 0;
      return {};
    case ProcessState::kStopped:
      break;
  }
  if (stopped_since_ns == 0) stopped_since_ns = now_ns;
  const std::int64_t stopped_ns = now_ns - stopped_since_ns;
  if (stopped_ns < policy_.stopped_limit_ns) return {};
  return fmt::format("is stopped (SIGSTOP or terminal) for {:.1f} s (ZERO_STOPPED_LIMIT_S allows more)",
                     to_seconds(stopped_ns));
}

void ShmBackend::throw_if_failed() const {
  if (segment_->failed()) throw_failure();
}

void ShmBackend::throw_failure() const {
  throw CommError(fmt::format("{}\n  This is rank {} of {}. {}{}", segment_->reason(), rank(), size(),
                              position_of(rank()), last_transfers_text()));
}

void ShmBackend::fail_group(const std::string& reason) {
  segment_->fail(rank(), reason);
  throw_failure();
}

std::string ShmBackend::call_text(std::uint64_t sequence) const {
  return describe(works_[sequence % kRingSlots]->call_.record);
}

std::string ShmBackend::position_of(int peer) const {
  const std::uint64_t entered = segment_->block(peer).entered.load(std::memory_order_acquire);
  const std::string_view who = peer == rank() ? "This rank" : "It";
  if (entered == 0) return fmt::format("{} has entered no collective.", who);
  const CallRecord last = segment_->block(peer).ring[(entered - 1) % kRingSlots].record.load();
  return fmt::format("{} last called {}.", who, describe_with_times(last, base::monotonic_ns()));
}

std::string ShmBackend::recent_calls(int peer, std::size_t count) const {
  const RankBlock& block = segment_->block(peer);
  const std::uint64_t entered = block.entered.load(std::memory_order_acquire);
  const std::uint64_t first = entered > count ? entered - count : 0;
  std::string text;
  for (std::uint64_t s = first; s < entered; ++s) {
    text +=
        fmt::format("    {}\n", describe_with_times(block.ring[s % kRingSlots].record.load(), base::monotonic_ns()));
  }
  return text.empty() ? std::string("    none\n") : text;
}

}  // namespace zero::comm
