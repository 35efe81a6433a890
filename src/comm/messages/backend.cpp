#include "comm/messages/backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// Every messenger has as many tags; calls under way are far fewer, and messages of one tag stay in order.
int tag_of(std::uint64_t sequence) { return static_cast<int>(sequence % 32'000); }

struct Introduction {
  std::int64_t pid;
  std::uint64_t start_time;
  std::int64_t world_rank;
  std::uint64_t piece;
  char host[340];  ///< this_host(), and which part of it
};

Introduction introduce_myself(int world_rank, int world_size) {
  Introduction mine{};
  const ProcessId self = this_process();
  mine.pid = self.pid;
  mine.start_time = self.start_time;
  mine.world_rank = world_rank;
  std::snprintf(mine.host, sizeof(mine.host), "%s %d", this_host().c_str(), ranks_beside(world_rank, world_size)[0]);
  return mine;
}

/// Of hosts with as many ranks each, which follow one another; else 0.
int find_ranks_per_host(const std::vector<Introduction>& all) {
  const auto beside = [&](std::size_t a, std::size_t b) { return std::strcmp(all[a].host, all[b].host) == 0; };
  std::size_t count = 1;
  while (count < all.size() && beside(0, count)) ++count;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t other = 0; other < r; ++other) {
      if (beside(r, other) != (r / count == other / count)) return 0;
    }
  }
  return all.size() % count == 0 ? static_cast<int>(count) : 0;
}

}  // namespace

MessageWork::MessageWork(MessageBackend& group) : MovedWork(group) {}

Blocker MessageWork::blocker() const {
  return static_cast<const MessageBackend*>(backend_)->blocker_of(call_.record.sequence);
}

MessageBackend::MessageBackend(std::shared_ptr<Messenger> messenger)
    : Backend(messenger->rank(), messenger->size(), messenger->lock()),
      messenger_(std::move(messenger)),
      registry_(std::make_shared<RegionRegistry>(rank(), nullptr)),
      peers_(static_cast<std::size_t>(size())),
      slices_(static_cast<std::size_t>(size())),
      notice_(kNoticeBytes),
      pid_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  const BackendGuard guard(*lock());
  introduce();
  notice_receive_ = messenger_->receive_any(Channel::kNotices, notice_.data(), kNoticeBytes);
}

void MessageBackend::introduce() {
  Introduction mine = introduce_myself(messenger_->world_rank(), messenger_->world_size());
  mine.piece = messenger_->best_piece();
  std::vector<Introduction> all(peers_.size());
  messenger_->all_gather(&mine, sizeof(mine), all.data());
  const auto smaller = [](const Introduction& a, const Introduction& b) { return a.piece < b.piece; };
  messenger_->set_piece(std::min_element(all.begin(), all.end(), smaller)->piece);
  std::vector<int> host_ranks;
  std::vector<pid_t> local_processes;
  for (std::size_t r = 0; r < all.size(); ++r) {
    peers_[r].process = {static_cast<pid_t>(all[r].pid), all[r].start_time};
    peers_[r].world_rank = static_cast<int>(all[r].world_rank);
    peers_[r].on_this_host = std::strcmp(all[r].host, mine.host) == 0;
    if (!peers_[r].on_this_host) continue;
    host_ranks.push_back(static_cast<int>(r));
    local_processes.push_back(peers_[r].process.pid);
  }
  set_host_ranks(std::move(host_ranks));
  ranks_per_host_ = find_ranks_per_host(all);
  if (size() == messenger_->world_size() && local_size() < size() && !messenger_->watch()) {
    std::vector<WatchedRank> ranks;
    for (const Introduction& one : all) {
      const auto is_beside = [&](const Introduction& other) { return std::strcmp(other.host, one.host) == 0; };
      const auto first = std::find_if(all.begin(), all.end(), is_beside) - all.begin();
      ranks.push_back({peers_[ranks.size()].process, static_cast<int>(first)});
    }
    messenger_->set_watch(HostWatch::begin(*messenger_, std::move(ranks)));
  }
  policy_ = WaitPolicy::for_local_ranks(local_processes);
}

