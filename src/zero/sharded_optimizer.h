#pragma once
// ShardedOptimizer: master weights and the states of rules (optim/rule.h) of the ranges this rank updates,
// and the fused update of all of them. Where they live is the StateStore's matter.
//
// Master weights are fp32, or of the 16 bits of the parameters, and kept in one of three ways, the same bits
// in each:
//   the parameters themselves   of the masters' dtype, which this rank writes                 0 bytes
//   16-bit remainders           fp32 masters of bf16 parameters that this rank writes (CPU)   2 bytes
//   a state of their own        else                                                          4 or 2 bytes
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "optim/rule.h"
#include "optim/whole_steps.h"
#include "storage/disk_states.h"
#include "storage/state_store.h"
#include "zero/parameter_store.h"
#include "zero/sharded_model.h"
#include "zero/whole_tensors.h"

namespace zero::sharding {

/// Hyper-parameters of the parameters that name it; the learning rate is passed at every update.
struct OptimizerGroup {
  optim::Hyper hyper;
  const optim::Rule* rule = &optim::adam();
};

struct OptimizerOptions {
  std::vector<OptimizerGroup> groups;            ///< at least one; states of one name are kept alike
  std::vector<int> group_of_parameter;           ///< by parameter; -1: none, it is not updated
  std::int64_t sub_group_numel = 1'000'000'000;  ///< about how many elements are updated in one piece
  DType master_dtype = DType::kFloat32;          ///< or the parameters'
  bool stochastic_rounding = false;              ///< of bf16 masters, with `seed`; in host memory
  std::uint64_t seed = 0;
  bool float_masters = false;     ///< fp32 in memory of their own: somebody else updates them
  std::int64_t bucket_numel = 0;  ///< update_part() is called with layout::bucket_ranges() of this; 0: only update() is
  /// Where masters and states live, unless in memory; its cuts follow from sub_group_numel.
  std::optional<storage::DiskOptions> disk;
};

class ShardedOptimizer {
 public:
  ShardedOptimizer(ShardedModel& model, ParameterStore& store, storage::Ledger& ledger, OptimizerOptions options);

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

  /// Updates every range from its accumulated gradient, which rules of two passes overwrite. `lr[g]`:
  /// learning rate of group g. Other ranks see it after store.publish(). Local, but *collective* with rules
  /// of two passes.
  void update(class GradientReducer& reducer, const std::vector<double>& lr, double gradient_scale);

  /// The same for one part of update_range(unit), `gradient` [range.numel()]; end_step() when all parts were
  /// updated. Not with rules of two passes.
  void update_part(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                   double gradient_scale);
  void end_step();

  /// A copy of this rank's low-precision values in `range`, for refresh(). Local.
  at::Tensor low_values(int unit, Range range) const;
  /// After somebody may have written low-precision values directly, while the unit is pinned: master weights
  /// follow where they differ from `before`, low_values() of that range. Local.
  void refresh(int unit, Range range, const at::Tensor& before);

  /// Of the first group's rule.
  std::string_view name() const { return options_.groups.front().rule->name; }
  /// The states of all groups, each name once: what indices below mean.
  const std::vector<optim::StateColumn>& states() const { return kept_; }
  /// The index of a state by name; nothing when no group has one of that name.
  std::optional<std::size_t> find_state(std::string_view name) const;
  bool has_state(std::size_t state, int parameter) const;
  /// Where a state of this rank's part of `range` lies: undefined when there is none, or it is not always in memory as
  /// fp32.
  at::Tensor state_in_memory(std::size_t state, int unit, Range range) const;
  /// A state of `range`, which lies in update_range(unit) and in parameters that have it: a copy, fp32.
  at::Tensor state_values(std::size_t state, int unit, Range range) const;
  /// The same into `out`, fp32 [range.numel()].
  void copy_state(std::size_t state, int unit, Range range, float* out) const;
  /// From fp32. `range` ends at a parameter's end or a multiple of layout::kBlockNumel.
  void set_state(std::size_t state, int unit, Range range, const at::Tensor& values);
  /// States of whole tensors: of a trainable parameter, by its rule. Each lies on one rank.
  std::vector<optim::TensorState> tensor_states(int parameter) const;
  int tensor_states_owner(int parameter) const { return whole_->owner(parameter); }
  /// fp32, of the state's shape: on the owner the state itself, elsewhere undefined.
  at::Tensor tensor_state(int parameter, std::string_view name) const;
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
  /// Between memory and the disk so far; nothing when there is none.
  std::optional<storage::DiskTraffic> disk_traffic() const;
  /// For the log; empty when there is none.
  std::string disk_description() const { return disk_ ? disk_->description() : std::string(); }

