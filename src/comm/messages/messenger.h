#pragma once
// Tagged messages between the ranks of a group: what collectives, boards and windows between hosts are made of
// (MessageBackend). A transport implements them: MPI (comm/mpi), UCX (comm/ucx).
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/messages/host_watch.h"
#include "comm/progress_thread.h"

namespace zero::comm {

/// Messages of different channels never meet.
enum class Channel : std::uint8_t { kData, kRecords, kNotices, kPosts, kRequests, kAnswers };
inline constexpr std::size_t kChannels = 6;

/// A message under way; 0: none, or complete.
using MessageHandle = std::uintptr_t;

/// A message that has been received from any rank.
struct Arrival {
  int source = -1;
  int tag = 0;
  std::size_t nbytes = 0;
};

/// Used by one thread at a time, which holds lock(). Functions throw CommError where the transport fails.
class Messenger {
 public:
  /// `world_rank` of `world_size`: in the job, whose ranks this messenger may know a part of.
  Messenger(int rank, int size, int world_rank, int world_size)
      : rank_(rank), size_(size), world_rank_(world_rank), world_size_(world_size) {}
  virtual ~Messenger() = default;
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }
  virtual std::string_view name() const = 0;
  /// That of all messengers of this process over the same transport.
  virtual const std::shared_ptr<BackendLock>& lock() const = 0;
  /// As Backend::progress_thread_problem().
  virtual std::string progress_thread_problem() const { return {}; }
  /// Bytes of a message at which the transport moves data in both directions at once.
  virtual std::size_t best_piece() const = 0;
  /// What MessageRequests cuts messages at: both sides alike, so all ranks have to agree.
  std::size_t piece() const { return piece_; }
  void set_piece(std::size_t nbytes) { piece_ = nbytes; }
  /// Tags are 0 to tags() - 1.
  virtual std::int64_t tags() const = 0;

  /// *Collective* the first time, for each channel of boards and windows: before its first message.
  virtual void open(Channel channel) { (void)channel; }
  /// *Local.* Begin to send or to receive; `data` belongs to the messenger until the message is complete. Messages of
  /// one channel, tag and pair of ranks arrive in the order in which they were sent. A receiver knows `nbytes`.
  virtual MessageHandle send(Channel channel, int peer, int tag, const void* data, std::size_t nbytes) = 0;
  virtual MessageHandle receive(Channel channel, int peer, int tag, void* data, std::size_t nbytes) = 0;
  /// *Local.* Begins to receive a message of any rank, tag and length up to `most`.
  virtual MessageHandle receive_any(Channel channel, void* data, std::size_t most) = 0;
  /// *Local.* Moves what can be moved; true, and `handle` is 0, when the message is complete.
  virtual bool test(MessageHandle& handle) = 0;
  virtual bool test(MessageHandle& handle, Arrival& arrival) = 0;
  /// *Local.* Gives a message up. False: it is still under way, and its memory in use.
  virtual bool cancel(MessageHandle& handle) noexcept = 0;

  /// *Collective.* A messenger of `members`, ascending; every rank passes those of its own new group. Null where
  /// `members` is empty.
  virtual std::shared_ptr<Messenger> subgroup(std::span<const int> members) = 0;
  /// *Local.* Its group has failed: some ranks may never come to the end of their process. `clean`: no message is left
  /// that could be neither completed nor cancelled.
  virtual void mark_failed(bool clean) noexcept { (void)clean; }
  /// *Local.* What the transport knows of a peer that is lost, as the end of a sentence about it; empty: nothing.
  virtual std::string problem_of(int peer) const {
    (void)peer;
    return {};
  }

  /// Of the job, on several hosts; null: there is none.
  const std::shared_ptr<HostWatch>& watch() const { return watch_; }
  void set_watch(std::shared_ptr<HostWatch> watch) { watch_ = std::move(watch); }

  /// *Collective.* Gathers every rank's `nbytes` bytes at `mine`, concatenated, into `all`, before a backend uses the
  /// messenger.
  virtual void all_gather(const void* mine, std::size_t nbytes, void* all);

 private:
  const int rank_, size_, world_rank_, world_size_;
  std::size_t piece_ = std::size_t{1} << 30;  ///< MPI counts in int
  std::shared_ptr<HostWatch> watch_;
};

/// Machines with InfiniBand or RoCE: large messages are best left to the network. Local.
bool has_rdma();

/// Messages that belong together.
class MessageRequests {
 public:
  /// *Local.* Any number of bytes: both sides cut them alike into pieces. A sender has kMostUnderWay of them under
  /// way, and begins the next ones in test() and drop_completed(). Those of one channel, peer and tag
  /// arrive in the order of the calls if one object sends them.
  void send(Messenger& messenger, Channel channel, int peer, int tag, const void* data, std::size_t nbytes);
  void receive(Messenger& messenger, Channel channel, int peer, int tag, void* data, std::size_t nbytes);

  /// *Local.* True when all have completed.
  bool test();
  /// *Local.* Lets go of those that have completed.
  void drop_completed();
  /// *Local.* Gives up what has not been matched. False when something is still under way after that.
  bool cancel() noexcept;

 private:
  static constexpr std::size_t kMostUnderWay = 32;
  struct Sending {
    Channel channel;
    int peer;
    int tag;
    const std::byte* data;
    std::size_t nbytes;
    std::size_t begun = 0;                            ///< bytes
    std::size_t first = 0, count = 0;                 ///< of the next, a ring
    std::array<MessageHandle, kMostUnderWay> pieces;  ///< under way

    bool is_before(const Sending& other) const {
      return channel == other.channel && peer == other.peer && tag == other.tag && begun < nbytes;
    }
  };
  /// True when it is complete.
  bool advance(std::size_t sending);

  Messenger* messenger_ = nullptr;  ///< null: nothing was begun yet
  std::vector<Sending> sending_;
  std::vector<MessageHandle> receiving_;
  std::size_t received_ = 0;  ///< of these, from the first
};

}  // namespace zero::comm
