#pragma once
// ShardedOptimizer: fp32 master weights and Adam states of the ranges this rank updates, and the fused
// update of all of them.
//
// Master weights are kept in one of three ways, the same bits in each:
//   the parameters themselves   fp32 parameters that this rank writes        0 bytes
//   16-bit remainders           bf16 parameters that this rank writes (CPU)  2 bytes
//   fp32                        else                                         4 bytes
#include <functional>
#include <memory>
#include <span>
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

  /// Units that were frozen get master weights, with the parameters' values, and states of zero. *Collective.*
  void add_units(std::span<const int> units);

  /// True for a parameter that the next update changes; others keep values, states and step counts.
  using IsActive = std::function<bool(int parameter)>;
  void choose_active(IsActive is_active) { is_active_ = std::move(is_active); }

  /// Updates every range from its accumulated gradient. `lr[g]`: learning rate of group g. Local; other ranks
  /// see it after store.publish().
  void update(const class GradientReducer& reducer, const std::vector<double>& lr, double gradient_scale);

  /// The same for one part of update_range(unit), `gradient` [range.numel()]; end_step() when all parts were
  /// updated.
  void update_part(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                   double gradient_scale);
  void end_step();

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

  /// Updates so far of a parameter: Adam's bias correction. The same on every rank.
  std::int64_t steps_of(int parameter) const { return steps_[parameter]; }
  void set_steps_of(int parameter, std::int64_t steps) { steps_[parameter] = steps; }
  /// Of the parameter that was updated most often.
  std::int64_t steps() const;

  const std::vector<OptimizerGroup>& groups() const { return options_.groups; }
  int group_of(int parameter) const { return options_.group_of_parameter[parameter]; }
  /// For the updates from here on. Not during one.
  void set_hyper(std::size_t group, const optim::AdamHyper& hyper) { options_.groups[group].hyper = hyper; }

 private:
  /// Master weights and states of some units.
  struct Chunk {
    storage::FlatBuffer master;  ///< fp32, or 16-bit remainders as bf16
    storage::FlatBuffer exp_avg, exp_avg_sq;
  };
  /// Where a unit's part begins.
  struct Place {
    Chunk* chunk = nullptr;  ///< null for frozen units
    std::int64_t offset = 0;
  };

  enum class Masters : std::uint8_t { kParameters, kRemainders, kFloat };

  Masters choose_masters() const;
  void make_chunk(std::span<const int> units);
  using Buffer = storage::FlatBuffer Chunk::*;
  /// Address of element range.begin of the unit.
  template <class T>
  T* state_data(Buffer buffer, int unit, Range range) const;
  at::Tensor state_view(Buffer buffer, int unit, Range range) const;
  /// Bits of low-precision values this rank writes, and of their remainders.
  std::uint16_t* low_bits(int unit, Range range) const;
  std::uint16_t* remainder_bits(int unit, Range range) const;
  /// bf16 parameters from fp32 values, by the rule of optim/kernels.h.
  void round_to_low(const at::Tensor& values, at::Tensor low) const;
  /// Calls `run(range, group, steps)` for what of `range` is active and shares group and step count.
  template <class Run>
  void for_each_run(int unit, Range range, Run run) const;
  /// Calls `update(piece, writes, hyper)` for what of `range` is active, has one set of hyper-parameters, is at
  /// most a sub-group, and whose low-precision values this rank writes or not. Allocates nothing.
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
  storage::Ledger& ledger_;
  IsActive is_active_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Place> places_;  ///< by unit
  Masters masters_ = Masters::kFloat;
  std::vector<std::int64_t> steps_;  ///< by parameter
};

}  // namespace zero::sharding