  const std::vector<OptimizerGroup>& groups() const { return options_.groups; }
  int group_of(int parameter) const { return options_.group_of_parameter[parameter]; }
  /// With dampening the first gradient of SGD is the momentum.
  bool next_update_overwrites_states(int parameter) const {
    const int group = group_of(parameter);
    return group >= 0 && steps_[parameter] == 0 && options_.groups[group].hyper.dampening != 0;
  }
  /// For the updates from here on. Not during one. The rule has the states that it needs.
  void set_hyper(std::size_t group, const optim::Hyper& hyper);
  /// What a state of a parameter is before its first update.
  double initial_of(std::size_t state, int parameter) const;

 private:
  enum class Masters : std::uint8_t { kParameters, kRemainders, kOwn };
  static constexpr std::size_t kMaster = 0;  ///< its column, unless the parameters are the masters

  Masters choose_masters() const;
  std::vector<storage::StateColumn> columns() const;
  void make_states();
  /// The master's alone, where it has one.
  std::uint32_t master_column() const { return masters_ == Masters::kParameters ? 0 : 1u << kMaster; }
  std::size_t column_of(std::size_t state) const { return state + (masters_ == Masters::kParameters ? 0 : 1); }
  const optim::Rule* rule_of(int parameter) const;  ///< null: none
  bool has_two_passes() const;
  void make_whole_tensors();
  void add_tensor_states(std::span<const int> units);
  std::vector<at::Tensor> held_tensor_states(int parameter) const;
  /// The second pass of parameters of rules that have one. *Collective.*
  void finish_directions(GradientReducer& reducer, const std::vector<double>& lr);
  void add_states(std::span<const int> units);
  /// Calls `run(range, group, steps)` for what of `range` is active and shares group and step count.
  template <class Run>
  void for_each_run(int unit, Range range, Run run) const;
  /// Calls `visit(piece, low, columns)` for pieces of `range`, at most a sub-group each; `low`: the low-precision
  /// values, null where this rank does not write them; `wanted`: the columns it looks at. Allocates nothing.
  template <class Visit>
  void for_each_piece(int unit, Range range, storage::StateStore::Access access, std::uint32_t wanted,
                      Visit visit) const;
  /// Adds the parameters' names to what the disk did.
  template <class Do>
  void with_names(int unit, Range range, Do act) const;
  void read_state(std::size_t column, int unit, Range range, void* out) const;
  void write_state(std::size_t column, int unit, Range range, const void* in);
  /// `gradient`: of `range`, of ShardedModel::sum_dtype. Allocates nothing.
  void update_range_of(int unit, Range range, const void* gradient, const std::vector<double>& lr,
                       double gradient_scale);
  void update_piece(const optim::Rule& rule, int unit, Range piece, void* low, std::span<void* const> columns,
                    const void* gradient, const optim::Hyper& hyper) const;
  at::Tensor view(const void* data, DType dtype, std::int64_t numel) const;
  at::Tensor empty(DType dtype, std::int64_t numel) const;

  ShardedModel& model_;
  ParameterStore& store_;
  OptimizerOptions options_;
  IsActive is_active_;
  Masters masters_ = Masters::kOwn;
  std::vector<optim::StateColumn> kept_;
  storage::Ledger& ledger_;
  std::unique_ptr<storage::StateStore> states_;
  const storage::DiskStates* disk_ = nullptr;                    ///< states_, where they are on one
  std::unique_ptr<WholeTensors> whole_;                          ///< where a rule has two passes
  std::vector<std::vector<storage::FlatBuffer>> tensor_states_;  ///< by parameter, of those this rank owns
  std::vector<std::int64_t> steps_;                              ///< by parameter
};

}  // namespace zero::sharding