MessageBackend::~MessageBackend() {
  set_progress_thread(false);
  if (::getpid() != pid_) return;  // a forked child has no messages
  const BackendGuard guard(*lock());
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    abort("an exception ended its work, see its own output");
  } else if (failure_.empty()) {
    leave();
  }
  if (!failure_.empty()) give_up_requests();
  for (const std::shared_ptr<MessageWork>& work : works_) {
    if (work) work->orphan();
  }
}

std::shared_ptr<WorkState> MessageBackend::post(const Call& call) {
  throw_if_failed();
  progress();
  if (next_sequence_ - data_sequence_ >= kWindow) {
    if (progressing_) {
      throw CommError(fmt::format("{} calls are under way, no room for another one inside a finish step", kWindow));
    }
    const std::uint64_t oldest = data_sequence_;
    block_until([&] { return data_sequence_ > oldest; }, oldest);
  }
  std::shared_ptr<MessageWork>& place = works_[next_sequence_ % kWindow];
  if (!place || place.use_count() > 1) place = std::make_shared<MessageWork>(*this);
  MessageWork& work = *place;
  CallRecord record = make_record(call, next_sequence_);
  record.entered_ns = base::monotonic_ns();
  work.call_.assign(call, record, timeout_of(call));
  work.phase_ = MessageWork::Phase::kRecords;
  work.ready_ = !call.deferred;
  work.begin(record.entered_ns, timeout_of(call));
  work.next_.reset();
  ++next_sequence_;
  Peer& me = peers_[static_cast<std::size_t>(rank())];
  me.recent[me.heard++ % kRemembered] = record;
  const std::shared_ptr<WorkState> result = place;
  send_records(work);
  return result;
}

void MessageBackend::send_records(MessageWork& work) {
  work.records_.resize(peers_.size());
  work.record_receives_.assign(peers_.size(), 0);
  const int tag = tag_of(work.call_.record.sequence);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto p = static_cast<std::size_t>(peer);
    work.record_receives_[p] = messenger_->receive(Channel::kRecords, peer, tag, &work.records_[p], sizeof(CallRecord));
    work.record_sends_.send(*messenger_, Channel::kRecords, peer, tag, &work.call_.record, sizeof(CallRecord));
  }
}

std::string MessageBackend::progress_thread_problem() const { return messenger_->progress_thread_problem(); }

bool MessageBackend::progress(int most) {
  look_at_watch();
  if (progressing_ || !failure_.empty()) return false;
  progressing_ = true;
  const std::uint64_t begin = data_sequence_;
  int steps = 0;
  try {
    receive_notices();
    receive_messages();
    // Transfers of later calls may overtake; finish steps and completions keep the order.
    bool first = true;
    for (std::uint64_t s = data_sequence_; s < next_sequence_ && failure_.empty(); ++s) {
      const bool moved = step(work_at(s));
      if (first && moved && failure_.empty()) {
        if (!finish(work_at(s))) break;
        if (--most == 0) first = false;
      } else {
        first = false;
      }
    }
    if (most > 0 && failure_.empty()) steps = move_transfers(most);
  } catch (...) {
    progressing_ = false;
    throw;
  }
  progressing_ = false;
  return data_sequence_ > begin || steps > 0;
}

bool MessageBackend::step(MessageWork& work) {
  using Phase = MessageWork::Phase;
  if (work.phase_ == Phase::kRecords) {
    if (!receive_records(work) || !work.ready_) return false;
    work.phase_ = Phase::kData;
    work.data_since_ns_ = base::monotonic_ns();
    move_data(work);
  }
  if (work.phase_ == Phase::kData) {
    if (!work.data_.test()) return false;
    work.phase_ = Phase::kForward;
    if (work.call_.transport == Transport::kBroadcast) move_broadcast(work);
    if (gathers_by_host(work.call_)) relay(work);
  }
  if (work.phase_ == Phase::kForward) {
    if (!work.data_.test() || !work.relayed_.test()) return false;
    work.phase_ = Phase::kMoved;
    work.add_moving_ns(base::monotonic_ns() - work.data_since_ns_);
  }
  return work.phase_ == Phase::kMoved && work.record_sends_.test();
}

