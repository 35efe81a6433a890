#pragma once
// The ranks of one host over shared memory. See shm_segment.h for what they share.
//
// Life of a call (ShmWork): post() takes a sequence number, writes the record and - unless deferred -
// makes the input readable (in place when it lies in a Region, else through the staging region). The data
// phase copies or sums straight out of the peers' inputs; data phases run strictly in sequence order, in
// whichever of post(), test() or wait() gets there first. Then `left` is raised. The call is complete when
// its data phase is done and, if its input may change afterwards, when all peers have left it too.
//
// Files: shm_backend.cpp posts and progresses, shm_wait.cpp waits and explains failures, shm_memory.cpp
// finds and stages inputs.
#include <array>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/backend.h"
#include "comm/long_wait.h"
#include "comm/posted_call.h"
#include "comm/shm/segment.h"
#include "comm/staging.h"
#include "comm/wait_policy.h"

namespace zero::comm {

class ShmBackend;

class ShmWork final : public MovedWork {
 public:
  explicit ShmWork(ShmBackend& backend);
  void start() override;
  void chain(std::shared_ptr<WorkState> next) override { next_ = std::move(next); }

 private:
  friend class ShmBackend;

  /// How far a peer's part is.
  enum class Peer : std::uint8_t { kUnseen, kVerified, kDone };

  std::string text() const override { return describe(call_.record); }
  Blocker blocker() const override;
  CollectiveKind kind() const override { return call_.record.kind; }

  void reset(int ranks);
  ShmBackend* backend() const;

  PostedCall call_;
  std::size_t in_nbytes_ = 0;

  bool ready_ = false;   ///< my input may be read
  bool staged_ = false;  ///< peers read a copy of it
  bool data_done_ = false;
  std::vector<Peer> peers_;
  int peers_left_ = 0;  ///< peers that are not kDone
  std::shared_ptr<Region> input_region_;
  std::shared_ptr<WorkState> next_;
};

class ShmBackend final : public Backend {
 public:
  /// `segment` has every rank of `host_ranks`, which count as on this host, attached. Local.
  ShmBackend(std::shared_ptr<ControlSegment> segment, int rank, std::vector<int> host_ranks);
  /// Waits until the peers have read what they still need of this rank, then leaves; while an exception
  /// unwinds the stack it aborts the group instead.
  ~ShmBackend() override;

  std::string_view name() const override { return "shm"; }
  std::shared_ptr<WorkState> post(const Call& call) override;
  std::shared_ptr<Backend> subgroup(std::span<const int> members) override;
  bool progress(int most) override;
  bool under_way() const override { return (data_sequence_ < next_sequence_ || transfers_under_way()) && !failed(); }
  bool in_finish_step() const override { return progressing_; }
  bool block_until(const std::function<bool()>& done, const std::function<Blocker()>& blocker,
                   const Patience& patience) override;
  bool sees_waits() const override { return true; }
  void check_peers(const std::function<Blocker()>& blocker, std::int64_t since_ns,
                   std::chrono::milliseconds timeout) override;
  void throw_if_failed() const override;
  std::shared_ptr<ExchangeBoard> make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                            HostSums sums) override;
  std::shared_ptr<ShardWindow> make_window(std::shared_ptr<const ParcelTable> parcels,
                                           std::span<const void* const> mine) override;
  bool failed() const override { return segment_->failed(); }
  SharedMemory allocate(std::size_t nbytes) override;
  void abort(std::string_view reason) noexcept override;
  std::string flight_recorder() const override;

  // What its boards and windows use. Local.
  ControlSegment& segment() { return *segment_; }
  /// Where peers find `address` in `region`.
  static InputLocation location_of(const Region& region, const void* address);
  /// The bytes at a location that `peer` has published; `what` they are for is asked for errors. Null where
  /// there are none. Throws CommError.
  const std::byte* map_input(int peer, const InputLocation& location, const std::function<std::string()>& what);
  /// The region of a location that `peer` has published, mapped here. Throws CommError where the peer is gone, IoError.
  Mapping map_region_of(int peer, const InputLocation& location, const std::function<std::string()>& what);
  std::shared_ptr<Region> create_region(std::size_t nbytes, const std::string& what) {
    return Region::create(registry_, nbytes, Region::Sharing::kReadable, what);
  }
  const std::shared_ptr<RegionRegistry>& registry() const override { return registry_; }
  pid_t pid_of(int rank) const override { return segment_->process_of(rank).pid; }
  void fail_if_gone(int peer, const std::function<std::string()>& what) override;
  /// *Collective.* A zero-filled region for all ranks. Throws CommError, IoError.
  std::shared_ptr<Region> share_with_all(std::size_t nbytes, std::string_view label);

