#pragma once
// The control segment of the shm backend: who is here, which collective everyone has entered, finished
// its input for and left, and why the group failed. Bulk data lies elsewhere (memory.h).
//
// There are no locks in it, only atomics with one writer each (but for the failure and the event), so
// a rank that dies at any instruction leaves nothing held.
//
// Counters. A rank's calls are numbered from 0 and their data phases run in that order, so three
// counters per rank say everything: `entered` calls have a valid slot in the ring; the inputs of the first
// `ready` calls may be read; of the first `left` calls this rank needs nothing any more.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/call_record.h"
#include "comm/memory.h"
#include "comm/process.h"

namespace zero::comm {

inline constexpr std::size_t kRingSlots = 128;     ///< calls a rank may have under way, and remembers
inline constexpr std::size_t kFreedEntries = 256;  ///< freed regions remembered for peers
inline constexpr std::size_t kReasonBytes = 8192;
inline constexpr std::size_t kCacheLine = 64;

/// A trivially copyable value that is written and read word by word with relaxed atomics; the
/// counter published after it gives the order.
template <class T>
class Published {
 public:
  void store(const T& value) {
    std::uint64_t words[kWords] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  T load() const {
    std::uint64_t words[kWords];
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    T value;
    __builtin_memcpy(static_cast<void*>(&value), words, sizeof(T));
    return value;
  }
  /// Overwrites the 8-byte member at `offset_nbytes`.
  void store_word(std::size_t offset_nbytes, std::int64_t value) {
    words_[offset_nbytes / 8].store(static_cast<std::uint64_t>(value), std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kWords = (sizeof(T) + 7) / 8;
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

/// Where the input of a call can be read.
struct InputLocation {
  std::int64_t offset_nbytes = 0;
  std::uint64_t region_nbytes = 0;
  std::int32_t region_owner = -1;  ///< -1: no input
  std::uint32_t region_number = 0;
  std::int32_t fd = -1;  ///< in the process of the rank that entered the call
  std::int32_t unused = 0;
};

struct alignas(kCacheLine) Slot {
  Published<CallRecord> record;
  Published<InputLocation> input;
};
static_assert(sizeof(Slot) == 192);

enum class RankState : std::uint32_t { kAbsent, kPresent, kLeft };

struct RankBlock {
  // The line that waiting ranks poll.
  alignas(kCacheLine) std::atomic<std::uint64_t> entered;
  std::atomic<std::uint64_t> ready;
  std::atomic<std::uint64_t> left;
  std::atomic<std::uint32_t> freed_count;
  std::atomic<RankState> state;

  alignas(kCacheLine) std::atomic<std::int32_t> pid;
  std::atomic<std::uint64_t> start_time;
  std::atomic<std::uint64_t> asleep_since;  ///< 0: awake; else 1 + the event after which it looked in vain

  alignas(kCacheLine) std::array<std::atomic<std::uint32_t>, kFreedEntries> freed;
  std::array<Slot, kRingSlots> ring;
};

enum class FailureState : std::uint32_t { kNone, kWriting, kFailed };

struct SegmentHeader {
  std::atomic<std::uint64_t> magic;  ///< written last: the rest is valid
  std::uint64_t nbytes;
  std::int32_t ranks;
  std::int32_t creator_pid;
  std::uint64_t creator_start_time;
  std::uint64_t creator_pid_namespace;
  std::atomic<std::uint32_t> complete;  ///< everybody is attached and the name is gone

  alignas(kCacheLine) std::atomic<std::uint32_t> event;  ///< futex word, counts wake-ups
  std::atomic<std::uint32_t> sleepers;

  alignas(kCacheLine) std::atomic<FailureState> failure;
  std::atomic<std::int32_t> failed_by;
  char reason[kReasonBytes];  ///< valid once `failure` is kFailed
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<RankState>::is_always_lock_free);

class ControlSegment {
 public:
  /// Without a name, for the threads of one process. Throws IoError.
  static std::shared_ptr<ControlSegment> create_anonymous(int ranks);

  /// Bytes of a segment for so many ranks.
  static std::size_t nbytes_of(int ranks);
  /// Over memory of nbytes_of(ranks), zero-filled at first, that the ranks have agreed on; its `creator` is
  /// the first one here. Throws IoError. Local.
  static std::shared_ptr<ControlSegment> over(const FileDescriptor& memory, int ranks, bool creator);

  /// *Collective* over the ranks of this host. Rank 0 creates /dev/shm/<name>, the others attach, and
  /// the name is removed before anybody returns. A segment left by a dead process is taken over.
  /// Throws IoError (no room in /dev/shm, no permission), ConfigError (rank taken, job id in use), CommError
  /// (a rank did not come or died; says which).
  static std::shared_ptr<ControlSegment> rendezvous(const std::string& job_id, int rank, int ranks,
                                                    std::chrono::milliseconds timeout);

  /// Removes the names of this user's jobs whose rank 0 died before all had met. Local, throws nothing.
  static void remove_left_behind() noexcept;

  /// Says for `rank` of a job of `ranks` on this host, which has ended without an error, that it will not come: ranks
  /// that wait for it fail. For rank 0 this process keeps the name of a failed segment where there is none, for those
  /// that are still to look for one; whoever ends the job removes it. True when this needs not be said again. Local,
  /// throws nothing.
  static bool say_ended(const std::string& job_id, int rank, int ranks) noexcept;

  /// Name under /dev/shm for a job of this user. Odd characters are replaced, long ids hashed. Local.
  static std::string name_of(const std::string& job_id);

  explicit ControlSegment(Mapping mapping) : mapping_(std::move(mapping)) {}

  int ranks() const { return header().ranks; }
  RankBlock& block(int rank) const;
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(mapping_.data()); }
  ProcessId process_of(int rank) const;

  /// Takes the place of `rank` for this process. Throws ConfigError when it is taken. Local.
  void attach(int rank);

  /// Wakes every sleeping rank. Cheap when nobody sleeps. Local.
  void notify();
  /// Says that `rank`, one of the sleepers, has read `event`, then looked, and found nothing to go on with. Local.
  void fall_asleep(int rank, std::uint32_t event);
  void wake_up(int rank);
  /// Every rank is asleep and nothing has happened since each last looked: nobody will bring anything. Local.
  bool all_asleep(std::uint32_t event) const;
  /// Makes sleepers look again although nothing has happened. Local.
  void wake_sleepers();
  /// Sleeps until notify() or wake_sleepers(), or for `timeout_ns`. `event` was read before the caller last looked.
  /// Local.
  void sleep(std::uint32_t event, std::int64_t timeout_ns);

  /// Marks the group as failed; the first caller's reason stays. Local, never blocks.
  void fail(int rank, const std::string& reason) noexcept;
  bool failed() const { return header().failure.load(std::memory_order_acquire) != FailureState::kNone; }
  /// Why the group failed. Waits shortly for a rank that is just writing it.
  std::string reason() const;

 private:
  Mapping mapping_;
};

}  // namespace zero::comm