bool MessageBackend::receive_records(MessageWork& work) {
  bool all = true;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (work.record_receives_[p] == 0) continue;
    if (!messenger_->test(work.record_receives_[p])) {
      all = false;
      continue;
    }
    Peer& peer = peers_[p];
    CallRecord& theirs = work.records_[p];
    if (!peer.on_this_host) theirs.entered_ns = base::monotonic_ns();  // clocks of hosts cannot be compared
    peer.recent[theirs.sequence % kRemembered] = theirs;
    peer.heard = std::max(peer.heard, theirs.sequence + 1);
    const int other = static_cast<int>(p);
    const CallRecord& mine = work.call_.record;
    if (same_call(mine, theirs)) continue;
    fail_group(rank() < other
                   ? mismatch_message(rank(), mine, recent_calls(rank()), other, theirs, recent_calls(other))
                   : mismatch_message(other, theirs, recent_calls(other), rank(), mine, recent_calls(rank())));
  }
  return all;
}

std::vector<std::byte> MessageBackend::take_scratch(std::size_t nbytes) {
  std::vector<std::byte> scratch;
  if (!free_scratch_.empty()) {
    scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  if (scratch.size() < nbytes) scratch.resize(nbytes);
  return scratch;
}

/// A host receives each slice once: the rank at its owner's place on the host gets it, and hands it on.
bool MessageBackend::gathers_by_host(const PostedCall& call) const {
  constexpr std::size_t kLeastNbytes = 64 << 10;  // smaller ones take one trip
  if (call.transport != Transport::kGather || ranks_per_host_ <= 1 || ranks_per_host_ == size()) return false;
  std::size_t nbytes = 0;
  for (int r = 0; r < size(); ++r) nbytes += call.slice_nbytes(r);
  return nbytes >= kLeastNbytes;
}

std::byte* MessageBackend::gathered_slice(MessageWork& work, int owner) const {
  if (work.scratch_.empty()) return work.call_.out_slice(owner);
  std::size_t begin = 0;
  for (int r = 0; r < owner; ++r) begin += round_up(work.call_.slice_nbytes(r), 64);
  return work.scratch_.data() + begin;
}

void MessageBackend::gather_by_host(MessageWork& work) {
  const PostedCall& call = work.call_;
  const int tag = tag_of(call.record.sequence), place = rank() % ranks_per_host_;
  if (discarding_) {
    std::size_t nbytes = 0;
    for (int r = 0; r < size(); ++r) nbytes += round_up(call.slice_nbytes(r), 64);
    work.scratch_ = take_scratch(nbytes);
  }
  const auto is_beside = [&](int peer) { return peer / ranks_per_host_ == rank() / ranks_per_host_; };
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    if (is_beside(peer) || peer % ranks_per_host_ == place)
      work.data_.receive(*messenger_, Channel::kData, peer, tag, gathered_slice(work, peer), call.slice_nbytes(peer));
  }
  // After those of the ranks beside, in the order in which they hand them on.
  for (int owner = 0; owner < size(); ++owner) {
    const int beside = rank() - place + owner % ranks_per_host_;
    if (is_beside(owner) || beside == rank()) continue;
    work.relayed_.receive(*messenger_, Channel::kData, beside, tag, gathered_slice(work, owner),
                          call.slice_nbytes(owner));
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + size() - step) % size();
    if (is_beside(peer) || peer % ranks_per_host_ == place)
      work.data_.send(*messenger_, Channel::kData, peer, tag, call.in, call.input_nbytes(rank()));
  }
}