 private:
  friend class ShmWork;

  // shm_backend.cpp
  ShmWork& new_work(const Call& call);
  ShmWork& work_at(std::uint64_t sequence) { return *works_[sequence % kRingSlots]; }
  void make_ready(ShmWork& work);
  void publish_ready();
  void start(ShmWork& work);
  void progress() { progress(kRingSlots); }
  bool finish_barriers();
  bool run_data_phase(ShmWork& work);
  /// Compares the calls of `peer` with mine, up to call `sequence`, which it has entered.
  void verify_peer(std::uint64_t sequence, int peer);
  void copy_from_peer(ShmWork& work, int peer);
  void finish(ShmWork& work);
  void retire();
  void leave() noexcept;
  bool drop_unfinished_works();

  // shm_wait.cpp
  /// The same for something that depends on call `target`, within the group's timeout.
  void block_until(const std::function<bool()>& done, std::uint64_t target);
  void wait_for_room(std::uint64_t sequence);
  void wait_for_readers(std::uint64_t sequence);
  void wait_for_staging_room(std::size_t nbytes);
  /// Why `peer` will not come, or nothing.
  std::string problem_of(int peer, std::int64_t now_ns, bool look_at_process);
  /// The call whose peers hold up call `target`, and those peers.
  Blocker blocker_of(std::uint64_t target) const;
  [[noreturn]] void throw_failure() const;
  [[noreturn]] void fail_group(const std::string& reason);
  std::string call_text(std::uint64_t sequence) const;
  std::string position_of(int rank) const;
  std::string recent_calls(int rank, std::size_t count) const;

  // shm_memory.cpp
  /// Publishes where the peers find the input of `work`.
  void locate_input(ShmWork& work);
  /// Input of `peer` in call `sequence`.
  const std::byte* map_input(int peer, std::uint64_t sequence);
  void forget_freed_regions(int peer);

  bool peer_has(const std::atomic<std::uint64_t> RankBlock::*counter, int peer, std::uint64_t sequence) const {
    return (segment_->block(peer).*counter).load(std::memory_order_seq_cst) > sequence;
  }

  std::shared_ptr<ControlSegment> segment_;
  std::shared_ptr<RegionRegistry> registry_;
  StagingArena staging_;
  RankBlock& mine_;
  const pid_t pid_;
  const int exceptions_at_start_;

  std::array<std::shared_ptr<ShmWork>, kRingSlots> works_;
  std::uint64_t next_sequence_ = 0;     ///< calls entered
  std::uint64_t ready_sequence_ = 0;    ///< calls whose input is readable
  std::uint64_t data_sequence_ = 0;     ///< calls whose data phase is done here
  std::uint64_t retired_sequence_ = 0;  ///< calls that every rank has left
  std::uint64_t last_input_ = 0;        ///< 1 + the last call in which peers read an input of mine
  bool progressing_ = false;            ///< a finish step may call into the group again

  std::vector<std::uint64_t> verified_;  ///< [size()] the peer's calls below this are like mine
  std::vector<const void*> slices_;      ///< [size()], reused
  struct PeerRegions {
    std::unordered_map<std::uint64_t, Mapping> mappings;  ///< by RegionId::key()
    std::uint32_t freed_seen = 0;
  };
  std::vector<PeerRegions> peer_regions_;
  std::vector<std::int64_t> stopped_since_ns_;  ///< 0: not stopped
  LongWait long_wait_ = LongWait::from_environment();
  std::int64_t last_check_ns_ = 0;
  std::int64_t paused_wait_ns_ = 0, paused_ns_ = 0;  ///< how long this process was stopped in the wait begun then
  const WaitPolicy policy_;
};

}  // namespace zero::comm
