#pragma once
// How the shards of an engine move between its ranks: matched by what they are, not by the order of calls.
//
// A group's collectives must be entered by all ranks in one order. What a model does need not be in one
// order: ranks route their data through other experts, unroll other lengths, evaluate alone. So gradients and
// parameters do not travel as collectives of the group:
//
//   ExchangeBoard  a fixed list of parcels (buckets of gradients). The n-th post of a parcel on a rank meets
//                  the n-th post of it on every other rank, whatever came before, between or after.
//   ShardWindow    a fixed list of parcels (units of parameters), whose slices lie at their owners. A rank
//                  fetches a parcel when it needs it; nobody else has to do anything for that.
//
// Neither blocks the group's collectives, nor is blocked by them: whoever waits for one moves all. Over MPI
// an owner answers inside any call of its group, or in its progress thread.
// One thread at a time uses a group with its boards and windows; data also moves in its progress thread.
//
// A ShardTransport is all that moves the shards of one engine: its boards and windows, and the two collectives that
// updated values need. What ranks tell each other besides (norms, flags, names) goes over a Group of host memory, so
// that another device needs a transport and nothing else.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::comm {

/// What moves together.
struct Parcel {
  std::string label;                 ///< in errors and in the flight recorder, whole
  std::vector<std::int64_t> counts;  ///< [N] elements of each rank's slice
};

class ExchangeBoard {
 public:
  /// Called once for every post of `parcel`, with one pointer per rank, in rank order: that rank's slice for
  /// me, [counts[rank()]] elements, valid during the call. As ConsumeSlices: from test(), wait(), other calls
  /// of the group, or its progress thread.
  using Sink = std::function<void(int parcel, std::span<const void* const> slices)>;

  virtual ~ExchangeBoard() = default;

  /// *Local.* Gives `in`, [sum(counts)] elements of all ranks' slices one after the other, to the ranks: read
  /// in place where it lies in Group::allocate() memory. `in` may be overwritten when the work is complete; a
  /// parcel is not posted again before that. Allocates nothing once the parcel has been posted twice (and,
  /// from private memory, staged). Throws CommError once the group has failed, ConfigError; in a group of one
  /// also what the sink throws.
  virtual Work post(int parcel, const void* in) = 0;

  /// *Local.* How often this rank has posted `parcel`.
  virtual std::int64_t posts(int parcel) const = 0;
};

/// *Collective.* `parcels` and `dtype` must be the same on all ranks: CommError names the first difference.
/// The group lives as long as the board. A rank whose board goes while a work is not complete fails the
/// group.
std::shared_ptr<ExchangeBoard> make_exchange_board(Group& group, std::string label, std::vector<Parcel> parcels,
                                                   DType dtype, ExchangeBoard::Sink sink);

class ShardWindow {
 public:
  virtual ~ShardWindow() = default;

  /// *Local.* Begins to copy all ranks' slices of `parcel`, one after the other, into `out`
  /// ([sum(counts)] elements): those of at least as many publish() as this rank has called. `for_what` is
  /// what the caller needs it for, in errors. Allocates nothing beyond the works under way at a time. Throws
  /// CommError, ConfigError.
  virtual Work fetch(int parcel, void* out, std::string_view for_what) = 0;

  /// *Local, but called equally often on all ranks.* This rank's slices have new values: they were written
  /// after a collective that every rank entered when its fetches of the old ones were complete.
  virtual void publish() = 0;

  /// False where a fetch needs its counterpart on all ranks after all, in the same order on each (a transport
  /// that cannot read what its peers do not send).
  virtual bool one_sided() const = 0;
};

/// *Collective.* `mine[p]`: where this rank's slice of parcel p lies, in memory of Group::allocate() that
/// outlives the window; may be null where the slice is empty. Throws CommError, IoError, ConfigError.
/// The window's destructor waits until the windows of all ranks go, and serves them meanwhile, so that one
/// rank may still fetch when the others are at their end; not while an exception unwinds the stack. The group
/// lives as long as the window.
std::shared_ptr<ShardWindow> make_shard_window(Group& group, std::string label, std::vector<Parcel> parcels,
                                               DType dtype, std::vector<const void*> mine);

/// The ranks are those of the engine's data-parallel group, in its order. Pointers are to memory of the transport's
/// device; of host memory anything will do. One thread at a time.
class ShardTransport {
 public:
  virtual ~ShardTransport() = default;

  /// *Collective.* As make_exchange_board(); a sink runs where the transport's work is done: on a device, in its
  /// stream order.
  virtual std::shared_ptr<ExchangeBoard> make_exchange_board(std::string label, std::vector<Parcel> parcels,
                                                             DType dtype, ExchangeBoard::Sink sink) = 0;
  /// *Collective.* As make_shard_window().
  virtual std::shared_ptr<ShardWindow> make_shard_window(std::string label, std::vector<Parcel> parcels, DType dtype,
                                                         std::vector<const void*> mine) = 0;
  /// *Collective.* As Group::all_gather(), Group::broadcast(). When the work is complete, the caller may read; on a
  /// device, its current stream may.
  virtual Work all_gather(const void* in, void* out, std::span<const std::int64_t> counts, DType dtype,
                          const CollectiveOptions& options) = 0;
  virtual Work broadcast(void* inout, std::int64_t numel, DType dtype, int root, const CollectiveOptions& options) = 0;
  /// *Local.* Memory that other ranks read in place where the transport can; as Group::allocate().
  virtual SharedMemory allocate(std::size_t nbytes) = 0;
};

/// Over the group's own backend, in host memory.
std::shared_ptr<ShardTransport> make_host_transport(Group group);

}  // namespace zero::comm
