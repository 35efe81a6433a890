#pragma once
// UnitGatherer: makes units whole from the shards of all ranks, in buffers of ShardedModel::device's memory. A copying
// store decides when (layout/gather_schedule.h); a gatherer carries it out, and owns the ShardStore of this rank's
// shards.
#include <memory>
#include <string_view>
#include <vector>

#include "offload/disk_store.h"
#include "offload/shard_store.h"
#include "sharding/plan/sharding_plan.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

/// One thread at a time. Functions that are not marked are local.
class UnitGatherer {
 public:
  virtual ~UnitGatherer() = default;

  /// One column: the parameters of this rank's shards. Nobody writes there while a unit is gathered.
  virtual offload::ShardStore& shards() = 0;

  /// Begins to make a unit whole, for `for_what`. Where its values will be, [U]; valid until drop().
  virtual void* gather(int unit, std::string_view for_what) = 0;
  /// Returns when it is whole: the seconds in which its values moved.
  virtual double wait(int unit) = 0;
  /// Nobody reads it any more. It is whole.
  virtual void drop(int unit) = 0;
  /// Elements that a gather of the unit moves, as the communication report counts them.
  struct Moved {
    std::int64_t received_numel = 0;   ///< from other ranks
    std::int64_t copied_numel = 0;     ///< from this rank's shard
    std::int64_t received_nbytes = 0;  ///< as they are sent
  };
  virtual Moved moved(int unit) const = 0;

  /// A whole unit gets the very values of its shards until end_exact(): a gatherer may round what it moves.
  virtual Moved make_exact(int unit) {
    (void)unit;
    return {};
  }
  virtual Moved end_exact(int unit) {
    (void)unit;
    return {};
  }
  /// Moves on what is under way.
  virtual void progress() {}

  /// *Called equally often on all ranks.* Shards were written, those of units that are not trained only if
  /// `frozen_too`: units that are gathered from here on have the new values. No unit is gathered now.
  virtual void publish(bool frozen_too) = 0;
  /// The same where units are gathered, and what was written is in their memory, too.
  virtual void publish_gathered() = 0;

  /// False if gathers are calls that all ranks make in the same order, as comm::ShardWindow::one_sided().
  virtual bool one_sided() const { return true; }
};

/// What shards of parameters are kept in.
inline offload::StoreColumn parameter_column(const ShardedModel& model) {
  return {"parameters", static_cast<std::int64_t>(element_nbytes(model.param_dtype)), 1, MemoryKind::kParameters};
}

/// Of shards in memory, whose other ranks' parts a comm::ShardWindow fetches. *Collective.*
std::unique_ptr<UnitGatherer> make_window_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                   const std::vector<bool>& resident);

/// As make_window_gatherer(), of values that are quantised. *Collective.*
std::unique_ptr<UnitGatherer> make_quantized_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                      const std::vector<bool>& resident, const GatherForm& form);

/// Of shards in a file of each owner, read into memory that the ranks of the host share: each part of a unit is read
/// once for all of them, by its owner where that comes in time, else by who needs it. All ranks are on one host.
/// `disk.cuts` says how a shard is cut into parts. *Collective.* Throws IoError on every rank.
std::unique_ptr<UnitGatherer> make_disk_gatherer(ShardedModel& model, storage::Ledger& ledger,
                                                 const std::vector<bool>& resident, const offload::DiskOptions& disk);

}  // namespace zero::sharding
