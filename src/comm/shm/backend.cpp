#include "comm/shm/backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "comm/copy.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// Sets a flag for the length of a scope.
class FlagGuard {
 public:
  explicit FlagGuard(bool& flag) : flag_(flag) { flag_ = true; }
  ~FlagGuard() { flag_ = false; }
  FlagGuard(const FlagGuard&) = delete;
  FlagGuard& operator=(const FlagGuard&) = delete;

 private:
  bool& flag_;
};

std::vector<pid_t> processes_of(const ControlSegment& segment) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < segment.ranks(); ++rank) processes.push_back(segment.process_of(rank).pid);
  return processes;
}

}  // namespace

ShmWork::ShmWork(ShmBackend& backend) : MovedWork(backend) {}

ShmBackend* ShmWork::backend() const { return static_cast<ShmBackend*>(backend_); }

Blocker ShmWork::blocker() const { return backend()->blocker_of(call_.record.sequence); }

void ShmWork::reset(int ranks) {
  ready_ = staged_ = data_done_ = false;
  peers_.assign(static_cast<std::size_t>(ranks), Peer::kUnseen);
  peers_left_ = 0;
  input_region_.reset();
  next_.reset();
}

void ShmWork::start() {
  if (backend()) backend()->start(*this);
}

ShmBackend::ShmBackend(std::shared_ptr<ControlSegment> segment, int rank, std::vector<int> host_ranks)
    : Backend(rank, segment->ranks()),
      segment_(segment),
      registry_(std::make_shared<RegionRegistry>(
          rank,
          [segment, rank](std::uint32_t number) {
            RankBlock& mine = segment->block(rank);
            const std::uint32_t count = mine.freed_count.load(std::memory_order_relaxed);
            mine.freed[count % kFreedEntries].store(number, std::memory_order_relaxed);
            mine.freed_count.store(count + 1, std::memory_order_release);
          })),
      staging_(registry_),
      mine_(segment_->block(rank)),
      pid_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()),
      verified_(static_cast<std::size_t>(size())),
      slices_(static_cast<std::size_t>(size())),
      peer_regions_(static_cast<std::size_t>(size())),
      stopped_since_ns_(static_cast<std::size_t>(size())),
      policy_(WaitPolicy::for_local_ranks(processes_of(*segment_))) {
  set_host_ranks(std::move(host_ranks));
  // All that calls need, so that none allocates.
  for (auto& place : works_) {
    place = std::make_shared<ShmWork>(*this);
    place->reset(size());
    place->call_.counts.reserve(static_cast<std::size_t>(size()));
  }
}

ShmBackend::~ShmBackend() {
  set_progress_thread(false);
  if (::getpid() == pid_) {  // a forked child has only a copy of the owner's objects
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      abort("an exception ended its work, see its own output");
    } else if (!segment_->failed()) {
      leave();
    }
    mine_.state.store(RankState::kLeft, std::memory_order_seq_cst);
    segment_->notify();
  }
  for (const std::shared_ptr<ShmWork>& work : works_) {
    if (work) work->orphan();
  }
}

std::shared_ptr<WorkState> ShmBackend::post(const Call& call) {
  throw_if_failed();
  progress();
  const std::uint64_t sequence = next_sequence_;
  wait_for_room(sequence);
  ShmWork& work = new_work(call);
  Slot& slot = mine_.ring[sequence % kRingSlots];
  slot.record.store(work.call_.record);
  mine_.entered.store(sequence + 1, std::memory_order_seq_cst);
  next_sequence_ = sequence + 1;
  const std::shared_ptr<WorkState> result = works_[sequence % kRingSlots];
  const bool reads_are_done = data_sequence_ == sequence;
  if (!call.deferred && (call.transport != Transport::kBarrier || reads_are_done)) make_ready(work);
  return result;
}

ShmWork& ShmBackend::new_work(const Call& call) {
  std::shared_ptr<ShmWork>& place = works_[next_sequence_ % kRingSlots];
  // The user may still hold the work that was here: then it stays with him.
  if (!place || place.use_count() > 1) place = std::make_shared<ShmWork>(*this);
  CallRecord record = make_record(call, next_sequence_);
  record.entered_ns = base::monotonic_ns();
  ShmWork& work = *place;
  work.reset(size());
  work.begin(record.entered_ns, timeout_of(call));
  work.call_.assign(call, record, timeout_of(call));
  work.in_nbytes_ = work.call_.input_nbytes(rank());
  for (int peer = 0; peer < size(); ++peer) {
    // Of a broadcast only root's part is waited for.
    const bool wanted =
        peer != rank() && (work.call_.transport != Transport::kBroadcast || (peer == call.root && rank() != call.root));
    if (wanted) {
      ++work.peers_left_;
    } else {
      work.peers_[static_cast<std::size_t>(peer)] = ShmWork::Peer::kDone;
    }
  }
  return work;
}

