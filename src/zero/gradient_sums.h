#pragma once
// GradientSums: the sums of gradients of one accumulation window, by unit, of ShardedModel::sum_dtype. In memory, or in
// a scratch file and in memory only for the pieces that are visited.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/disk_states.h"
#include "storage/flat_buffer.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

class GradientSums {
 public:
  using Access = storage::StateStore::Access;
  /// `sums`: [piece.numel()], valid during the call.
  using Visit = c10::function_ref<void(Range piece, void* sums)>;

  virtual ~GradientSums() = default;

  /// Unit u, which had none, gets sums of its elements `held`. Local. Throws IoError.
  virtual void add_unit(int unit, Range held) = 0;
  /// What a unit's sums need before the first contribution of a window; their content is undefined. Local. Throws
  /// IoError when the system refuses memory.
  virtual void take(int unit) = 0;
  /// take() of all units, with sums of zero. Local. Throws IoError.
  virtual void take_zeros() = 0;
  /// The window is over: no unit's sums are wanted any more. Local. Throws IoError.
  virtual void release() = 0;

  /// Visits `range` of a unit, which it holds, from begin to end in pieces that end at multiples of layout::kBlockNumel
  /// or with the range. After take(). Local, one thread at a time. Throws IoError.
  virtual void visit(int unit, Range range, Access access, Visit visit) = 0;
  /// All sums of a unit, where they are always in memory while they have any; else null.
  virtual void* in_memory(int unit) const = 0;

  /// Nullopt without a disk.
  virtual std::optional<storage::DiskTraffic> disk_traffic() const { return std::nullopt; }
  /// Describes the disk, for the log; empty without one.
  virtual std::string disk_description() const { return {}; }
};

/// `held[u]`: the elements of unit u whose sums are kept; empty: none.
///
/// Where a rank sums its shards only, a unit's sums have memory from its first contribution to the end of the window.
/// It comes from the cache behind libtorch's allocator, at whose other end activations grow: as backward goes from unit
/// to unit, sums come into the place of activations that are no longer needed, and a step of one micro-batch needs
/// hardly more than the larger of the two. The ledger shows all of it from the beginning, and in use what a window
/// holds. `copied_by_device`: that is not so, and an accelerator copies from them beside the host.
std::unique_ptr<GradientSums> make_sums_in_memory(ShardedModel& model, storage::Ledger& ledger,
                                                  const std::vector<Range>& held, bool copied_by_device = false);

/// In one file of this process (storage/disk_states.h); of `disk.cuts` only slot_numel counts, as the most. A window's
/// first contribution to a piece reads nothing, each further one reads and writes it, and what a window has used is not
/// written. `bucket_numel`: contributions come in layout::bucket_ranges() of it.
std::unique_ptr<GradientSums> make_sums_on_disk(ShardedModel& model, storage::Ledger& ledger,
                                                const std::vector<Range>& held, storage::DiskOptions disk,
                                                std::int64_t bucket_numel);

}  // namespace zero::sharding
