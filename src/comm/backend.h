#pragma once
// The transport under zero::Group. Group checks arguments, counts elements and composes collectives; a backend moves
// bytes, keeps the order of calls, and detects missing ranks.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call_log.h"
#include "comm/call_record.h"
#include "comm/memory.h"
#include "comm/progress_thread.h"
#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::comm {

/// How the data of one call moves.
enum class Transport : std::uint8_t {
  kGather,     ///< every rank's `in` into every rank's `out`
  kScatter,    ///< every rank's slice for this rank, passed to the finish step
  kView,       ///< every rank's whole `in`, passed to the finish step
  kBroadcast,  ///< root's `in` into the other ranks' `out`
  kBarrier,    ///< no data
};

/// The start of an ordered reduction.
enum class ReduceBase : std::uint8_t {
  kZero,   ///< 0 + in_0 + ...
  kOut,    ///< out + in_0 + ...
  kFirst,  ///< in_0 + in_1 + ...
};

/// The finish step of kScatter and kView without a std::function: an ordered reduction into `out`.
struct Reduction {
  void* out = nullptr;
  DType out_dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  ReduceBase base = ReduceBase::kZero;
};

/// One call of a collective. Spans and views need to live only until post() returns; `in` and `out`
/// until the work is complete.
struct Call {
  CollectiveKind kind = CollectiveKind::kBarrier;
  Transport transport = Transport::kBarrier;
  std::uint8_t phase = 0;
  DType dtype = DType::kByte;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  std::int64_t numel = 0;                      ///< elements of the collective; kView, kBroadcast: of each rank's `in`
  std::int64_t recorded_numel = -1;            ///< the number that ranks compare and errors show; -1: `numel`
  std::span<const std::int64_t> counts = {};   ///< kGather and kScatter: [size()] elements per rank
  std::span<const std::int64_t> offsets = {};  ///< kGather: [size()] in elements; empty: contiguous
  const void* in = nullptr;
  void* out = nullptr;
  Reduction reduction = {};  ///< used when `consume` is empty
  ConsumeSlices consume = {};
  std::string_view label = {};
  std::chrono::milliseconds timeout{0};
  bool input_stable = false;  ///< CollectiveOptions::input_stable_until_barrier
  bool stage_input = false;   ///< copy `in` even if it is shared: the finish step overwrites it
  bool deferred = false;      ///< takes its place in the order now; `in` is ready at WorkState::start()
};

class ExchangeBoard;
class ShardWindow;
struct HostSums;
struct ParcelTable;
/// As ExchangeBoard::Sink.
using BoardSink = std::function<void(int parcel, std::span<const void* const> slices)>;

/// A posted call. For progress and errors see Work. Callers hold the lock(), as for a Backend.
class WorkState {
 public:
  explicit WorkState(std::shared_ptr<BackendLock> lock) : lock_(std::move(lock)) {}
  virtual ~WorkState() = default;
  BackendLock& lock() const { return *lock_; }
  /// Needs no lock.
  bool complete() const { return complete_.load(std::memory_order_acquire); }
  /// As Work::moving_seconds; valid when complete. Needs no lock.
  double moving_seconds() const { return static_cast<double>(moving_ns_) * 1e-9; }
  /// As Work::test.
  virtual bool test() = 0;
  /// As Work::wait.
  virtual void wait() = 0;
  /// As Work::wait_for.
  virtual bool wait_for(std::chrono::milliseconds limit) = 0;
  /// Makes the input of a deferred call visible. Local.
  virtual void start() = 0;
  /// Starts `next` when this work's finish step is done. Local.
  virtual void chain(std::shared_ptr<WorkState> next) = 0;
  /// Reports completion to `log`. Local.
  void tell(std::shared_ptr<CallLog> log, const CallLog::Ticket& ticket) {
    log_ = std::move(log);
    ticket_ = ticket;
    if (complete()) tell_log();
  }

 protected:
  void start_over() {
    complete_.store(false, std::memory_order_relaxed);
    moving_ns_ = 0;
    log_ = nullptr;
  }
  void add_moving_ns(std::int64_t ns) { moving_ns_ += ns; }
  void set_complete() {
    if (log_) tell_log();
    complete_.store(true, std::memory_order_release);
  }