void ShmBackend::make_ready(ShmWork& work) {
  try {
    locate_input(work);
  } catch (const IoError& error) {
    abort(fmt::format("no memory to share its input of {}: {}", describe(work.call_.record), error.what()));
    throw;
  }
  work.ready_ = true;
  publish_ready();
}

void ShmBackend::publish_ready() {
  while (ready_sequence_ < next_sequence_ && work_at(ready_sequence_).ready_) ++ready_sequence_;
  mine_.ready.store(ready_sequence_, std::memory_order_seq_cst);
  segment_->notify();
}

void ShmBackend::start(ShmWork& work) {
  if (!work.ready_) make_ready(work);
}

/// A barrier that every rank has entered is over, also when one of them has failed the group since: what it has let
/// this rank know is known.
bool ShmBackend::finish_barriers() {
  const FlagGuard guard(progressing_);
  while (data_sequence_ < next_sequence_) {
    ShmWork& work = work_at(data_sequence_);
    if (work.call_.transport != Transport::kBarrier || !work.ready_) return false;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank() && !peer_has(&RankBlock::ready, peer, data_sequence_)) return false;
    }
    if (!run_data_phase(work)) return false;
  }
  return true;
}

bool ShmBackend::progress(int most) {
  if (progressing_) return false;
  if (segment_->failed()) return finish_barriers();
  const FlagGuard guard(progressing_);
  const std::uint64_t begin = data_sequence_;
  const std::uint64_t end = std::min(next_sequence_, begin + static_cast<std::uint64_t>(most));
  while (data_sequence_ < end) {
    ShmWork& work = work_at(data_sequence_);
    if (!work.ready_) {
      if (work.call_.transport != Transport::kBarrier) break;  // deferred, not started
      make_ready(work);
    }
    if (!run_data_phase(work)) break;
  }
  retire();
  const int calls = static_cast<int>(data_sequence_ - begin);
  return calls + move_transfers(most - calls) > 0;
}

bool ShmBackend::run_data_phase(ShmWork& work) {
  const std::uint64_t sequence = work.call_.record.sequence;
  // Starting behind oneself, so that not all ranks read the same peer at once.
  for (int step = 1; work.peers_left_ > 0 && step < size(); ++step) {
    const int peer = (rank() + step) % size();
    ShmWork::Peer& state = work.peers_[static_cast<std::size_t>(peer)];
    if (state == ShmWork::Peer::kDone) continue;
    if (state == ShmWork::Peer::kUnseen) {
      if (!peer_has(&RankBlock::entered, peer, sequence)) continue;
      verify_peer(sequence, peer);
      state = ShmWork::Peer::kVerified;
    }
    if (!peer_has(&RankBlock::ready, peer, sequence)) continue;
    if (work.call_.transport == Transport::kGather || work.call_.transport == Transport::kBroadcast)
      copy_from_peer(work, peer);
    state = ShmWork::Peer::kDone;
    --work.peers_left_;
  }
  if (work.peers_left_ > 0) return false;
  finish(work);
  return work.data_done_;
}

void ShmBackend::verify_peer(std::uint64_t sequence, int peer) {
  std::uint64_t& next = verified_[static_cast<std::size_t>(peer)];
  // Also the calls before it that did not have to wait for this peer: broadcasts.
  const std::uint64_t oldest = sequence + 1 > kRingSlots ? sequence + 1 - kRingSlots : 0;
  for (std::uint64_t s = std::max(next, oldest); s <= sequence; ++s) {
    const CallRecord& mine = work_at(s).call_.record;
    const CallRecord theirs = segment_->block(peer).ring[s % kRingSlots].record.load();
    const bool overwritten = theirs.sequence != s;  // only calls that nobody waits for any more are
    if (overwritten || same_call(mine, theirs)) continue;
    constexpr std::size_t kShown = 8;
    const std::string my_calls = recent_calls(rank(), kShown);
    const std::string their_calls = recent_calls(peer, kShown);
    fail_group(rank() < peer ? mismatch_message(rank(), mine, my_calls, peer, theirs, their_calls)
                             : mismatch_message(peer, theirs, their_calls, rank(), mine, my_calls));
  }
  next = sequence + 1;
}

void ShmBackend::copy_from_peer(ShmWork& work, int peer) {
  const PostedCall& call = work.call_;
  const std::size_t nbytes = call.input_nbytes(peer);
  if (nbytes == 0) return;
  const std::int64_t begin_ns = base::monotonic_ns();
  const std::byte* const source = map_input(peer, call.record.sequence);
  auto* const target = call.transport == Transport::kGather ? call.out_slice(peer) : static_cast<std::byte*>(call.out);
  if (target != source) copy_bytes(target, source, nbytes);
  work.add_moving_ns(base::monotonic_ns() - begin_ns);
}

