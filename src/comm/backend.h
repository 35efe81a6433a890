#pragma once
// The transport under zero::Group. Group checks arguments, counts elements and composes collectives;
// a backend moves bytes, keeps the order of calls, and finds out who is missing.
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/call_record.h"
#include "comm/memory.h"
#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::comm {

/// How the data of one call moves.
enum class Transport : std::uint8_t {
  kGather,     ///< everybody's `in` into everybody's `out`
  kScatter,    ///< everybody's slices for me, handed to the finish step
  kView,       ///< everybody's whole `in`, handed to the finish step
  kBroadcast,  ///< root's `in` into the others' `out`
  kBarrier,    ///< nothing
};

/// The start of an ordered reduction.
enum class ReduceBase : std::uint8_t {
  kZero,   ///< 0 + in_0 + ...
  kOut,    ///< out + in_0 + ...
  kFirst,  ///< in_0 + in_1 + ...
};

/// The finish step of kScatter and kView that needs no std::function: an ordered reduction into `out`.
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
  std::int64_t numel = 0;            ///< of the collective; kView and kBroadcast: of each rank's `in`
  std::int64_t recorded_numel = -1;  ///< what the ranks compare and the errors say, where it is not `numel`
  std::span<const std::int64_t> counts = {};  ///< kGather and kScatter: [size()] elements per rank
  const void* in = nullptr;
  void* out = nullptr;
  Reduction reduction = {};  ///< used when `consume` is empty
  ConsumeSlices consume = {};
  std::string_view label = {};
  std::chrono::milliseconds timeout{0};
  bool input_stable = false;  ///< CollectiveOptions::input_stable_until_barrier
  bool stage_input = false;   ///< copy `in` aside even when it is shared: the finish step overwrites it
  bool deferred = false;      ///< the order is taken now, the input is ready only at WorkState::start()
};

/// A posted call. Progress and errors: see Work.
class WorkState {
 public:
  virtual ~WorkState() = default;
  /// As Work::test.
  virtual bool test() = 0;
  /// As Work::wait.
  virtual void wait() = 0;
  /// Makes the input of a deferred call visible. Local.
  virtual void start() = 0;
  /// `next` is started when this work's finish step is done. Local.
  virtual void chain(std::shared_ptr<WorkState> next) = 0;
};

class Backend {
 public:
  Backend(int rank, int size);
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual int local_rank() const { return rank_; }
  virtual int local_size() const { return size_; }
  virtual std::string_view name() const = 0;

  /// *Collective.* Enters the next call. Data phases run in the order of the calls, inside post(),
  /// test() and wait(); a barrier also means that the earlier calls' inputs have been read. Blocks
  /// only when too many calls are under way. Throws CommError once the group has failed.
  virtual std::shared_ptr<WorkState> post(const Call& call) = 0;

  /// *Local.* As Group::allocate.
  virtual SharedMemory allocate(std::size_t nbytes) = 0;

  /// *Collective.* As Group::allocate_node_shared.
  SharedMemory allocate_node_shared(std::size_t nbytes, std::string_view label);

  /// *Local.* As Group::abort.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// *Local.* As Group::flight_recorder.
  virtual std::string flight_recorder() const = 0;

  CommunicationCounters& counters() { return counters_; }
  CollectiveCounter* counter_of(CollectiveKind kind);
  std::chrono::milliseconds default_timeout() const { return default_timeout_; }
  void set_default_timeout(std::chrono::milliseconds timeout) { default_timeout_ = timeout; }

 protected:
  virtual const std::shared_ptr<RegionRegistry>& registry() const = 0;
  /// Pid of a rank on this host. Local.
  virtual pid_t pid_of(int rank) const = 0;

  std::chrono::milliseconds timeout_of(const Call& call) const {
    return call.timeout.count() > 0 ? call.timeout : default_timeout_;
  }

 private:
  const int rank_;
  const int size_;
  CommunicationCounters counters_;
  std::chrono::milliseconds default_timeout_;
};

/// The record of a call, without times. Local.
CallRecord make_record(const Call& call, std::uint64_t sequence);

/// Runs the finish step of a kScatter or kView call: `consume`, or the ordered reduction. Local.
void run_finish_step(const Reduction& reduction, const ConsumeSlices& consume, DType dtype,
                     std::span<const void* const> slices, std::int64_t numel);

/// A size-1 group. Local.
std::shared_ptr<Backend> make_self_backend();

}  // namespace zero::comm
