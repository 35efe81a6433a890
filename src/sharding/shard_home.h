#pragma once
// ShardHome: where the shards of units are that are not always whole, and how a unit is made whole from them. The
// copying store decides when (layout/gather_schedule.h); a home carries it out.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/disk_states.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

/// One thread at a time. Functions that are not marked are local.
class ShardHome {
 public:
  virtual ~ShardHome() = default;

  /// As ParameterStore::visit and in_memory, of a part of this rank's shard.
  using Access = offload::StateStore::Access;
  virtual void visit(int unit, Range range, Access access, c10::function_ref<void(Range piece, void* low)> lease) = 0;
  virtual void* in_memory(int unit, Range range) = 0;

  /// Begins to make a unit whole, for `for_what`. Where its values will be, [U]; valid until drop().
  virtual void* gather(int unit, std::string_view for_what) = 0;
  /// Returns when it is whole: the seconds in which its values moved.
  virtual double wait(int unit) = 0;
  /// Nobody reads it any more. It is whole.
  virtual void drop(int unit) = 0;
  /// Moves on what is under way.
  virtual void progress() {}

  /// *Called equally often on all ranks.* Shards were written, those of units that are not trained only if
  /// `frozen_too`: units that are gathered from here on have the new values. No unit is gathered now.
  virtual void publish(bool frozen_too) = 0;
  /// The same where units are gathered, and what was written is in their memory, too.
  virtual void publish_gathered() = 0;

  /// True if units are always whole in memory that all ranks share, where visit_whole() says: gathering takes no time,
  /// and what one rank writes all see.
  virtual bool always_whole() const { return false; }
  /// Visits `range` of a unit from begin to end, if always_whole(); with in_one_piece(), in the place that in_memory()
  /// gives for any range.
  virtual void visit_whole(int unit, Range range, c10::function_ref<void(Range piece, void* low)> visit) {
    visit(range, in_memory(unit, range));
  }
  virtual bool in_one_piece() const { return true; }
  /// False if gathers are calls that all ranks must make in the same order.
  virtual bool one_sided() const { return true; }
  /// Whether values come from other ranks, as the communication report counts them.
  virtual bool moves_between_ranks() const { return true; }
  /// As ParameterStore::disk_traffic and disk_description.
  virtual std::optional<offload::DiskTraffic> disk_traffic() const { return std::nullopt; }
  virtual std::string disk_description() const { return {}; }
};

/// In memory of the owners. *Collective.*
std::unique_ptr<ShardHome> make_memory_shards(ShardedModel& model, storage::Ledger& ledger,
                                              const std::vector<bool>& resident);

/// Once on the host, in memory that all its ranks share, of all units. *Collective.*
std::unique_ptr<ShardHome> make_node_shared_shards(ShardedModel& model, storage::Ledger& ledger);

/// In the owners' memory, of the device that also has the module, where all ranks of the host read them in place: of
/// all units. *Collective.*
std::unique_ptr<ShardHome> make_peer_shards(ShardedModel& model, storage::Ledger& ledger);

/// In a file of each owner, read into memory that the ranks of the host share: each part of a unit is read once for all
/// of them, by its owner where that comes in time, else by who needs it. All ranks are on one host. `disk.cuts` says
/// how a shard is cut into parts. *Collective.* Throws IoError on every rank.
std::unique_ptr<ShardHome> make_disk_shards(ShardedModel& model, storage::Ledger& ledger,
                                            const std::vector<bool>& resident, const offload::DiskOptions& disk);

}  // namespace zero::sharding
