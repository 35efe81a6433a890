#pragma once
// What the boards and windows of all backends have in common: arguments, locking, counters, works and waiting.
// A backend adds how it sees that its peers have come, and how it gets at their bytes.
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backend.h"
#include "comm/transport.h"

namespace zero::comm {

/// The parcels of one board or window, as all ranks see them.
struct ParcelTable {
  std::string label;
  DType dtype = DType::kByte;
  std::vector<Parcel> parcels;
  std::vector<std::vector<std::size_t>> offsets;  ///< [parcels][N + 1] bytes up to each rank's slice

  std::size_t size() const { return parcels.size(); }
  std::size_t slice_offset(int parcel, int rank) const {
    return offsets[static_cast<std::size_t>(parcel)][static_cast<std::size_t>(rank)];
  }
  std::size_t slice_nbytes(int parcel, int rank) const {
    return slice_offset(parcel, rank + 1) - slice_offset(parcel, rank);
  }
  std::size_t nbytes(int parcel) const { return offsets[static_cast<std::size_t>(parcel)].back(); }
  std::int64_t numel(int parcel) const { return static_cast<std::int64_t>(nbytes(parcel) / element_nbytes(dtype)); }
  /// `parcel "bucket 7" (4096 bf16)`.
  std::string text(int parcel) const;
  /// `post 3 of parcel "bucket 7" (4096 bf16) on exchange board "gradients"`.
  std::string post_text(int parcel, std::int64_t number) const;
  /// Throws ConfigError unless there is such a parcel and `pointer` is not null where it holds something.
  void check(std::string_view function, int parcel, const void* pointer) const;
};

/// Counts a parcel that this rank gives to the others, or gets from them. Local.
void count_exchange(Backend& backend, const ParcelTable& table, int parcel);
void count_fetch(Backend& backend, const ParcelTable& table, int parcel);

class HostedBoard;
class HostedWindow;

/// A post of a parcel.
class BoardWork : public MovedWork {
 public:
  BoardWork(HostedBoard& board, int parcel);
  void start() override {}
  void chain(std::shared_ptr<WorkState>) override;

  const int parcel;
  std::int64_t number = 0;  ///< from 1
  const std::byte* in = nullptr;
  /// The peers looked at so far, from the one behind this rank: they have come, then: they have left.
  int peers_seen = 0;
  bool consumed = false;  ///< the sink has run

 protected:
  std::string text() const override;
  Blocker blocker() const override;
  CollectiveKind kind() const override { return CollectiveKind::kReduceScatter; }

 private:
  friend class HostedBoard;
  std::shared_ptr<const ParcelTable> table_;
  HostedBoard* board_;
  std::int64_t arrived_ns_ = 0;
};

class HostedBoard : public ExchangeBoard, public Transfers {
 public:
  Work post(int parcel, const void* in) final;
  bool wait_while_others_run(int parcel, Work& post, std::chrono::milliseconds limit) final;
  bool sees_waits() const final { return backend_->sees_waits(); }
  std::int64_t posts(int parcel) const final;
  bool abandon() final;
  int progress(int most) final;
  bool under_way() const final { return !under_way_.empty(); }
  std::string under_way_text() const final;
  std::string last_text() const final;

 protected:
  /// `slices`: so many the sink gets.
  HostedBoard(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table, BoardSink sink, int slices);
  /// Destructors of boards begin with it: a work that is not complete fails the group.
  void close() noexcept;

  virtual std::shared_ptr<BoardWork> new_work(int parcel) = 0;
  /// Makes this rank's input readable. Throws CommError, IoError; then the group has failed.
  virtual void enter(BoardWork& work) = 0;
  /// Everybody's slice for me can be read.
  virtual bool arrived(BoardWork& work) = 0;
  /// Where they can be read. Throws CommError.
  virtual void find_slices(BoardWork& work, std::span<const void*> slices) = 0;
  /// The sink has run: this rank needs nothing of its peers any more. False: the group has failed.
  virtual bool leave(BoardWork& work) = 0;
  /// Nobody reads this rank's input any more.
  virtual bool released(BoardWork& work) = 0;
  /// Tells the peers that this rank posts no more. False: they cannot be told.
  virtual bool announce_abandoned() { return false; }
  /// Some peer will never post it, so that nobody reads anybody's input of it.
  virtual bool hopeless(const BoardWork&) const { return false; }
  virtual Blocker blocker_of(const BoardWork& work) const = 0;
  /// What a post of the parcel moves, in the backend's counters.
  virtual void count(int parcel) { count_exchange(*backend_, *table_, parcel); }