void ShmBackend::finish(ShmWork& work) {
  const PostedCall& call = work.call_;
  const auto own_part = [&] {
    if (call.transport == Transport::kGather) {
      std::byte* const target = call.out_slice(rank());
      if (work.in_nbytes_ > 0 && target != call.in) copy_bytes(target, call.in, work.in_nbytes_);
    } else if (call.transport == Transport::kScatter || call.transport == Transport::kView) {
      const std::size_t offset = call.transport == Transport::kScatter ? call.slice_offset_nbytes(rank()) : 0;
      for (int peer = 0; peer < size(); ++peer) {
        const std::byte* const input = peer == rank() ? call.input() : map_input(peer, call.record.sequence);
        slices_[static_cast<std::size_t>(peer)] = input ? input + offset : nullptr;
      }
      run_finish_step(call.reduction, call.consume, call.record.dtype, slices_, call.finish_numel(rank()));
    }
  };
  if (!work.run_own_part(own_part)) return;
  // A peer that failed meanwhile may have given its input away: what was read cannot be trusted. A barrier reads
  // nothing.
  if (segment_->failed() && call.transport != Transport::kBarrier) return;
  work.data_done_ = true;
  work.call_.consume = nullptr;
  const bool peers_read_my_input = work.in_nbytes_ > 0 && !work.staged_ && size() > 1;
  if (!peers_read_my_input || work.call_.input_stable) work.set_complete();
  mine_.ring[work.call_.record.sequence % kRingSlots].record.store_word(offsetof(CallRecord, left_ns),
                                                                        base::monotonic_ns());
  mine_.left.store(++data_sequence_, std::memory_order_seq_cst);
  segment_->notify();
  if (work.next_) std::exchange(work.next_, nullptr)->start();
}

void ShmBackend::retire() {
  std::uint64_t left_by_all = data_sequence_;
  for (int peer = 0; peer < size() && left_by_all > retired_sequence_; ++peer) {
    if (peer != rank()) {
      left_by_all = std::min(left_by_all, segment_->block(peer).left.load(std::memory_order_seq_cst));
    }
  }
  if (left_by_all <= retired_sequence_) return;
  for (; retired_sequence_ < left_by_all; ++retired_sequence_) {
    ShmWork& work = work_at(retired_sequence_);
    work.set_complete();
    work.input_region_.reset();
  }
  staging_.release_before(retired_sequence_);
}

std::shared_ptr<Backend> ShmBackend::subgroup(std::span<const int> members) {
  std::vector<int> beside;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (std::find(host_ranks().begin(), host_ranks().end(), members[i]) != host_ranks().end())
      beside.push_back(static_cast<int>(i));
  }
  return make_shm_subgroup(members, std::move(beside));
}

SharedMemory ShmBackend::allocate(std::size_t nbytes) {
  return SharedMemory(Region::create(registry_, nbytes, Region::Sharing::kReadable, "allocate"));
}

void ShmBackend::abort(std::string_view reason) noexcept {
  try {
    segment_->fail(rank(), fmt::format("rank {} (pid {}) aborted the group: {}. {}{}", rank(), pid_, reason,
                                       position_of(rank()), last_transfers_text()));
  } catch (...) {
    segment_->fail(rank(), "a rank aborted the group and had no memory left to say why");
  }
}

bool ShmBackend::drop_unfinished_works() {
  while (data_sequence_ < next_sequence_) {
    ShmWork& work = work_at(data_sequence_);
    if (!work.ready_ && work.call_.transport != Transport::kBarrier) {
      abort(fmt::format("it destroyed its group in the middle of {}", describe(work.call_.record)));
      return false;
    }
    if (!work.ready_) make_ready(work);
    work.call_.consume = nullptr;
    ++data_sequence_;
  }
  mine_.left.store(data_sequence_, std::memory_order_seq_cst);
  segment_->notify();
  return true;
}

void ShmBackend::leave() noexcept {
  try {
    progressing_ = true;  // no finish step runs any more: what it writes to may be gone
    if (!drop_unfinished_works()) return;
    if (last_input_ > 0) wait_for_readers(last_input_ - 1);
  } catch (const std::exception& error) {
    base::log_warning("leaving the group: {}", error.what());
  }
}

std::string ShmBackend::flight_recorder() const {
  constexpr std::size_t kShown = 16;
  std::string text;
  for (int r = 0; r < size(); ++r) text += fmt::format("rank {}:\n{}", r, recent_calls(r, kShown));
  return text + transfers_text();
}

}  // namespace zero::comm
