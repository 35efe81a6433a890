#pragma once
// GradientSums: the sums of gradients of one accumulation window, by unit, of ShardedModel::sum_dtype, or of a narrower
// dtype that has all their values. A ShardStore holds them.
#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/disk_store.h"
#include "offload/shard_store.h"
#include "sharding/sharded_model.h"

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
  using Access = offload::ShardStore::Access;
  /// `sums`: [piece.numel()], valid during the call.
  using Visit = c10::function_ref<void(Range piece, Sums sums)>;
  /// An empty store of one column of this dtype.
  using MakeStore = std::function<std::unique_ptr<offload::ShardStore>(DType dtype)>;

  /// `held[u]`: the elements of unit u whose sums are kept; empty: none. `piece_numel(u)`: contributions to unit u come
  /// in ranges that begin at multiples of it. Throws IoError.
  GradientSums(ShardedModel& model, const std::vector<Range>& held, DType dtype, MakeStore make_store,
               std::function<std::int64_t(int unit)> piece_numel);

  /// Of the sums there are now.
  DType dtype() const { return dtype_; }
  /// From here on they are of ShardedModel::sum_dtype, with the values that they have. Local, beside no visit. Throws
  /// IoError when the system refuses memory, and leaves them as they are.
  void widen();

  /// Unit u, which had none, gets sums of its elements `held`. Local. Throws IoError.
  void add_unit(int unit, Range held);
  /// What a unit's sums need before the first contribution of a window; their content is undefined. Local. Throws
  /// IoError when the system refuses memory.
  void take(int unit);
  /// take() of all units, with sums of zero. Local. Throws IoError.
  void take_zeros();
  /// The window is over: no unit's sums are wanted any more. Local. Throws IoError.
  void release();

  /// Visits `range` of a unit, which it holds, from begin to end in pieces that end at multiples of layout::kBlockNumel
  /// or with the range. After take(). Local, one thread at a time. Throws IoError.
  void visit(int unit, Range range, Access access, Visit visit);
  /// All sums of a unit, where they are in memory for as long as it has any; else null.
  void* in_memory(int unit) const;

  /// Nullopt without a disk.
  std::optional<offload::DiskTraffic> disk_traffic() const { return store_->disk_traffic(); }
  /// Describes the disk, for the log; empty without one.
  std::string disk_description() const { return store_->disk_description("sums of gradients"); }

 private:
  std::unique_ptr<offload::ShardStore> make(DType dtype) const;
  offload::StorePart part_of(int unit) const;

  ShardedModel& model_;
  std::vector<Range> held_;
  DType dtype_;
  const MakeStore make_store_;
  const std::function<std::int64_t(int unit)> piece_numel_;
  std::vector<bool> taken_;  ///< by unit: since the last release()
  std::unique_ptr<offload::ShardStore> store_;
};

struct SumsOptions {
  DType dtype = DType::kFloat32;  ///< of sums until they are widened: ShardedModel::sum_dtype, or one within it
  bool copied_by_device = false;  ///< an accelerator copies from them, or to them, beside the host
  /// In a file; of `cuts` only slot_numel counts, as the most. A window's first contribution to a piece reads nothing,
  /// each further one reads and writes it, and what a window has used is not written.
  std::optional<offload::DiskOptions> disk;
  std::int64_t bucket_numel = 0;  ///< contributions come in layout::bucket_ranges() of it
};

/// Where a rank sums its shards only, in host memory, a unit's sums have memory from its first contribution to the end
/// of the window: as backward goes from unit to unit, they take the place of activations that are no longer needed,
/// and a step of one micro-batch needs hardly more than the larger of the two. Not where an accelerator copies. Throws
/// IoError.
std::unique_ptr<GradientSums> make_sums(ShardedModel& model, storage::Ledger& ledger, const std::vector<Range>& held,
                                        const SumsOptions& options);

}  // namespace zero::sharding