  Backend& backend() const { return *backend_; }
  const ParcelTable& table() const { return *table_; }
  int rank() const { return backend_->rank(); }
  int size() const { return backend_->size(); }
  bool is_forked_child() const;
  static void add_moving_ns(BoardWork& work, std::int64_t ns) { work.add_moving_ns(ns); }

 private:
  friend class BoardWork;
  BoardWork& next_work(int parcel);
  bool step(BoardWork& work, bool may_consume);

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const ParcelTable> table_;
  const BoardSink sink_;
  /// Per parcel two that take turns: the caller holds the last one until he has the next.
  std::vector<std::array<std::shared_ptr<BoardWork>, 2>> works_;
  std::vector<std::int64_t> posts_;
  int last_parcel_ = -1;  ///< posted last
  bool abandoned_ = false;
  std::vector<BoardWork*> under_way_;  ///< in the order of the posts
  std::vector<const void*> slices_;
  const int pid_;
  const int exceptions_at_start_;
};

/// A fetch of a parcel.
class FetchWork : public MovedWork {
 public:
  explicit FetchWork(HostedWindow& window);
  void start() override {}
  void chain(std::shared_ptr<WorkState>) override;

  int parcel = 0;
  std::byte* out = nullptr;
  std::uint64_t version = 0;  ///< at least so many publish() of every owner
  int peers_seen = 0;         ///< as in BoardWork

 protected:
  std::string text() const override;
  Blocker blocker() const override;
  CollectiveKind kind() const override { return CollectiveKind::kAllGather; }

 private:
  friend class HostedWindow;
  std::shared_ptr<const ParcelTable> table_;
  HostedWindow* window_;
  std::string for_what_;
};

class HostedWindow : public ShardWindow, public Transfers {
 public:
  Work fetch(int parcel, void* out, std::string_view for_what) final;
  void publish() final;
  bool one_sided() const final { return true; }
  int progress(int most) final;
  bool under_way() const override { return !under_way_.empty(); }
  std::string under_way_text() const final;
  std::string last_text() const final;

 protected:
  HostedWindow(std::shared_ptr<Backend> backend, std::shared_ptr<const ParcelTable> table,
               std::span<const void* const> mine);
  /// Destructors of windows begin with it: waits until the windows of all ranks go, so that a rank that still
  /// fetches finds this rank's slices. A fetch that is not complete fails the group. While an exception
  /// unwinds the stack nobody is waited for.
  void close() noexcept;

  virtual std::shared_ptr<FetchWork> new_work() = 0;
  /// Asks the owners, where they have to be asked.
  virtual void ask(FetchWork&) {}
  /// Copies the slices of the others if that can be done now. False: not yet, or the group has failed.
  virtual bool move(FetchWork& work) = 0;
  /// Does what peers have asked for.
  virtual void serve() {}
  virtual void announce(std::uint64_t version) = 0;
  /// How far the window of a rank is: closing it still serves the others, gone it does not.
  enum class State : std::uint8_t { kOpen, kClosing, kGone };
  virtual void announce(State state) = 0;
  virtual State state_of(int rank) const = 0;
  /// Nothing of this rank is on its way to the others.
  virtual bool served() { return true; }
  virtual Blocker blocker_of(const FetchWork& work) const = 0;
  /// Fails the group: `owner` will not give its slice of `work`. Throws CommError.
  [[noreturn]] void fail_fetch(const FetchWork& work, int owner);
  /// As that, where some owner is gone.
  void check_owners(const FetchWork& work);
  void copy_my_slice(const FetchWork& work) const;
  static void add_moving_ns(FetchWork& work, std::int64_t ns) { work.add_moving_ns(ns); }

  Backend& backend() const { return *backend_; }
  const ParcelTable& table() const { return *table_; }
  int rank() const { return backend_->rank(); }
  int size() const { return backend_->size(); }
  const std::byte* my_slice(int parcel) const { return mine_[static_cast<std::size_t>(parcel)]; }
  std::uint64_t version() const { return version_; }
  bool is_forked_child() const;

 private:
  friend class FetchWork;
  FetchWork& next_work();
  /// Whose windows are open.
  std::vector<int> open_ranks() const;

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<const ParcelTable> table_;
  std::vector<const std::byte*> mine_;
  std::uint64_t version_ = 0;
  std::vector<std::shared_ptr<FetchWork>> works_;  ///< reused
  std::vector<FetchWork*> under_way_;              ///< in the order of the fetches
  const FetchWork* last_ = nullptr;
  const int pid_;
  const int exceptions_at_start_;
};

}  // namespace zero::comm
