#pragma once
// ShardedOptimizer: fp32 master weights and the states of a rule (optim/rule.h) of the ranges this rank updates, and
// the fused update of all of them. Where they live is the StateStore's matter.
//
// Master weights are kept in one of three ways, the same bits in each:
//   the parameters themselves   fp32 parameters that this rank writes        0 bytes
//   16-bit remainders           bf16 parameters that this rank writes (CPU)  2 bytes
//   fp32                        else                                         4 bytes
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "optim/rule.h"
#include "storage/state_store.h"
#include "zero/parameter_store.h"
#include "zero/sharded_model.h"

namespace zero::sharding {

/// Hyper-parameters of the parameters that name it; the learning rate is passed at every update.
struct OptimizerGroup {
  optim::Hyper hyper;
};

struct OptimizerOptions {
  const optim::Rule* rule = &optim::adam();
  std::vector<OptimizerGroup> groups;            ///< at least one
  std::vector<int> group_of_parameter;           ///< by parameter
  std::int64_t sub_group_numel = 1'000'000'000;  ///< most elements updated in one piece
  bool float_masters = false;                    ///< fp32 in memory of their own: somebody else updates them
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

  /// Units that were frozen get master weights, with the parameters' values, and fresh states. *Collective.*
  void add_units(std::span<const int> units);

  /// True for a parameter that the next update changes; others keep values, states and step counts.
  using IsActive = std::function<bool(int parameter)>;
  void choose_active(IsActive is_active) { is_active_ = std::move(is_active); }
  bool is_active(int parameter) const { return !is_active_ || is_active_(parameter); }

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

  const optim::Rule& rule() const { return *options_.rule; }
  /// The index of one of the rule's states by name; nothing when it has none of that name.
  std::optional<std::size_t> find_state(std::string_view name) const;
  /// Where a state of this rank's part of `range` lies: undefined when there is none, or it is not always in memory as
  /// fp32.
  at::Tensor state_in_memory(std::size_t state, int unit, Range range) const;
  /// A state of `range`, which lies in update_range(unit): a copy, fp32.
  at::Tensor state_values(std::size_t state, int unit, Range range) const;
  void set_state(std::size_t state, int unit, Range range, const at::Tensor& values);
  /// As state_in_memory, of the master weights.
  at::Tensor master_in_memory(int unit, Range range) const;
  /// Master weights of `range`, which lies in update_range(unit): a view or a copy.
  at::Tensor master_values(int unit, Range range) const;
  void copy_master(int unit, Range range, float* out) const;

  /// After master weights were written through master_in_memory(): the store's low-precision values follow. Local.
  void low_from_master(int unit);

  /// Updates so far of a parameter: Adam's bias correction. The same on every rank.
  std::int64_t steps_of(int parameter) const { return steps_[parameter]; }
  void set_steps_of(int parameter, std::int64_t steps) { steps_[parameter] = steps; }
  /// Of the parameter that was updated most often.
  std::int64_t steps() const;

  const std::vector<OptimizerGroup>& groups() const { return options_.groups; }
  int group_of(int parameter) const { return options_.group_of_parameter[parameter]; }
  /// For the updates from here on. Not during one. The rule has the states that it needs.
  void set_hyper(std::size_t group, const optim::Hyper& hyper);
  /// What a state of a parameter is before its first update.
  double initial_of(std::size_t state, int parameter) const;

 private:
  enum class Masters : std::uint8_t { kParameters, kRemainders, kFloat };
  static constexpr std::size_t kMaster = 0;  ///< its column, unless the parameters are the masters

  Masters choose_masters() const;
  std::vector<storage::StateColumn> columns() const;
  std::size_t column_of(std::size_t state) const { return state + (masters_ == Masters::kParameters ? 0 : 1); }
  void add_states(std::span<const int> units);
  /// Calls `run(range, group, steps)` for what of `range` is active and shares group and step count.
  template <class Run>
  void for_each_run(int unit, Range range, Run run) const;
  /// Calls `visit(piece, low, columns)` for pieces of `range`, at most a sub-group each; `low`: the low-precision
  /// values, null where this rank does not write them. Allocates nothing.
  template <class Visit>
  void for_each_piece(int unit, Range range, storage::StateStore::Access access, Visit visit) const;
  /// `gradient`: of `range`. Allocates nothing.
  void update_range_of(int unit, Range range, const float* gradient, const std::vector<double>& lr,
                       double gradient_scale);
  void update_piece(std::int64_t numel, void* low, std::span<void* const> columns, const float* gradient,
                    const optim::Hyper& hyper) const;
  at::Tensor view(const void* data, DType dtype, std::int64_t numel) const;

  ShardedModel& model_;
  ParameterStore& store_;
  OptimizerOptions options_;
  IsActive is_active_;
  Masters masters_ = Masters::kFloat;
  std::unique_ptr<storage::StateStore> states_;
  std::vector<std::int64_t> steps_;  ///< by parameter
};

}  // namespace zero::sharding