 private:
  void tell_log() {
    log_->end(ticket_, moving_ns_);
    log_ = nullptr;
  }

  const std::shared_ptr<BackendLock> lock_;
  std::atomic<bool> complete_{false};
  std::int64_t moving_ns_ = 0;
  std::shared_ptr<CallLog> log_;  ///< null: not logged
  CallLog::Ticket ticket_;
};

class Backend;

/// What a rank waits for, and which ranks are missing.
struct Blocker {
  std::string what;                           ///< `all_gather #12 "layer.3" (4096 bf16)`
  std::string_view lack = "has not arrived";  ///< what the error says of each of `ranks`
  std::vector<int> ranks;
};

/// Limits of a wait.
struct Patience {
  std::chrono::milliseconds timeout{0};                              ///< after it the group fails
  std::int64_t waited_ns = 0;                                        ///< part of the timeout already used
  std::int64_t limit_ns = std::numeric_limits<std::int64_t>::max();  ///< after it block_until() returns false
  bool while_others_run = false;                                     ///< and once every rank waits, where sees_waits()
  bool for_device = false;  ///< the rank's own, which ends what it was given: this rank is none that waits for others
};

/// A work that Backend::progress() advances.
class MovedWork : public WorkState {
 public:
  explicit MovedWork(Backend& backend);
  bool test() final;
  void wait() final { wait_at_most(std::numeric_limits<std::int64_t>::max()); }
  bool wait_for(std::chrono::milliseconds limit) final;
  /// As wait_for(), but only as long as some rank still runs, where the backend sees that.
  bool wait_while_others_run(std::chrono::milliseconds limit);

  /// Called when its group or board is destroyed: only its result can be read afterwards.
  void orphan() { backend_ = nullptr; }
  bool has_failed() const { return error_ != nullptr; }

 protected:
  /// A description for errors. Needs no backend.
  virtual std::string text() const = 0;
  virtual Blocker blocker() const = 0;
  virtual CollectiveKind kind() const = 0;

  /// Prepares for another use.
  void begin(std::int64_t now_ns, std::chrono::milliseconds timeout);
  /// Runs the caller's part of the work; true if it did not throw. An exception is kept for the caller, and the group
  /// fails.
  template <class Part>
  bool run_own_part(const Part& part) {
    try {
      part();
      return true;
    } catch (...) {
      own_part_failed(std::current_exception());
      return false;
    }
  }

  Backend* backend_;  ///< null: orphaned

 private:
  bool wait_at_most(std::int64_t limit_ns, bool while_others_run = false);
  void own_part_failed(std::exception_ptr error);
  void throw_if_over() const;

  std::int64_t begin_ns_ = 0;
  std::int64_t waited_ns_ = 0;
  std::chrono::milliseconds timeout_{0};
  std::exception_ptr error_;  ///< thrown by the caller's part
};

/// Transfers outside a group's calls: a board or a window. Used like a Backend.
class Transfers {
 public:
  virtual ~Transfers() = default;
  /// Moves what can be moved and runs at most `most` steps; returns how many it ran. Never blocks. Throws CommError.
  virtual int progress(int most) = 0;
  virtual bool under_way() const = 0;
  /// One line for everything under way.
  virtual std::string under_way_text() const = 0;
  /// The last post; empty: none yet.
  virtual std::string last_text() const = 0;
  /// The group has failed: nothing more is written to memory of callers, who may free it. False: something may be.
  virtual bool let_go() noexcept { return true; }
};

/// Used by one thread at a time: by a caller that holds a BackendGuard, or by its progress thread.
class Backend : public std::enable_shared_from_this<Backend> {
 public:
  Backend(int rank, int size, std::shared_ptr<BackendLock> lock = std::make_shared<BackendLock>());
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Ranks on this host, ascending, including this one.
  const std::vector<int>& host_ranks() const { return host_ranks_; }
  int local_rank() const;
  /// Pid of a rank on this host. Local.
  virtual pid_t pid_of(int rank) const = 0;
  /// Called when memory that rank `peer` of this host shares cannot be opened: throws CommError, on all ranks, if the
  /// peer has died or left. `what`: the purpose. Does nothing where others supervise the ranks. Local.
  virtual void fail_if_gone(int peer, const std::function<std::string()>& what) {
    (void)peer;
    (void)what;
  }
  int local_size() const { return static_cast<int>(host_ranks_.size()); }
  virtual std::string_view name() const = 0;

