#pragma once
// GradientSums: the sums of gradients of one accumulation window, by unit, of ShardedModel::sum_dtype.
//
// Where a rank sums its shards only, a unit's sums have memory from its first contribution to the end of the
// window. It comes from the cache behind libtorch's allocator, at whose other end activations grow: as
// backward goes from unit to unit, sums come into the place of activations that are no longer needed, and a
// step of one micro-batch needs hardly more than the larger of the two.
#include <vector>

#include "storage/flat_buffer.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

class GradientSums {
 public:
  /// `numel[u]`: of unit u; 0 where there are none. The ledger shows all of it from here on, and in use what
  /// a window holds.
  GradientSums(ShardedModel& model, storage::Ledger& ledger, std::vector<std::int64_t> numel);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  /// Unit u, which had none, gets sums of `numel` elements. Local.
  void add_unit(int unit, std::int64_t numel);

  /// Memory for a unit's sums, of undefined content; nothing when it has some. Throws IoError when the system
  /// refuses.
  void take(int unit);
  /// The window is over: no unit's sums are wanted any more.
  void release();

  /// [numel[unit]], not owning. After take().
  at::Tensor view(int unit) const;
  void* data(int unit) const { return data_[unit]; }

 private:
  storage::FlatBuffer make_always(std::int64_t numel);
  std::int64_t total_numel() const;
  std::int64_t nbytes_of(std::int64_t numel) const {
    return numel * static_cast<std::int64_t>(element_nbytes(model_.sum_dtype));
  }

  ShardedModel& model_;
  storage::Ledger& ledger_;
  std::vector<std::int64_t> numel_;
  bool comes_and_goes_ = false;
  std::vector<storage::FlatBuffer> always_;  ///< of all units, where memory does not come and go
  std::vector<void*> data_;                  ///< by unit; null: none now
};

}  // namespace zero::sharding
