// Waiting and failing over messages.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "comm/interrupt.h"
#include "comm/messages/backend.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr int kFailureTag = 0;
constexpr int kFarewellTag = 1;
constexpr std::int64_t kNapAfterNs = 5 * base::kNanosPerMilli;
constexpr std::int64_t kFarewellGraceNs = base::kNanosPerSecond / 2;
constexpr std::int64_t kWatchGraceNs = 4 * base::kNanosPerSecond;
constexpr std::chrono::microseconds kShortNap{20};

}  // namespace

bool MessageBackend::block_until(const std::function<bool()>& done, const std::function<Blocker()>& blocker,
                                 const Patience& patience) {
  const std::int64_t begin_ns = base::monotonic_ns();
  while (true) {
    progress();
    if (moves_others()) move_others();
    if (done()) return true;
    throw_if_failed();
    const std::int64_t waited_ns = base::monotonic_ns() - begin_ns;
    if (waited_ns >= patience.limit_ns) {
      check_peers(blocker, begin_ns - patience.waited_ns, patience.timeout);
      return false;
    }
    if (waited_ns < policy_.spin_ns) {
      cpu_relax();
    } else if (waited_ns < kNapAfterNs) {
      ::sched_yield();
    } else {
      check_peers(blocker, begin_ns - patience.waited_ns, patience.timeout);
      const BackendUnlock pause(*lock());
      std::this_thread::sleep_for(kShortNap);
    }
  }
}

void MessageBackend::block_until(const std::function<bool()>& done, std::uint64_t target) {
  block_until(done, [this, target] { return blocker_of(target); }, {default_timeout()});
}

Blocker MessageBackend::blocker_of(std::uint64_t target) const {
  const std::uint64_t sequence = std::min(target, data_sequence_);
  const bool leaving = sequence >= next_sequence_;
  Blocker blocker;
  blocker.what = leaving ? std::string("the end of the group") : describe(work_at(sequence).call_.record);
  for (int peer = 0; peer < size(); ++peer) {
    const Peer& state = peers_[static_cast<std::size_t>(peer)];
    if (peer != rank() && (leaving ? state.left_ns == 0 : state.heard <= sequence)) blocker.ranks.push_back(peer);
  }
  if (!blocker.ranks.empty() || leaving) return blocker;
  blocker.lack = "has not sent its data";  // all have come
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) blocker.ranks.push_back(peer);
  }
  return blocker;
}

void MessageBackend::check_peers(const std::function<Blocker()>& blocker_now, std::int64_t since_ns,
                                 std::chrono::milliseconds timeout) {
  const std::int64_t now_ns = base::monotonic_ns();
  const bool late = now_ns - since_ns >= timeout.count() * base::kNanosPerMilli;
  if (now_ns - last_check_ns_ < policy_.slice_ns && !late) return;
  if (now_ns - last_check_ns_ > 10 * policy_.slice_ns) {
    for (Peer& peer : peers_) peer.stopped_since_ns = 0;
  }
  last_check_ns_ = now_ns;
  check_interrupt(*this);
  const Blocker blocker = blocker_now();
  for (const int peer : blocker.ranks) {
    const std::string problem = problem_of(peer, now_ns);
    if (problem.empty()) continue;
    fail_group(fmt::format("rank {} (pid {}) {} while rank {} waited for it in {}. {}", peer, pid_of(peer), problem,
                           rank(), blocker.what, position_of(peer)));
  }
  const auto missing = [&] {
    std::vector<LongWait::Missing> all;
    for (const int peer : blocker.ranks) {
      all.push_back({peer, pid_of(peer), peers_[static_cast<std::size_t>(peer)].on_this_host, position_of(peer)});
    }
    return all;
  };
  if (!late && speaker_of(blocker.ranks, size()) == rank() && long_wait_.is_due(now_ns - since_ns))
    LongWait::tell(rank(), blocker, now_ns - since_ns, missing());
  if (late) fail_group(LongWait::timeout(rank(), blocker, now_ns - since_ns, missing()));
}

std::string MessageBackend::problem_of(int peer, std::int64_t now_ns) {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  // Its last messages and its farewell come by different ways: give them time.
  if (state.left_ns != 0 && now_ns - state.left_ns > kFarewellGraceNs) return "left the group (it was destroyed there)";
  if (!state.on_this_host) return problem_elsewhere(peer, now_ns);
  switch (process_state(state.process)) {
    case ProcessState::kGone:
      return "ended without leaving the group (exited or died; see its own output; killed for lack of "
             "memory? see dmesg)";
    case ProcessState::kRunning:
      state.stopped_since_ns = 0;
      return {};
    case ProcessState::kStopped:
      break;
  }
  if (state.stopped_since_ns == 0) state.stopped_since_ns = now_ns;
  const std::int64_t stopped_ns = now_ns - state.stopped_since_ns;
  if (stopped_ns < policy_.stopped_limit_ns) return {};
  return fmt::format("is stopped (SIGSTOP or terminal) for {:.1f} s (ZERO_STOPPED_LIMIT_S allows more)",
                     to_seconds(stopped_ns));
}

