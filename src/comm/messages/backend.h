#pragma once
// A group over tagged messages (comm/messages/messenger.h): ranks on several hosts. Every call first sends its record
// to every rank and compares those that come, so that a divergence is found before any data is received, and
// a late rank is known by name. Then the data moves, tagged with the sequence number; sums are made here, in
// rank order.
//
// Bytes on the wire per call and rank: (N-1) records of 104 bytes, and the data of the transport.
// Failures and farewells travel as notices on a channel of their own.
#include <array>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/long_wait.h"
#include "comm/messages/messenger.h"
#include "comm/posted_call.h"
#include "comm/process.h"
#include "comm/wait_policy.h"

namespace zero::comm {

class HostedBoard;
class MessageBackend;

/// One whose sink gets a sum of each host, of which `sums.ranks` ranks each follow one another in the group, on several
/// hosts. *Collective.* Throws CommError.
std::shared_ptr<HostedBoard> make_host_board(const std::shared_ptr<MessageBackend>& group,
                                             std::shared_ptr<const ParcelTable> parcels, BoardSink sink, HostSums sums);

/// What a window says to that of another rank.
struct WindowMessage {
  enum class Kind : std::int32_t { kFetch, kClosing, kGone };
  Kind kind = Kind::kFetch;
  std::int32_t window = 0;
  std::int32_t parcel = 0;    ///< kFetch
  std::int32_t tag = 0;       ///< kFetch: of the answer
  std::uint64_t version = 0;  ///< kFetch: at least so many publish()
};

/// A window that gets messages.
class WindowEnd {
 public:
  virtual ~WindowEnd() = default;
  virtual void take(int source, const WindowMessage& message) = 0;
};

class MessageWork final : public MovedWork {
 public:
  explicit MessageWork(MessageBackend& group);
  void start() override { ready_ = true; }
  void chain(std::shared_ptr<WorkState> next) override { next_ = std::move(next); }

 private:
  friend class MessageBackend;
  enum class Phase : std::uint8_t { kRecords, kData, kForward, kMoved, kDone };

  std::string text() const override { return describe(call_.record); }
  Blocker blocker() const override;
  CollectiveKind kind() const override { return call_.record.kind; }

  PostedCall call_;
  Phase phase_ = Phase::kRecords;
  std::int64_t data_since_ns_ = 0;  ///< every rank had entered the call
  bool ready_ = false;
  std::vector<CallRecord> records_;             ///< [N] received
  std::vector<MessageHandle> record_receives_;  ///< [N]
  MessageRequests record_sends_;
  MessageRequests data_;
  MessageRequests relayed_;         ///< slices of other hosts that ranks of this host hand on
  std::vector<std::byte> scratch_;  ///< slices of the other ranks
  std::shared_ptr<WorkState> next_;
};

class MessageBackend final : public Backend {
 public:
  /// *Collective* over the ranks of `messenger`. Throws CommError.
  explicit MessageBackend(std::shared_ptr<Messenger> messenger);
  /// Waits until all ranks leave, so that nobody misses anything; while an exception unwinds the stack it
  /// aborts the group instead.
  ~MessageBackend() override;

  std::string_view name() const override { return messenger_->name(); }
  std::shared_ptr<WorkState> post(const Call& call) override;
  std::shared_ptr<Backend> subgroup(std::span<const int> members) override;
  bool progress(int most) override;
  pid_t pid_of(int rank) const override { return peers_[static_cast<std::size_t>(rank)].process.pid; }
  bool under_way() const override { return (data_sequence_ < next_sequence_ || transfers_under_way()) && !failed(); }
  bool in_finish_step() const override { return progressing_; }
  bool block_until(const std::function<bool()>& done, const std::function<Blocker()>& blocker,
                   const Patience& patience) override;
  void check_peers(const std::function<Blocker()>& blocker, std::int64_t since_ns,
                   std::chrono::milliseconds timeout) override;
  void throw_if_failed() const override;
  std::shared_ptr<ExchangeBoard> make_board(std::shared_ptr<const ParcelTable> parcels, BoardSink sink,
                                            HostSums sums) override;
  std::shared_ptr<ShardWindow> make_window(std::shared_ptr<const ParcelTable> parcels,
                                           std::span<const void* const> mine) override;
  bool failed() const override { return has_failed_.load(std::memory_order_acquire); }
  std::string progress_thread_problem() const override;
  SharedMemory allocate(std::size_t nbytes) override;
  void abort(std::string_view reason) noexcept override;
  std::string flight_recorder() const override;