void MessageBackend::relay(MessageWork& work) {
  const int place = rank() % ranks_per_host_, first = rank() - place;
  for (int owner = place; owner < size(); owner += ranks_per_host_) {
    for (int beside = first; owner != rank() && beside < first + ranks_per_host_; ++beside) {
      if (beside == rank()) continue;
      work.data_.send(*messenger_, Channel::kData, beside, tag_of(work.call_.record.sequence),
                      gathered_slice(work, owner), work.call_.slice_nbytes(owner));
    }
  }
}

void MessageBackend::move_data(MessageWork& work) {
  PostedCall& call = work.call_;
  const int tag = tag_of(call.record.sequence);
  const bool gather = call.transport == Transport::kGather;
  const bool scatter = call.transport == Transport::kScatter;
  if (call.transport == Transport::kBarrier) return;
  if (gathers_by_host(call)) return gather_by_host(work);
  if (call.transport == Transport::kBroadcast) {
    const int relative = (rank() - call.record.root + size()) % size();
    if (relative == 0) return;
    const int parent = (rank() - (relative & -relative) + size()) % size();
    work.data_.receive(*messenger_, Channel::kData, parent, tag, call.out, call.input_nbytes(call.record.root));
    return;
  }
  // What each peer sends to me: its gathered slice, its slice for me, or all of its input.
  const auto incoming_nbytes = [&](int peer) {
    return gather ? call.slice_nbytes(peer) : scatter ? call.slice_nbytes(rank()) : call.input_nbytes(peer);
  };
  const bool to_scratch = !gather || discarding_;
  if (to_scratch) {
    std::size_t nbytes = 0;
    for (int peer = 0; peer < size(); ++peer) nbytes += peer == rank() ? 0 : round_up(incoming_nbytes(peer), 64);
    work.scratch_ = take_scratch(nbytes);
  }
  std::byte* scratch = work.scratch_.data();
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    std::byte* const target = to_scratch ? scratch : call.out_slice(peer);
    work.data_.receive(*messenger_, Channel::kData, peer, tag, target, incoming_nbytes(peer));
    if (to_scratch) scratch += round_up(incoming_nbytes(peer), 64);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + size() - step) % size();
    if (scatter) {
      work.data_.send(*messenger_, Channel::kData, peer, tag, call.input() + call.slice_offset_nbytes(peer),
                      call.slice_nbytes(peer));
    } else {
      work.data_.send(*messenger_, Channel::kData, peer, tag, call.in, call.input_nbytes(rank()));
    }
  }
}

void MessageBackend::move_broadcast(MessageWork& work) {
  const PostedCall& call = work.call_;
  // Binomial tree: the parent clears the lowest set bit of a rank relative to root.
  const int relative = (rank() - call.record.root + size()) % size();
  int highest = 1;
  while (highest < size()) highest <<= 1;
  const int lowest = relative == 0 ? highest : relative & -relative;
  for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
    if (relative + bit >= size()) continue;
    const int child = (rank() + bit) % size();
    work.data_.send(*messenger_, Channel::kData, child, tag_of(call.record.sequence), call.out,
                    call.input_nbytes(call.record.root));
  }
}

