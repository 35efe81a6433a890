#pragma once
// Group: the ranks that share one model, and their collectives. No globals, no libtorch.
//
// Every rank of the group enters collectives in the same order with matching arguments; a mismatch is reported on all
// ranks with both sides' recent calls. Collectives are asynchronous: a call posts the work and returns a Work, which
// progresses inside test(), wait() and later calls, and in a progress thread where there is one. Data moves in the
// order of the calls. All memory is host memory. One thread at a time may use a group. Wrong arguments throw
// ConfigError.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/dtype.h"

namespace zero {

namespace comm {
class Backend;
class WorkState;
class Region;
struct GroupAccess;
}  // namespace comm

enum class ReduceOp : std::uint8_t { kSum, kMax, kMin };

struct CollectiveOptions {
  /// What this call is for (a unit or parameter name). The ranks compare the whole label; errors and the flight
  /// recorder show up to 47 characters.
  std::string_view label = {};
  /// 0: the group's default.
  std::chrono::milliseconds timeout{0};
  /// True: the caller keeps `in` unchanged until its next barrier(), so wait() may return before the
  /// other ranks have read it. False: after wait() the input may be overwritten.
  bool input_stable_until_barrier = false;
};

/// A collective under way. Copies refer to the same work. Dropping the last copy before completion does not cancel it:
/// the group completes or aborts it.
class Work {
 public:
  Work() = default;  ///< already complete
  explicit Work(std::shared_ptr<comm::WorkState> state) : state_(std::move(state)) {}

  /// Makes progress; true when complete. Never blocks. Throws CommError as wait() does.
  bool test();
  /// Blocks until complete. Throws CommError naming the late, stopped, dead or diverging rank and
  /// the collective.
  void wait();
  /// As wait(), but at most for `limit`; true when complete.
  bool wait_for(std::chrono::milliseconds limit);
  /// For a completed gather or exchange: seconds in which its data moved, excluding the wait for ranks that came later.
  /// Over MPI without a progress thread, measured up to the call that saw it arrive.
  double moving_seconds() const;
  /// False for a default-constructed Work.
  bool valid() const { return state_ != nullptr; }

 private:
  std::shared_ptr<comm::WorkState> state_;
};

/// Memory from Group::allocate or allocate_node_shared. Copies share it; it is unmapped with the last copy.
class SharedMemory {
 public:
  SharedMemory() = default;
  explicit SharedMemory(std::shared_ptr<comm::Region> region) : region_(std::move(region)) {}
  void* data() const;
  std::size_t nbytes() const;
  explicit operator bool() const { return region_ != nullptr; }
  const std::shared_ptr<comm::Region>& region() const { return region_; }

 private:
  std::shared_ptr<comm::Region> region_;
};

/// What one kind of collective has moved so far on this rank. Counted in elements, to compare with the theory, and in
/// bytes (`nbytes_*`).
struct CollectiveCounter {
  std::int64_t calls = 0;
  std::int64_t numel_sent = 0;      ///< this rank's elements that other ranks needed
  std::int64_t numel_received = 0;  ///< other ranks' elements that this rank needed
  std::int64_t nbytes_sent = 0;
  std::int64_t nbytes_received = 0;
  double wait_seconds = 0;  ///< time blocked inside wait()
};

struct CommunicationCounters {
  CollectiveCounter all_gather, reduce_scatter, all_reduce, broadcast, barrier;
};

/// Called once per exchange with one pointer per rank, in rank order: the slice that rank sends to this one,
/// [counts[rank()]] elements of the exchanged dtype, valid only during the call. Runs inside test(), wait() or a later
/// collective, or in the progress thread; wait() returns after it.
using ConsumeSlices = std::function<void(std::span<const void* const> slices)>;

class Group {
 public:
  /// A group of one: every collective is a local copy or nothing.
  Group();
  explicit Group(std::shared_ptr<comm::Backend> backend);

  int rank() const;
  int size() const;
  int local_rank() const;  ///< rank among the group's ranks on this host
  int local_size() const;  ///< number of the group's ranks on this host
  /// "self", "shm", "mpi" or "ucx".
  std::string_view backend() const;
  /// True when every rank is on this host, so that allocate_node_shared works. ZERO_RANKS_PER_NODE=n makes every n
  /// ranks count as one host, to simulate several hosts on one.
  bool single_node() const;

  /// *Collective.* A group of the ranks that pass the same `color`, in the order of their ranks here. If they are all
  /// on one host it uses shared memory, whatever backend this group has. Inherits the timeout.
  Group split(int color) const;
  /// *Collective.* split() by host.
  Group split_by_host() const;

  /// *Collective.* out = concatenation of every rank's `counts[r]` elements; `in` may be the address of this rank's
  /// slice inside `out` (in place). `counts` has size() entries and may hold zeros.
  Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                  const CollectiveOptions& options = {});