  /// *Collective.* Enters the next call. Data phases run in the order of the calls, inside post(), test() and wait();
  /// completion of a barrier also means that the earlier calls' inputs have been read. Blocks only when too many calls
  /// are under way. Throws CommError once the group has failed.
  virtual std::shared_ptr<WorkState> post(const Call& call) = 0;

  /// *Local.* Moves what can be moved and runs at most `most` finish steps; true if it ran one. Never blocks. Throws
  /// CommError, but not what a finish step throws.
  virtual bool progress(int most) = 0;
  /// *Local.* As Group::failed.
  virtual bool failed() const = 0;
  /// *Local.* True while progress() has work left.
  virtual bool under_way() const = 0;
  /// *Local.* True inside progress(), where finish steps must not wait.
  virtual bool in_finish_step() const { return false; }

  /// *Local.* Progresses until `done()`: spins, yields, then sleeps, and checks the peers that `blocker` names. False
  /// if the limit passed. Throws CommError.
  virtual bool block_until(const std::function<bool()>& done, const std::function<Blocker()>& blocker,
                           const Patience& patience) = 0;
  /// *Local.* block_until() knows when every rank waits in it.
  virtual bool sees_waits() const { return false; }
  /// *Local.* Checks liveness and timeouts for a caller that has waited since `since_ns`. Throws CommError.
  virtual void check_peers(const std::function<Blocker()>& blocker, std::int64_t since_ns,
                           std::chrono::milliseconds timeout) = 0;
  virtual void throw_if_failed() const = 0;