std::string MessageBackend::problem_elsewhere(int peer, std::int64_t now_ns) {
  Peer& state = peers_[static_cast<std::size_t>(peer)];
  std::string problem = messenger_->watch() ? messenger_->watch()->problem_of(state.world_rank) : std::string();
  // Of a connection that is lost the watch hears at the same time, and knows more.
  const std::int64_t grace_ns = problem.empty() && messenger_->watch() ? kWatchGraceNs : kFarewellGraceNs;
  if (problem.empty()) problem = messenger_->problem_of(peer);
  if (problem.empty()) return {};
  if (state.problem_ns == 0) state.problem_ns = now_ns;
  // As for farewells; and what a rank says of its own failure is better than that it is gone.
  return now_ns - state.problem_ns > grace_ns ? problem : std::string();
}

void MessageBackend::look_at_watch() {
  if (!failure_.empty() || !messenger_->watch() || !messenger_->watch()->failed()) return;
  failure_ = messenger_->watch()->failure();
  has_failed_ = true;
}

void MessageBackend::receive_notices() {
  while (true) {
    Arrival arrival;
    if (!messenger_->test(notice_receive_, arrival)) return;
    const std::string text(notice_.data(), arrival.nbytes);
    if (arrival.tag == kFarewellTag) peers_[static_cast<std::size_t>(arrival.source)].left_ns = base::monotonic_ns();
    notice_receive_ = messenger_->receive_any(Channel::kNotices, notice_.data(), kNoticeBytes);
    if (arrival.tag == kFailureTag) {
      failure_ = text;
      has_failed_ = true;
      return;
    }
  }
}

void MessageBackend::send_notice(int tag, const std::string& text) noexcept {
  try {
    const std::string& kept = sent_notices_.emplace_back(text.substr(0, kNoticeBytes));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      // One byte at least: MessageRequests sends nothing for nothing.
      notice_sends_.send(*messenger_, Channel::kNotices, peer, tag, kept.empty() ? " " : kept.data(),
                         std::max<std::size_t>(kept.size(), 1));
    }
    // Let it go out before this rank does something else, such as ending.
    const std::int64_t deadline_ns = base::monotonic_ns() + base::kNanosPerSecond;
    while (!notice_sends_.test() && base::monotonic_ns() < deadline_ns) ::sched_yield();
  } catch (...) {
    // The others will notice by themselves.
  }
}

void MessageBackend::tell_failure() noexcept {
  send_notice(kFailureTag, failure_);
  // Ranks that compute meanwhile see it before their next call.
  if (messenger_->watch() && size() == messenger_->world_size()) messenger_->watch()->report(failure_);
}

void MessageBackend::abort(std::string_view reason) noexcept {
  if (!failure_.empty() || ::getpid() != pid_) return;  // a forked child has no part in the group
  try {
    failure_ = fmt::format("rank {} (pid {}) aborted the group: {}. {}{}", rank(), pid_, reason, position_of(rank()),
                           last_transfers_text());
  } catch (...) {
    failure_ = "aborted";
  }
  has_failed_ = true;
  tell_failure();
}

void MessageBackend::throw_if_failed() const {
  if (!failure_.empty()) throw_failure();
}

void MessageBackend::let_go() const noexcept {
  constexpr std::int64_t kPatienceNs = base::kNanosPerSecond / 5;  // what has been matched comes, or its peer is lost
  if (std::exchange(has_let_go_, true) || ::getpid() != pid_) return;
  const std::int64_t deadline_ns = base::monotonic_ns() + kPatienceNs;
  while (true) {
    bool clean = let_go_of_transfers();
    for (std::uint64_t s = data_sequence_; s < next_sequence_; ++s) {
      clean = work_at(s).data_.cancel() && clean;
      clean = work_at(s).relayed_.cancel() && clean;
    }
    if (clean || base::monotonic_ns() > deadline_ns) return;
    ::sched_yield();
  }
}

void MessageBackend::throw_failure() const {
  let_go();
  if (messenger_->watch()) messenger_->watch()->told();
  throw CommError(fmt::format("{}\n  This is rank {} of {}. {}{}", failure_, rank(), size(), position_of(rank()),
                              last_transfers_text()));
}

void MessageBackend::fail_group(const std::string& reason) {
  if (failure_.empty()) {
    failure_ = reason;
    has_failed_ = true;
    tell_failure();
  }
  throw_failure();
}

std::string MessageBackend::position_of(int peer) const {
  const Peer& state = peers_[static_cast<std::size_t>(peer)];
  const std::string_view who = peer == rank() ? "This rank" : "It";
  if (state.heard == 0) return fmt::format("{} has entered no collective.", who);
  return fmt::format("{} last called {}{}.", who, describe(state.recent[(state.heard - 1) % kRemembered]),
                     peer == rank() ? "" : ", as far as this rank has heard");
}

std::string MessageBackend::recent_calls(int peer) const {
  constexpr std::uint64_t kShown = 8;
  const Peer& state = peers_[static_cast<std::size_t>(peer)];
  std::string text;
  for (std::uint64_t s = state.heard > kShown ? state.heard - kShown : 0; s < state.heard; ++s) {
    text += fmt::format("    {}\n", describe(state.recent[s % kRemembered]));
  }
  return text.empty() ? std::string("    none\n") : text;
}

std::string MessageBackend::flight_recorder() const {
  std::string text;
  for (int r = 0; r < size(); ++r) text += fmt::format("rank {}:\n{}", r, recent_calls(r));
  return text + transfers_text();
}

}  // namespace zero::comm