bool MessageBackend::finish(MessageWork& work) {
  const PostedCall& call = work.call_;
  const auto own_part = [&] {
    if (discarding_) return;  // nobody is left who wants the result
    if (call.transport == Transport::kGather) {
      if (call.input_nbytes(rank()) > 0 && call.out_slice(rank()) != call.in) {
        std::memcpy(call.out_slice(rank()), call.in, call.input_nbytes(rank()));
      }
    } else if (call.transport == Transport::kScatter || call.transport == Transport::kView) {
      const bool scatter = call.transport == Transport::kScatter;
      const std::size_t nbytes = scatter ? call.slice_nbytes(rank()) : call.input_nbytes(rank());
      const std::byte* scratch = work.scratch_.data();
      for (int step = 1; step < size(); ++step, scratch += round_up(nbytes, 64)) {
        slices_[static_cast<std::size_t>((rank() + step) % size())] = scratch;
      }
      slices_[static_cast<std::size_t>(rank())] = call.input() + (scatter ? call.slice_offset_nbytes(rank()) : 0);
      run_finish_step(call.reduction, call.consume, call.record.dtype, slices_, call.finish_numel(rank()));
    }
  };
  if (!work.run_own_part(own_part)) return false;
  work.phase_ = MessageWork::Phase::kDone;
  work.set_complete();
  work.call_.consume = nullptr;
  if (!work.scratch_.empty()) free_scratch_.push_back(std::exchange(work.scratch_, {}));
  CallRecord& remembered = peers_[static_cast<std::size_t>(rank())].recent[call.record.sequence % kRemembered];
  if (remembered.sequence == call.record.sequence) remembered.left_ns = base::monotonic_ns();
  ++data_sequence_;
  if (work.next_) std::exchange(work.next_, nullptr)->start();
  return true;
}

std::shared_ptr<Backend> MessageBackend::subgroup(std::span<const int> members) {
  const bool here = std::all_of(members.begin(), members.end(),
                                [&](int member) { return peers_[static_cast<std::size_t>(member)].on_this_host; });
  std::vector<int> everybody(members.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  std::shared_ptr<Backend> shared = make_shm_subgroup(here ? members : std::span<const int>(), std::move(everybody));
  std::shared_ptr<Messenger> part = messenger_->subgroup(here ? std::span<const int>() : members);
  if (here) return shared;
  part->set_watch(messenger_->watch());
  return std::make_shared<MessageBackend>(std::move(part));
}

SharedMemory MessageBackend::allocate(std::size_t nbytes) {
  return SharedMemory(Region::create(registry_, nbytes, Region::Sharing::kPrivate, "allocate"));
}

void MessageBackend::leave() noexcept {
  constexpr int kFarewell = 1;
  try {
    discarding_ = true;
    for (std::uint64_t s = data_sequence_; s < next_sequence_; ++s) {
      if (!work_at(s).ready_) {
        abort(fmt::format("it destroyed its group in the middle of {}", describe(work_at(s).call_.record)));
        return;
      }
    }
    const std::uint64_t all = next_sequence_;
    if (all > 0) block_until([&] { return data_sequence_ == all; }, all - 1);
    send_notice(kFarewell, {});
    const auto everybody_left = [&] {
      return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
        return peer.left_ns != 0 || &peer == &peers_[static_cast<std::size_t>(rank())];
      });
    };
    block_until([&] { return everybody_left() && notice_sends_.test(); }, all);
    messenger_->cancel(notice_receive_);
    messenger_->cancel(message_receive_);
  } catch (const std::exception& error) {
    base::log_warning("leaving the group: {}", error.what());
    if (failure_.empty()) failure_ = error.what();
  }
}

void MessageBackend::give_up_requests() noexcept {
  bool clean = notice_sends_.cancel();
  clean = messenger_->cancel(notice_receive_) && clean;
  clean = messenger_->cancel(message_receive_) && clean;
  for (std::uint64_t s = data_sequence_; s < next_sequence_; ++s) {
    MessageWork& work = work_at(s);
    for (MessageHandle& handle : work.record_receives_) clean = messenger_->cancel(handle) && clean;
    clean = work.record_sends_.cancel() && clean;
    clean = work.data_.cancel() && clean;
    clean = work.relayed_.cancel() && clean;
  }
  messenger_->mark_failed(clean);
  if (clean) return;
  // The transport may still read or write them: they must outlive every message.
  new std::array<std::shared_ptr<MessageWork>, kWindow>(works_);
  new std::deque<std::string>(std::move(sent_notices_));
  new std::vector<char>(std::move(notice_));
  static_cast<void>(message_.release());
}

}  // namespace zero::comm
