#pragma once
// Transfers of an engine's shards between its ranks, matched by parcel, not by the order of calls.
//
// All ranks must enter a group's collectives in one order. What a model needs may come in different orders: ranks route
// data through different experts, unroll different lengths, evaluate alone. So gradients and parameters do not travel
// as collectives of the group:
//
//   ExchangeBoard  a fixed list of parcels (buckets of gradients). The n-th post of a parcel on a rank meets
//                  the n-th post of it on every other rank, whatever came before, between or after.
//   ShardWindow    a fixed list of parcels (units of parameters), whose slices stay with their owners. A rank
//                  fetches a parcel when it needs it, without a call on any other rank.
//
// Neither blocks the group's collectives, nor is blocked by them: waiting for one progresses all. Over MPI an owner
// serves fetches inside any call of its group, or in its progress thread. One thread at a time uses a group with its
// boards and windows; data also moves in its progress thread.
//
// A ShardTransport moves all shards of one engine: it has the boards and windows, and the two collectives that publish
// updated values. Control messages between ranks (norms, flags, names) use a Group in host memory, so that another
// device needs only another transport.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::comm {

/// Data that is sent together.
struct Parcel {
  std::string label;                 ///< full label for errors and the flight recorder
  std::vector<std::int64_t> counts;  ///< [N] elements of each rank's slice
};

class ExchangeBoard {
 public:
  /// Called once for every post of `parcel`, with one pointer per rank, in rank order: the slice that rank sends to
  /// this one, [counts[rank()]] elements, valid during the call. Runs like ConsumeSlices: inside test(), wait() or
  /// other calls of the group, or in its progress thread.
  using Sink = std::function<void(int parcel, std::span<const void* const> slices)>;

  virtual ~ExchangeBoard() = default;

  /// *Local.* Sends `in`, [sum(counts)] elements, all ranks' slices concatenated; read in place if it lies in
  /// Group::allocate() memory. `in` may be overwritten once the work is complete, and the parcel may be posted again
  /// only then. Allocates nothing once the parcel has been posted twice (and, from private memory, staged). Throws
  /// CommError once the group has failed, ConfigError; in a group of one also what the sink throws.
  virtual Work post(int parcel, const void* in) = 0;

  /// *Local.* Waits for `post`, this rank's last one of `parcel`, at most for `limit`; where sees_waits(), only as long
  /// as some rank of the group does anything but wait for others. True if it is complete. Throws as Work::wait_for().
  virtual bool wait_while_others_run(int parcel, Work& post, std::chrono::milliseconds limit) {
    (void)parcel;
    return post.wait_for(limit);
  }
  /// *Local.* Ranks see of each other that they wait.
  virtual bool sees_waits() const { return false; }

  /// The sink gets a sum of each host (HostSums), not a slice of each rank.
  virtual bool sums_on_hosts() const { return false; }

  /// *Local.* The number of times this rank has posted `parcel`.
  virtual std::int64_t posts(int parcel) const = 0;

  /// *Local.* This rank posts no more. A post that some rank will never make is complete, without its sink, on the
  /// ranks that have abandoned the board; on the others it stays under way. False, and nothing is done, where ranks
  /// cannot tell each other so: then only further posts complete what is under way.
  virtual bool abandon() { return false; }
};

/// Sums that the ranks of a host make of what they send to another host: one goes there instead of a slice of each.
struct HostSums {
  int ranks = 0;                  ///< of each host, whose ranks follow one another; 0: nothing is added
  DType dtype = DType::kFloat32;  ///< of sums
  /// Adds the slices of a host's ranks, in rank order, [numel] each: `sum` is overwritten. Runs like a Sink.
  std::function<void(std::span<const void* const> slices, std::int64_t numel, void* sum)> add;
};

