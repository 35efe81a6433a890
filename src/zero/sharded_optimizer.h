#pragma once
// ShardedOptimizer: fp32 master weights and Adam states of the ranges this rank updates, and the fused
// update of all of them.
//
// Master weights are kept in one of three ways, the same bits in each:
//   the parameters themselves   fp32 parameters that this rank writes        0 bytes
//   16-bit remainders           bf16 parameters that this rank writes (CPU)  2 bytes
//   fp32                        else                                         4 bytes
#include <vector>

#include "optim/kernels.h"
#include "zero/parameter_store.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

/// Hyper-parameters of the parameters that name it; the learning rate is passed at every update.
struct OptimizerGroup {
  optim::AdamHyper hyper;
};

struct OptimizerOptions {
  std::vector<OptimizerGroup> groups;            ///< at least one
  std::vector<int> group_of_parameter;           ///< by parameter
  std::int64_t sub_group_numel = 1'000'000'000;  ///< most elements updated in one piece
};

class ShardedOptimizer {
 public:
  ShardedOptimizer(ShardedModel& model, ParameterStore& store, storage::Ledger& ledger,
                   OptimizerOptions options);

  /// The part of a trainable `unit` this rank updates.
  Range update_range(int unit) const;

  /// Sets master weights (and the store's low-precision values) of `unit` from its full fp32 values [U].
  /// Also for frozen units, which have no master. Local.
  void load(int unit, const at::Tensor& whole);
  /// As load, for elements [range) of the unit; `values` [range.numel()].
  void load_range(int unit, Range range, const at::Tensor& values);

  /// Updates every range from its accumulated gradient; `gradient_of(unit)` is fp32 [update_range].
  /// `lr_scale[g]`: learning rate of group g. Local; other ranks see it after store.publish().
  void update(const class GradientReducer& reducer, const std::vector<double>& lr, double gradient_scale);

  /// The same for one part of update_range(unit), `gradient` [range.numel()]; end_step() when all parts were
  /// updated.
  void update_part(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                   double gradient_scale);
  void end_step() { ++steps_; }

  /// A copy of this rank's low-precision values in `range`, for refresh(). Local.
  at::Tensor low_values(int unit, Range range) const;
  /// After somebody may have written low-precision values directly, while the unit is pinned: master weights
  /// follow where they differ from `before`, low_values() of that range. Local.
  void refresh(int unit, Range range, const at::Tensor& before);

  /// fp32 views over this rank's part of `range`; empty when there is none.
  at::Tensor exp_avg_view(int unit, Range range) const;
  at::Tensor exp_avg_sq_view(int unit, Range range) const;
  /// The same of the master weights; undefined also where they are not in memory as fp32.
  at::Tensor master_view(int unit, Range range) const;
  /// Master weights of `range`, which lies in update_range(unit): a view or a copy.
  at::Tensor master_values(int unit, Range range) const;
  void copy_master(int unit, Range range, float* out) const;

  /// After master weights were written through master_view: the store's low-precision values follow. Local.
  void low_from_master(int unit);

  /// Updates so far: Adam's bias correction.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  /// A run of elements with one set of hyper-parameters.
  struct Segment {
    int group;
    Range range;  ///< in the unit
  };

  enum class Masters : std::uint8_t { kParameters, kRemainders, kFloat };

  Masters choose_masters() const;
  at::Tensor state_view(const storage::FlatBuffer& buffer, int unit, Range range) const;
  /// Bits of low-precision values this rank writes, and of their remainders.
  std::uint16_t* low_bits(int unit, Range range) const;
  std::uint16_t* remainder_bits(int unit, Range range) const;
  /// bf16 parameters from fp32 values, by the rule of optim/kernels.h.
  void round_to_low(const at::Tensor& values, at::Tensor low) const;
  void make_segments();
  /// Calls `update(piece, writes, hyper)` for what of `range` has one set of hyper-parameters, is at most a
  /// sub-group, and whose low-precision values this rank writes or not. Allocates nothing.
  template <class Update>
  void for_each_piece(int unit, Range range, const std::vector<double>& lr, double gradient_scale,
                      Update update) const;
  /// `gradient`: of `range`. Allocates nothing.
  void update_on_host(int unit, Range range, const float* gradient, const std::vector<double>& lr,
                      double gradient_scale);
  void update_on_device(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                        double gradient_scale);

  ShardedModel& model_;
  ParameterStore& store_;
  OptimizerOptions options_;
  std::vector<std::int64_t> offsets_;           ///< by unit, into the state buffers
  std::vector<std::vector<Segment>> segments_;  ///< by unit
  Masters masters_ = Masters::kFloat;
  storage::FlatBuffer master_;  ///< fp32, or 16-bit remainders as bf16
  storage::FlatBuffer exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace zero::sharding
