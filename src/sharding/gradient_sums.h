#pragma once
// GradientSums: the sums of gradients of one accumulation window, by unit, of ShardedModel::sum_dtype, or of a narrower
// dtype that has all their values. In memory, or in a scratch file and in memory only for the pieces that are visited.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/disk_states.h"
#include "sharding/sharded_model.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {

struct Sums {
  void* data;  ///< memory of ShardedModel::device
  DType dtype;

  Sums from(std::int64_t element) const {
    return {static_cast<char*>(data) + element * static_cast<std::int64_t>(element_nbytes(dtype)), dtype};
  }
};

class GradientSums {
 public:
  using Access = offload::StateStore::Access;
  /// `sums`: [piece.numel()], valid during the call.
  using Visit = c10::function_ref<void(Range piece, Sums sums)>;

  virtual ~GradientSums() = default;

  /// Of the sums there are now.
  virtual DType dtype() const = 0;
  /// From here on they are of ShardedModel::sum_dtype, with the values that they have. Local, beside no visit. Throws
  /// IoError when the system refuses memory, and leaves them as they are.
  virtual void widen() = 0;

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
  virtual std::optional<offload::DiskTraffic> disk_traffic() const { return std::nullopt; }
  /// Describes the disk, for the log; empty without one.
  virtual std::string disk_description() const { return {}; }
};

struct MemoryForSums {
  DType dtype = DType::kFloat32;  ///< of sums until they are widened: ShardedModel::sum_dtype, or one within it
  bool copied_by_device = false;  ///< an accelerator copies from them, or to them, beside the host
};

/// `held[u]`: the elements of unit u whose sums are kept; empty: none.
///
/// Where a rank sums its shards only, a unit's sums have memory from its first contribution to the end of the window.
/// It comes from the cache behind libtorch's allocator, at whose other end activations grow: as backward goes from unit
/// to unit, sums come into the place of activations that are no longer needed, and a step of one micro-batch needs
/// hardly more than the larger of the two. The ledger shows all of it from the beginning, and in use what a window
/// holds. That is not so where an accelerator copies.
std::unique_ptr<GradientSums> make_sums_in_memory(ShardedModel& model, storage::Ledger& ledger,
                                                  const std::vector<Range>& held, MemoryForSums memory);

/// In one file of this process (offload/disk_states.h); of `disk.cuts` only slot_numel counts, as the most. A window's
/// first contribution to a piece reads nothing, each further one reads and writes it, and what a window has used is not
/// written. `bucket_numel`: contributions come in layout::bucket_ranges() of it.
std::unique_ptr<GradientSums> make_sums_on_disk(ShardedModel& model, storage::Ledger& ledger,
                                                const std::vector<Range>& held, offload::DiskOptions disk,
                                                std::int64_t bucket_numel);

}  // namespace zero::sharding