  /// *Collective.* A board of `parcels`, already compared between ranks.
  virtual std::shared_ptr<ExchangeBoard> make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                                    HostSums sums) = 0;
  /// *Collective.* A window of `parcels`, already compared between ranks. Null if a fetch has to be a call on all
  /// ranks.
  virtual std::shared_ptr<ShardWindow> make_window(std::shared_ptr<const ParcelTable> parcels,
                                                   std::span<const void* const> mine) = 0;
  /// *Local.* Adds `transfers` to what progress() moves, or removes it.
  void add_transfers(Transfers& transfers) { transfers_.push_back(&transfers); }
  void remove_transfers(Transfers& transfers) { std::erase(transfers_, &transfers); }

  /// *Local.* Who waits in this backend moves `other` as well.
  void move_with(const std::shared_ptr<Backend>& other);

  const std::shared_ptr<BackendLock>& lock() const { return lock_; }
  /// *Local.* As Group::set_progress_thread.
  void set_progress_thread(bool on);
  ProgressThread* progress_thread() const { return progress_thread_.get(); }
  /// *Local.* Why a progress thread is not possible; empty if it is.
  virtual std::string progress_thread_problem() const { return {}; }

  /// *Local.* As Group::allocate.
  virtual SharedMemory allocate(std::size_t nbytes) = 0;

  /// *Collective.* As Group::allocate_node_shared.
  SharedMemory allocate_node_shared(std::size_t nbytes, std::string_view label, std::size_t expected_nbytes);

  /// *Collective.* Gathers every rank's `nbytes` bytes at `mine`, concatenated, into `all`.
  void tell_all(const void* mine, std::size_t nbytes, void* all, std::string_view label);

  /// *Collective.* A group of `members`, ascending, including this rank. Every rank passes the members of its own new
  /// group; the groups must not overlap.
  virtual std::shared_ptr<Backend> subgroup(std::span<const int> members) = 0;

  /// *Local.* As Group::abort.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// *Local.* As Group::flight_recorder.
  virtual std::string flight_recorder() const = 0;

  CommunicationCounters& counters() { return counters_; }
  /// Null: nothing is logged. Callers of set_call_log() hold the lock.
  const std::shared_ptr<CallLog>& call_log() const { return call_log_; }
  void set_call_log(std::shared_ptr<CallLog> log) { call_log_ = std::move(log); }
  CollectiveCounter* counter_of(CollectiveKind kind);
  std::chrono::milliseconds default_timeout() const { return default_timeout_; }
  void set_default_timeout(std::chrono::milliseconds timeout) { default_timeout_ = timeout; }

 protected:
  virtual const std::shared_ptr<RegionRegistry>& registry() const = 0;
  void set_host_ranks(std::vector<int> ranks) { host_ranks_ = std::move(ranks); }

  /// *Collective* over the whole group. A zero-filled region for the ranks in `members`, all on this host, created by
  /// the first of them; null if there are none. Throws IoError on every rank if one of them cannot map it.
  /// `recorded_nbytes` is compared over all ranks.
  /// There must be memory for `expected_nbytes`.
  std::shared_ptr<Region> share_region(std::span<const int> members, std::size_t nbytes, std::int64_t recorded_nbytes,
                                       std::string_view label, std::size_t expected_nbytes = SIZE_MAX);

  /// *Collective* over the whole group. A shared-memory group of the ranks in `members`, all on this host; those at
  /// `host_ranks` count as being on this host. Null if there are no members.
  std::shared_ptr<Backend> make_shm_subgroup(std::span<const int> members, std::vector<int> host_ranks);

  std::chrono::milliseconds timeout_of(const Call& call) const {
    return call.timeout.count() > 0 ? call.timeout : default_timeout_;
  }

  /// Moves the backends that this one moves. Throws CommError.
  void move_others();
  bool moves_others() const { return !others_.empty(); }
  /// progress() for boards and windows.
  int move_transfers(int most);
  bool transfers_under_way() const;
  /// Transfers::let_go() of all.
  bool let_go_of_transfers() const noexcept;
  std::string transfers_text() const;
  /// The last posts and fetches, appended to an error's text about this rank's last call.
  std::string last_transfers_text() const;

 private:
  const int rank_;
  const int size_;
  CommunicationCounters counters_;
  std::chrono::milliseconds default_timeout_;
  std::vector<int> host_ranks_;
  std::shared_ptr<CallLog> call_log_;
  const std::shared_ptr<BackendLock> lock_;
  std::vector<Transfers*> transfers_;
  std::vector<std::weak_ptr<Backend>> others_;
  std::unique_ptr<ProgressThread> progress_thread_;  ///< destructors of backends end it first
};

/// The ranks that count as being on the host of `rank`, when all `size` ranks are on one host: its block of ranks if
/// ZERO_RANKS_PER_NODE divides the host into several, for tests; else all ranks. Throws ConfigError. Local.
std::vector<int> ranks_beside(int rank, int size);

/// The record of a call, without times. Local.
CallRecord make_record(const Call& call, std::uint64_t sequence);

/// Runs the finish step of a kScatter or kView call: `consume`, or the ordered reduction. Local.
void run_finish_step(const Reduction& reduction, const ConsumeSlices& consume, DType dtype,
                     std::span<const void* const> slices, std::int64_t numel);

/// Adds one call with these numbers of elements to a counter. Local.
void count_moved(CollectiveCounter& counter, std::int64_t sent, std::int64_t received, DType dtype);

/// Gives access to a group's backend.
struct GroupAccess {
  static const std::shared_ptr<Backend>& backend(const Group& group) { return group.backend_; }
};

/// Holds the lock for a caller that posts, and then wakes the progress thread.
class PostingGuard {
 public:
  explicit PostingGuard(Backend& backend) : backend_(backend), guard_(*backend.lock()) {}
  ~PostingGuard() {
    if (ProgressThread* const thread = backend_.progress_thread()) thread->posted();
  }
  PostingGuard(const PostingGuard&) = delete;
  PostingGuard& operator=(const PostingGuard&) = delete;

 private:
  Backend& backend_;
  BackendGuard guard_;
};

/// A size-1 group. Local.
std::shared_ptr<Backend> make_self_backend();

}  // namespace zero::comm