  // What its boards and windows use.
  Messenger& messenger() const { return *messenger_; }
  /// *Collective* the first time, for each channel. The first of `count` tags that nobody else on `channel` uses.
  /// Throws CommError.
  int take_tags(Channel channel, std::size_t count);
  /// *Collective.* The number of a new window, whose messages `end` gets until remove_window().
  int add_window(WindowEnd& end);
  void remove_window(int window) { windows_[static_cast<std::size_t>(window)] = nullptr; }

 protected:
  const std::shared_ptr<RegionRegistry>& registry() const override { return registry_; }

 private:
  friend class MessageWork;
  static constexpr std::size_t kWindow = 128;  ///< calls under way
  static constexpr std::size_t kRemembered = 16;
  static constexpr std::size_t kNoticeBytes = 4000;

  struct Peer {
    ProcessId process;
    bool on_this_host = false;
    int world_rank = 0;
    std::int64_t left_ns = 0;     ///< when it said that it destroys its group; 0: it has not
    std::int64_t problem_ns = 0;  ///< since when the transport or the watch know of one; 0: they do not
    std::uint64_t heard = 0;      ///< calls it is known to have entered
    std::int64_t stopped_since_ns = 0;
    std::array<CallRecord, kRemembered> recent;
  };

  // backend.cpp
  void introduce();
  void send_records(MessageWork& work);
  void progress() { progress(kWindow); }
  bool step(MessageWork& work);
  bool receive_records(MessageWork& work);
  void move_data(MessageWork& work);
  void move_broadcast(MessageWork& work);
  bool gathers_by_host(const PostedCall& call) const;
  void gather_by_host(MessageWork& work);
  void relay(MessageWork& work);
  /// Where the slice of `owner` goes.
  std::byte* gathered_slice(MessageWork& work, int owner) const;
  bool finish(MessageWork& work);
  std::vector<std::byte> take_scratch(std::size_t nbytes);
  void leave() noexcept;
  void give_up_requests() noexcept;

  // wait.cpp
  /// The same for something that depends on call `target` (next_sequence_: on everybody leaving), within the
  /// group's timeout.
  void block_until(const std::function<bool()>& done, std::uint64_t target);
  /// The call whose peers hold up call `target`, and those peers.
  Blocker blocker_of(std::uint64_t target) const;
  std::string problem_of(int peer, std::int64_t now_ns);
  /// Of a peer on another host.
  std::string problem_elsewhere(int peer, std::int64_t now_ns);
  /// Fails as the whole job has.
  void look_at_watch();
  void receive_notices();
  void receive_messages();
  void send_notice(int tag, const std::string& text) noexcept;
  void tell_failure() noexcept;
  /// Nothing more is written to memory of callers, who free it when they get an exception.
  void let_go() const noexcept;
  [[noreturn]] void throw_failure() const;
  [[noreturn]] void fail_group(const std::string& reason);
  std::string position_of(int rank) const;
  std::string recent_calls(int rank) const;
  MessageWork& work_at(std::uint64_t sequence) const { return *works_[sequence % kWindow]; }

  const std::shared_ptr<Messenger> messenger_;
  std::shared_ptr<RegionRegistry> registry_;
  std::vector<Peer> peers_;
  int ranks_per_host_ = 0;  ///< where each host has as many, which follow one another; else 0

  std::array<std::shared_ptr<MessageWork>, kWindow> works_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t data_sequence_ = 0;  ///< calls that are done here
  bool progressing_ = false;
  bool discarding_ = false;  ///< the group is being destroyed: results go nowhere
  std::vector<const void*> slices_;
  std::vector<std::vector<std::byte>> free_scratch_;

  std::array<std::int64_t, kChannels> next_tags_{};
  std::vector<WindowEnd*> windows_;  ///< null: gone
  std::unique_ptr<WindowMessage> message_ = std::make_unique<WindowMessage>();
  MessageHandle message_receive_ = 0;

  std::string failure_;  ///< empty: none
  mutable bool has_let_go_ = false;
  std::atomic<bool> has_failed_{false};  ///< what other threads may ask
  std::vector<char> notice_;
  MessageHandle notice_receive_ = 0;
  std::deque<std::string> sent_notices_;
  MessageRequests notice_sends_;
  WaitPolicy policy_;
  const pid_t pid_;
  const int exceptions_at_start_;
  LongWait long_wait_ = LongWait::from_environment();
  std::int64_t last_check_ns_ = 0;
};

}  // namespace zero::comm