/// *Collective.* `parcels` and `dtype` must be the same on all ranks: CommError names the first difference. The board
/// keeps the group alive. Destroying a board with incomplete work fails the group. `sums` are made where the group
/// sends messages between such hosts: ExchangeBoard::sums_on_hosts().
std::shared_ptr<ExchangeBoard> make_exchange_board(Group& group, std::string label, std::vector<Parcel> parcels,
                                                   DType dtype, ExchangeBoard::Sink sink, HostSums sums = {});

/// *Local.* A rank that waits in one of these groups, for a call or a transfer, also moves what is under way in the
/// others: whom it waits for may wait for it there.
void move_together(std::span<const Group> groups);

class ShardWindow {
 public:
  virtual ~ShardWindow() = default;

  /// *Local.* Starts copying all ranks' slices of `parcel`, concatenated, into `out` ([sum(counts)] elements). Each
  /// slice is from after at least as many publish() calls of its owner as this rank has made. `for_what` names the
  /// purpose in errors. Allocates nothing beyond the works under way at a time. Throws CommError, ConfigError.
  virtual Work fetch(int parcel, void* out, std::string_view for_what) = 0;

  /// *Local, but called equally often on all ranks.* Announces new values of this rank's slices. The caller must have
  /// written them after a collective that every rank entered when its fetches of the old values were complete.
  virtual void publish() = 0;

  /// False if a fetch is in fact a call that all ranks must make in the same order (a transport that cannot read what
  /// its peers do not send).
  virtual bool one_sided() const = 0;
};

/// *Collective.* `mine[p]` points to this rank's slice of parcel p, in Group::allocate() memory that outlives the
/// window; null is allowed for an empty slice. Throws CommError, IoError, ConfigError. The window's destructor waits
/// until all ranks destroy their windows and serves fetches meanwhile, so that slower ranks can still fetch; not while
/// an exception unwinds the stack. The window keeps the group alive.
std::shared_ptr<ShardWindow> make_shard_window(Group& group, std::string label, std::vector<Parcel> parcels,
                                               DType dtype, std::vector<const void*> mine);

/// The ranks are those of the engine's data-parallel group, in its order. Pointers are to the transport's device
/// memory; for host memory, any pointer will do. One thread at a time.
class ShardTransport {
 public:
  virtual ~ShardTransport() = default;

  /// *Collective.* As make_exchange_board(). On a device, the sink runs in the transport's stream order, and must not
  /// wait for it: what is before it there may need other ranks, which may wait for this one.
  virtual std::shared_ptr<ExchangeBoard> make_exchange_board(std::string label, std::vector<Parcel> parcels,
                                                             DType dtype, ExchangeBoard::Sink sink) = 0;
  /// *Collective.* The same, where sums may be made on hosts.
  virtual std::shared_ptr<ExchangeBoard> make_summing_board(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                            ExchangeBoard::Sink sink, HostSums sums) {
    (void)sums;
    return make_exchange_board(std::move(label), std::move(parcels), dtype, std::move(sink));
  }
  /// *Collective.* As make_shard_window(). Not where memory is read in place: everyones().
  virtual std::shared_ptr<ShardWindow> make_shard_window(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                         std::vector<const void*> mine) = 0;
  /// *Collective.* As Group::all_gather(), Group::broadcast(). When the work is complete, the caller may read the
  /// result; on a device, its current stream may.
  virtual Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                          const CollectiveOptions& options) = 0;
  virtual Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) = 0;
  /// *Local.* Zero-filled memory that other ranks read in place where the transport can, as Group::allocate(). On a
  /// device it is of that device.
  virtual std::shared_ptr<void> allocate(std::size_t nbytes) = 0;
  /// *Collective.* `mine` is from allocate(): where, by rank, this rank may read and write what the ranks have passed,
  /// as long as the transport lives. Empty where the transport does not read in place.
  virtual std::vector<void*> everyones(void* mine) {
    (void)mine;
    return {};
  }
};

/// *Local.* Its data moves as messages, from and to any memory, and hardly between calls: MPI, UCX.
bool sends_messages(const Group& group);

/// Over the group's own backend, in host memory.
std::shared_ptr<ShardTransport> make_host_transport(Group group);

}  // namespace zero::comm