  /// *Collective.* As all_gather(), but the slice of rank r goes to element `offsets[r]` of `out` instead of after the
  /// previous one. `offsets` has size() entries; the slices must not overlap.
  Work all_gather_at(const void* in, void* out, std::span<const std::int64_t> counts,
                     std::span<const std::int64_t> offsets, DType dtype, const CollectiveOptions& options = {});

  /// *Collective.* Reduces slices in rank order. For this rank's slice of `counts[rank()]` elements:
  ///   out[i] = ((base + in_0[i]) + in_1[i]) + ... + in_{N-1}[i], with base = out[i] when `accumulate`, else 0
  /// `in` holds sum(counts) elements of `dtype`. `out_dtype` is fp32 for fp32/bf16/fp16 inputs (each addend is widened
  /// exactly, sums are fp32), or `dtype` for fp32, fp64 and int64.
  Work reduce_scatter(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype, DType out_dtype,
                      bool accumulate, const CollectiveOptions& options = {});

  /// *Collective.* reduce_scatter's data movement without its arithmetic: `consume` gets every rank's slice for this
  /// rank, in place where the backend can (input in allocate() memory), else staged. Counted as a reduce_scatter.
  Work exchange(const void* in, std::span<const std::int64_t> counts, DType dtype, ConsumeSlices consume,
                const CollectiveOptions& options = {});

  /// *Collective.* Reduces `numel` elements in place, with the same bits on every rank. Sums in rank order, without the
  /// 0 that reduce_scatter() begins with; bf16 and fp16 are summed in fp32 and rounded once (to nearest even). Not for
  /// kByte.
  Work all_reduce(void* inout, std::int64_t numel, DType dtype, ReduceOp op = ReduceOp::kSum,
                  const CollectiveOptions& options = {});

  /// *Collective.* Copies root's `numel` elements to every rank.
  Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options = {});

  /// *Collective.* Completes when every rank has entered it; the inputs of all earlier calls have then been read.
  Work barrier(const CollectiveOptions& options = {});

  /// *Local.* Zero-filled, 4096-byte aligned memory that other ranks of this host can read in place when it is the
  /// input of a collective. Falls back to private memory if it cannot be shared. Throws IoError if there is not enough
  /// memory (says how much was requested and how much is free).
  SharedMemory allocate(std::size_t nbytes);

  /// *Collective.* One zero-filled mapping that all ranks read and write. Pages take memory when they are first
  /// touched; that there is enough for `expected_nbytes` of them (all, by default) is checked now. Throws CommError
  /// unless single_node(); IoError as allocate.
  SharedMemory allocate_node_shared(std::size_t nbytes, std::string_view label, std::size_t expected_nbytes = SIZE_MAX);

  /// *Local.* Marks the group as failed: every other rank's pending and later collectives throw a
  /// CommError with `reason` and this rank. Called by destructors during stack unwinding. Idempotent.
  void abort(std::string_view reason) noexcept;

  /// *Local.* True: a thread of this process moves data and runs finish steps while the caller does other work, so that
  /// gathers and reductions overlap with it. Worthwhile with a spare core, or over a network slower than memory; each
  /// rank may choose for itself. False (the default): data moves only inside calls. Does nothing in a group of one.
  /// Throws ConfigError inside a finish step, and over MPI if the application has initialised it below
  /// MPI_THREAD_MULTIPLE; IoError if the thread cannot be started.
  void set_progress_thread(bool on);
  bool has_progress_thread() const;
  /// *Local.* Why set_progress_thread(true) would throw; empty if it would not.
  std::string progress_thread_problem() const;

  /// *Local.* True once this rank knows that the group has failed.
  bool failed() const;

  CommunicationCounters counters() const;
  void reset_counters();

  /// Default for CollectiveOptions::timeout. Initially 30 minutes (ZERO_TIMEOUT_S overrides).
  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;

  /// The last calls every rank entered, newest last, one line each; for error messages and debugging.
  std::string flight_recorder() const;

 private:
  friend struct comm::GroupAccess;
  std::shared_ptr<comm::Backend> backend_;
};

/// Sets a function that every thread that waits for other ranks calls about ten times a second. If it throws, the wait
/// ends with that exception and the group has failed. For front ends that must handle signals during a wait. Null:
/// none. Local.
void set_interrupt_check(void (*check)());

struct DistributedOptions {
  /// "auto": what ZERO_BACKEND says; else mpi under mpirun when built with it; else shm when all ranks are on
  /// this host; self when alone.
  std::string backend = "auto";
  std::chrono::milliseconds timeout{0};  ///< 0: the default of Group::set_timeout
  std::chrono::milliseconds rendezvous_timeout{60'000};
};

/// *Collective.* The group that the launcher's environment describes (zero launch, torchrun, OpenMPI, MPICH/PMI,
/// Slurm); without a launcher a group of one. Throws ConfigError if the environment contradicts itself (rank not below
/// world size, unknown backend), CommError if ranks do not arrive in time (says which), IoError if shared memory cannot
/// be allocated.
Group init_distributed(const DistributedOptions& options = {});

}  // namespace zero
