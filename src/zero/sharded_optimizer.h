#pragma once
// ShardedOptimizer: fp32 master weights and Adam states of the ranges this rank updates, and the fused
// update of all of them.
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

  /// After somebody wrote low-precision values directly, while the unit is pinned: master weights follow
  /// where they no longer round to them. Local.
  void refresh(int unit, Range range);

  /// fp32 views over this rank's part of `range`; empty when there is none.
  at::Tensor master_view(int unit, Range range) const;
  at::Tensor exp_avg_view(int unit, Range range) const;
  at::Tensor exp_avg_sq_view(int unit, Range range) const;

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

  at::Tensor state_view(const storage::FlatBuffer& buffer, int unit, Range range) const;
  void make_segments();
  void update_segment(int unit, const Segment& segment, const optim::AdamHyper& hyper,
                      const at::Tensor& gradient);

  ShardedModel& model_;
  ParameterStore& store_;
  OptimizerOptions options_;
  std::vector<std::int64_t> offsets_;           ///< by unit, into the state buffers
  std::vector<std::vector<Segment>> segments_;  ///< by unit
  bool master_is_low_ = false;                  ///< fp32 parameters updated where they lie
  storage::FlatBuffer master_, exp_avg_, exp_avg_sq_;
  std::int64_t steps_ = 0;
};

}  // namespace zero::sharding
