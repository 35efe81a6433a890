#include "comm/mpi/backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/mpi/session.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

/// MPI guarantees tags up to 32767; calls in flight are far fewer, and messages of one tag stay in order.
int tag_of(std::uint64_t sequence) { return static_cast<int>(sequence % 32'000); }

struct Introduction {
  std::int64_t pid;
  std::uint64_t start_time;
  char host[128];
};

/// Host name and boot id (two containers of one host differ by name), and which part of the host it counts
/// as.
Introduction introduce_myself() {
  Introduction mine{};
  const ProcessId self = this_process();
  mine.pid = self.pid;
  mine.start_time = self.start_time;
  char name[64] = {};
  ::gethostname(name, sizeof(name) - 1);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::snprintf(mine.host, sizeof(mine.host), "%s %s %d", name, boot_id.c_str(), ranks_beside(rank, size)[0]);
  return mine;
}

void cancel_receive(MPI_Request& request) noexcept {
  if (request == MPI_REQUEST_NULL) return;
  MPI_Cancel(&request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

}  // namespace

MpiWork::MpiWork(MpiBackend& group) : MovedWork(group) {}

Blocker MpiWork::blocker() const { return static_cast<const MpiBackend*>(backend_)->blocker_of(call_.record.sequence); }

MpiBackend::MpiBackend(MPI_Comm parent, int rank, int size)
    : Backend(rank, size, mpi_lock()),
      registry_(std::make_shared<RegionRegistry>(rank, nullptr)),
      peers_(static_cast<std::size_t>(size)),
      slices_(static_cast<std::size_t>(size)),
      notice_(kNoticeBytes),
      pid_(::getpid()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  const BackendGuard guard(*lock());
  for (MPI_Comm* comm : {&data_comm_, &record_comm_, &notice_comm_}) {
    check_mpi(MPI_Comm_dup(parent, comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
  }
  introduce(data_comm_);
  check_mpi(
      MPI_Irecv(notice_.data(), kNoticeBytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, notice_comm_, &notice_receive_),
      "MPI_Irecv");
}

void MpiBackend::introduce(MPI_Comm comm) {
  const Introduction mine = introduce_myself();
  std::vector<Introduction> all(peers_.size());
  check_mpi(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, comm), "MPI_Allgather");
  std::vector<int> host_ranks;
  std::vector<pid_t> local_processes;
  for (std::size_t r = 0; r < all.size(); ++r) {
    peers_[r].process = {static_cast<pid_t>(all[r].pid), all[r].start_time};
    peers_[r].on_this_host = std::strcmp(all[r].host, mine.host) == 0;
    if (!peers_[r].on_this_host) continue;
    host_ranks.push_back(static_cast<int>(r));
    local_processes.push_back(peers_[r].process.pid);
  }
  set_host_ranks(std::move(host_ranks));
  policy_ = WaitPolicy::for_local_ranks(local_processes);
}

MpiBackend::~MpiBackend() {
  set_progress_thread(false);
  if (::getpid() != pid_) return;  // a forked child has no MPI
  const BackendGuard guard(*lock());
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    abort("an exception ended its work, see its own output");
  } else if (failure_.empty()) {
    leave();
  }
  if (failure_.empty()) {
    for (MPI_Comm* comm : {&data_comm_, &record_comm_, &notice_comm_}) MPI_Comm_free(comm);
    for (ChannelState& state : channels_) {
      if (state.comm != MPI_COMM_NULL) MPI_Comm_free(&state.comm);
    }
  } else {
    mark_mpi_failed();
    give_up_requests();
  }
  for (const std::shared_ptr<MpiWork>& work : works_) {
    if (work) work->orphan();
  }
}

std::shared_ptr<WorkState> MpiBackend::post(const Call& call) {
  throw_if_failed();
  progress();
  if (next_sequence_ - data_sequence_ >= kWindow) {
    if (progressing_) {
      throw CommError(fmt::format("{} calls are under way, no room for another one inside a finish step", kWindow));
    }
    const std::uint64_t oldest = data_sequence_;
    block_until([&] { return data_sequence_ > oldest; }, oldest);
  }
  std::shared_ptr<MpiWork>& place = works_[next_sequence_ % kWindow];
  if (!place || place.use_count() > 1) place = std::make_shared<MpiWork>(*this);
  MpiWork& work = *place;
  CallRecord record = make_record(call, next_sequence_);
  record.entered_ns = base::monotonic_ns();
  work.call_.assign(call, record, timeout_of(call));
  work.phase_ = MpiWork::Phase::kRecords;
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

void MpiBackend::send_records(MpiWork& work) {
  work.records_.resize(peers_.size());
  work.record_receives_.assign(peers_.size(), MPI_REQUEST_NULL);
  const int tag = tag_of(work.call_.record.sequence);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto p = static_cast<std::size_t>(peer);
    check_mpi(
        MPI_Irecv(&work.records_[p], sizeof(CallRecord), MPI_BYTE, peer, tag, record_comm_, &work.record_receives_[p]),
        "MPI_Irecv");
    work.record_sends_.send(&work.call_.record, sizeof(CallRecord), peer, tag, record_comm_);
  }
}

std::string MpiBackend::progress_thread_problem() const {
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided >= (mpi_is_ours() ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE)) return {};
  return "MPI was not initialised for calls from several threads; ask MPI_Init_thread for "
         "MPI_THREAD_MULTIPLE, "
         "or leave MPI's initialisation to zerotorch";
}

bool MpiBackend::progress(int most) {
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

bool MpiBackend::step(MpiWork& work) {
  using Phase = MpiWork::Phase;
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
  }
  if (work.phase_ == Phase::kForward) {
    if (!work.data_.test()) return false;
    work.phase_ = Phase::kMoved;
    work.add_moving_ns(base::monotonic_ns() - work.data_since_ns_);
  }
  return work.phase_ == Phase::kMoved && work.record_sends_.test();
}

bool MpiBackend::receive_records(MpiWork& work) {
  bool all = true;
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    if (work.record_receives_[p] == MPI_REQUEST_NULL) continue;
    int arrived = 0;
    check_mpi(MPI_Test(&work.record_receives_[p], &arrived, MPI_STATUS_IGNORE), "MPI_Test");
    if (!arrived) {
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

std::vector<std::byte> MpiBackend::take_scratch(std::size_t nbytes) {
  std::vector<std::byte> scratch;
  if (!free_scratch_.empty()) {
    scratch = std::move(free_scratch_.back());
    free_scratch_.pop_back();
  }
  if (scratch.size() < nbytes) scratch.resize(nbytes);
  return scratch;
}

void MpiBackend::move_data(MpiWork& work) {
  PostedCall& call = work.call_;
  const int tag = tag_of(call.record.sequence);
  const bool gather = call.transport == Transport::kGather;
  const bool scatter = call.transport == Transport::kScatter;
  if (call.transport == Transport::kBarrier) return;
  if (call.transport == Transport::kBroadcast) {
    const int relative = (rank() - call.record.root + size()) % size();
    if (relative == 0) return;
    const int parent = (rank() - (relative & -relative) + size()) % size();
    work.data_.receive(call.out, call.input_nbytes(call.record.root), parent, tag, data_comm_);
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
    work.data_.receive(target, incoming_nbytes(peer), peer, tag, data_comm_);
    if (to_scratch) scratch += round_up(incoming_nbytes(peer), 64);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + size() - step) % size();
    if (scatter) {
      work.data_.send(call.input() + call.slice_offset_nbytes(peer), call.slice_nbytes(peer), peer, tag, data_comm_);
    } else {
      work.data_.send(call.in, call.input_nbytes(rank()), peer, tag, data_comm_);
    }
  }
}

void MpiBackend::move_broadcast(MpiWork& work) {
  const PostedCall& call = work.call_;
  // Binomial tree: the parent clears the lowest set bit of a rank relative to root.
  const int relative = (rank() - call.record.root + size()) % size();
  int highest = 1;
  while (highest < size()) highest <<= 1;
  const int lowest = relative == 0 ? highest : relative & -relative;
  for (int bit = lowest >> 1; bit > 0; bit >>= 1) {
    if (relative + bit >= size()) continue;
    const int child = (rank() + bit) % size();
    work.data_.send(call.out, call.input_nbytes(call.record.root), child, tag_of(call.record.sequence), data_comm_);
  }
}

bool MpiBackend::finish(MpiWork& work) {
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
  work.phase_ = MpiWork::Phase::kDone;
  work.set_complete();
  work.call_.consume = nullptr;
  if (!work.scratch_.empty()) free_scratch_.push_back(std::exchange(work.scratch_, {}));
  CallRecord& remembered = peers_[static_cast<std::size_t>(rank())].recent[call.record.sequence % kRemembered];
  if (remembered.sequence == call.record.sequence) remembered.left_ns = base::monotonic_ns();
  ++data_sequence_;
  if (work.next_) std::exchange(work.next_, nullptr)->start();
  return true;
}

std::shared_ptr<Backend> MpiBackend::subgroup(std::span<const int> members) {
  const bool here = std::all_of(members.begin(), members.end(),
                                [&](int member) { return peers_[static_cast<std::size_t>(member)].on_this_host; });
  std::vector<int> everybody(members.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  std::shared_ptr<Backend> shared = make_shm_subgroup(here ? members : std::span<const int>(), std::move(everybody));
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(data_comm_, here ? MPI_UNDEFINED : members[0], rank(), &comm), "MPI_Comm_split");
  if (here) return shared;
  const auto me = std::find(members.begin(), members.end(), rank()) - members.begin();
  auto group = std::make_shared<MpiBackend>(comm, static_cast<int>(me), static_cast<int>(members.size()));
  MPI_Comm_free(&comm);
  return group;
}

SharedMemory MpiBackend::allocate(std::size_t nbytes) {
  return SharedMemory(Region::create(registry_, nbytes, Region::Sharing::kPrivate, "allocate"));
}

void MpiBackend::leave() noexcept {
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
    cancel_receive(notice_receive_);
    cancel_receive(message_receive_);
  } catch (const std::exception& error) {
    base::log_warning("leaving the group: {}", error.what());
  }
}

void MpiBackend::give_up_requests() noexcept {
  bool clean = notice_sends_.cancel();
  cancel_receive(notice_receive_);
  cancel_receive(message_receive_);
  for (std::uint64_t s = data_sequence_; s < next_sequence_; ++s) {
    MpiWork& work = work_at(s);
    for (MPI_Request& request : work.record_receives_) cancel_receive(request);
    clean = work.record_sends_.cancel() && clean;
    clean = work.data_.cancel() && clean;
  }
  if (clean) return;
  mark_mpi_unclean();
  // MPI may still read or write them: they must outlive every request.
  new std::array<std::shared_ptr<MpiWork>, kWindow>(works_);
  new std::deque<std::string>(std::move(sent_notices_));
}

}  // namespace zero::comm
