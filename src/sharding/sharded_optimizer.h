#pragma once
// ShardedOptimizer: master weights and optimizer states (optim/rule.h) of the ranges that this rank updates, and their
// fused update. A ShardStore decides where they live.
//
// Master weights are fp32 or have the parameters' 16-bit dtype; optim/masters.h says how they are kept.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "layout/placement.h"
#include "offload/disk_store.h"
#include "offload/shard_store.h"
#include "offload/split_store.h"
#include "optim/masters.h"
#include "optim/rule.h"
#include "optim/whole_steps.h"
#include "sharding/device_updates.h"
#include "sharding/gradient_sums.h"
#include "sharding/parameter_store.h"
#include "sharding/sharded_model.h"
#include "sharding/whole_tensors.h"

namespace zero::sharding {

/// Hyper-parameters of the parameters assigned to the group; the learning rate is passed at every update.
struct OptimizerGroup {
  optim::Hyper hyper;
  const optim::Rule* rule = &optim::adam();
};

struct OptimizerOptions {
  std::vector<OptimizerGroup> groups;            ///< at least one; states of the same name share a column
  std::vector<int> group_of_parameter;           ///< by parameter; -1: not updated
  std::int64_t sub_group_numel = 1'000'000'000;  ///< approximate number of elements updated in one piece
  DType master_dtype = DType::kFloat32;          ///< or the parameters'
  bool stochastic_rounding = false;              ///< for bf16 masters in host memory; uses `seed`
  std::uint64_t seed = 0;
  bool float_masters = false;     ///< masters are separate fp32 states, updated elsewhere
  std::int64_t bucket_numel = 0;  ///< update_part() gets layout::bucket_ranges() of this; 0: only update() is called
  /// Where masters and states live on disk; not given: in memory. sub_group_numel determines its piece size.
  std::optional<offload::DiskOptions> disk;
  /// begin_update() or begin_try() may be called: there is memory for what an update makes of this rank's low-precision
  /// values. Needs sharded optimizer states.
  bool updates_late = false;
  /// Of masters and states. Split: those of some units are on the module's accelerator, which also updates them, while
  /// everything else is in host memory. Not with `disk`, two-pass rules, update_part() and begin_update(), and only
  /// where the device has kernels for the rules. Needs sums of gradients in memory.
  layout::Placement place = {};
  std::int64_t device_update_numel = 0;  ///< at most so many elements of these are copied at once
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

  /// Creates master weights with the parameters' values, and fresh states, for units that were frozen until now.
  /// *Collective.*
  void add_units(std::span<const int> units);

  /// True for a parameter that the next update changes; others keep values, states and step counts.
  using IsActive = std::function<bool(int parameter)>;
  void choose_active(IsActive is_active) { is_active_ = std::move(is_active); }
  bool is_active(int parameter) const { return !is_active_ || is_active_(parameter); }

  /// Updates every range from its accumulated gradient, which two-pass rules overwrite. `lr[g]`: learning rate of group
  /// g. Other ranks see the result after store.publish(). Local, but *collective* with two-pass rules.
  void update(class GradientReducer& reducer, const std::vector<double>& lr, double gradient_scale);

  /// The same for one part of update_range(unit), `gradient` [range.numel()] of any dtype that gradients have; call
  /// end_step() when all parts are updated. Not with two-pass rules.
  void update_part(int unit, Range range, const at::Tensor& gradient, const std::vector<double>& lr,
                   double gradient_scale);
  void end_step();

  /// update() in three parts, not with two-pass rules. run_update() may run in another thread, while this one does
  /// anything but call the optimizer's functions, write hyper-parameters apart; the store is read, and written only by
  /// end_update(). Local.
  void begin_update(const std::vector<double>& lr, double gradient_scale);
  void run_update(GradientSums& sums);
  void end_update();

  /// An update of some units that is then kept, or forgotten; where states are on a disk, of two places
  /// (offload::DiskOptions), and not with two-pass rules. Of units that are tried every parameter is updated.
  /// try_unit() may run in another thread as run_update() does. Local. Throw IoError.
  void begin_try(const std::vector<double>& lr, double gradient_scale);
  void try_unit(int unit, GradientSums& sums);
  /// True if these rates and this scale, and the groups and step counts of now, are those of the try.
  bool would_repeat(const std::vector<double>& lr, double gradient_scale) const;
  /// Updates those that were not `is_tried`, of them what is active, and keeps it all: as update() leaves it.
  void keep_try(GradientSums& sums, const std::function<bool(int unit)>& is_tried);
  void forget_try();

  /// A copy of this rank's low-precision values in `range`, for refresh(). Local.
  at::Tensor low_values(int unit, Range range) const;
  /// Call after low-precision values may have been written directly, while the unit is pinned: updates master weights
  /// where the values differ from `before`, the earlier low_values() of that range. Local.
  void refresh(int unit, Range range, const at::Tensor& before);

  /// Name of the first group's rule.
  std::string_view name() const { return options_.groups.front().rule->name; }
  /// The states of all groups, each name once. State indices below refer to it.
  const std::vector<optim::StateColumn>& states() const { return kept_; }
  /// The index of a state by name; nullopt if no group has such a state.
  std::optional<std::size_t> find_state(std::string_view name) const;
  bool has_state(std::size_t state, int parameter) const;
  /// A view of a state of this rank's part of `range`; undefined if there is none, or it is not always in memory as
  /// fp32.
  at::Tensor state_in_memory(std::size_t state, int unit, Range range) const;
  /// A copy of a state of `range`, fp32; `range` lies in update_range(unit) and in parameters that have the state.
  at::Tensor state_values(std::size_t state, int unit, Range range) const;
  /// The same into `out`, fp32 [range.numel()].
  void copy_state(std::size_t state, int unit, Range range, float* out) const;
  /// Sets a state from fp32 values. `range` must end at a parameter's end or a multiple of layout::kBlockNumel.
  void set_state(std::size_t state, int unit, Range range, const at::Tensor& values);
  /// The whole-tensor states that a trainable parameter's rule keeps. Each lies on one rank.
  std::vector<optim::TensorState> tensor_states(int parameter) const;
  int tensor_states_owner(int parameter) const { return whole_->owner(parameter); }
  /// A whole-tensor state, fp32, of the state's shape: on the owner the state itself, undefined on other ranks.
  at::Tensor tensor_state(int parameter, std::string_view name) const;
  /// As state_in_memory, for the master weights.
  at::Tensor master_in_memory(int unit, Range range) const;
  /// Master weights of `range`, which lies in update_range(unit): a view or a copy.
  at::Tensor master_values(int unit, Range range) const;
  void copy_master(int unit, Range range, float* out) const;

  /// Updates the store's low-precision values after master weights were written through master_in_memory(). Local.
  void low_from_master(int unit);

  /// Number of updates of a parameter so far, for Adam's bias correction. The same on every rank.
  std::int64_t steps_of(int parameter) const { return steps_[parameter]; }
  void set_steps_of(int parameter, std::int64_t steps) { steps_[parameter] = steps; }
  /// The number of updates of the parameter that was updated most often.
  std::int64_t steps() const;
  /// Moved to this rank so far to bring tensors together.
  std::int64_t whole_received_numel() const { return whole_ ? whole_->received_numel() : 0; }
  /// Traffic between memory and disk so far; nullopt without a disk.
  std::optional<offload::DiskTraffic> disk_traffic() const { return states_->disk_traffic(); }
  /// Describes the disk, for the log; empty without one.
  std::string disk_description() const { return states_->disk_description("optimizer states"); }

  const std::vector<OptimizerGroup>& groups() const { return options_.groups; }
  int group_of(int parameter) const { return options_.group_of_parameter[parameter]; }
  /// True before the first update of SGD with dampening, whose first gradient becomes the momentum.
  bool next_update_overwrites_states(int parameter) const {
    const int group = group_of(parameter);
    return group >= 0 && steps_[parameter] == 0 && options_.groups[group].hyper.dampening != 0;
  }
  /// Sets hyper-parameters for later updates. Not during an update. The rule must have the states they need.
  void set_hyper(std::size_t group, const optim::Hyper& hyper);
  /// The value of a parameter's state before its first update.
  double initial_of(std::size_t state, int parameter) const;

 private:
  using Masters = optim::Masters;
  static constexpr std::size_t kMaster = 0;  ///< the master's column, unless the parameters are the masters

  Masters choose_masters() const;
  std::vector<offload::StoreColumn> columns() const;
  void make_states();
  /// Mask of the master's column, if it has one.
  std::uint32_t master_column() const { return masters_ == Masters::kParameters ? 0 : 1u << kMaster; }
  std::size_t column_of(std::size_t state) const { return state + (masters_ == Masters::kParameters ? 0 : 1); }
  const optim::Rule* rule_of(int parameter) const;  ///< null: none
  bool has_two_passes() const;
  void make_whole_tensors();
  void add_tensor_states(std::span<const int> units);
  std::vector<at::Tensor> held_tensor_states(int parameter) const;
  /// The second pass, for parameters of two-pass rules. *Collective.*
  void finish_directions(GradientReducer& reducer, const std::vector<double>& lr);
  void add_states(std::span<const int> units);
  /// Calls `run(range, group, steps)` for each part of `range` that noted_ has in one group with one step count.
  template <class Run>
  void for_each_run(int unit, Range range, Run run) const;
  /// Calls `visit(piece, low, columns)` for pieces of `range`, each at most a sub-group. `low`: the low-precision
  /// values, null if this rank does not write them; `wanted`: the columns to visit. Allocates nothing.
  template <class Visit>
  void for_each_piece(int unit, Range range, offload::ShardStore::Access access, std::uint32_t wanted,
                      Visit visit) const;
  /// The same with another access to the low-precision values.
  template <class Visit>
  void for_each_piece(int unit, Range range, offload::ShardStore::Access access, offload::ShardStore::Access low_access,
                      std::uint32_t wanted, Visit visit) const;
  /// ParameterStore::visit, or in an update that has begun: what it makes of these values.
  void visit_low(int unit, Range range, offload::ShardStore::Access access, ParameterStore::Lease lease) const;
  /// Notes what the update that begins goes by: rates and scale, and which parameters of a unit it changes.
  void note_rates(const std::vector<double>& lr, double gradient_scale);
  void note_unit(int unit);
  void note_all_units();
  /// Runs `act` and adds the parameters' names to errors from the disk.
  template <class Do>
  void with_names(int unit, Range range, Do act) const;
  void read_state(std::size_t column, int unit, Range range, void* out) const;
  void write_state(std::size_t column, int unit, Range range, const void* in);
  /// `gradient`: [range.numel()]. Allocates nothing.
  void update_range_of(int unit, Range range, Sums gradient);
  /// The same of a unit whose states are on the device: only begins.
  void begin_on_device(int unit, Range range, Sums gradient);
  bool is_on_device(int unit) const { return twins_ && options_.place.on_device[static_cast<std::size_t>(unit)]; }
  /// What noted_ has of a run.
  optim::Hyper hyper_of(int group, std::int64_t steps) const;
  void update_piece(const optim::Passes& passes, const optim::Rule& rule, int unit, Range piece, void* low,
                    std::span<void* const> columns, Sums gradient, const optim::Hyper& hyper) const;
  at::Tensor empty(DType dtype, std::int64_t numel) const;

  ShardedModel& model_;
  ParameterStore& store_;
  OptimizerOptions options_;
  IsActive is_active_;
  Masters masters_ = Masters::kOwn;
  std::vector<optim::StateColumn> kept_;
  storage::Ledger& ledger_;
  std::unique_ptr<offload::ShardStore> states_;
  offload::DiskStore* disk_ = nullptr;                           ///< states_, if they are on disk
  offload::SplitStore* twins_ = nullptr;                         ///< states_, if some are on the device
  std::unique_ptr<DeviceUpdates> on_device_;                     ///< then
  std::unique_ptr<WholeTensors> whole_;                          ///< only if a rule has two passes
  std::vector<std::vector<storage::FlatBuffer>> tensor_states_;  ///< by parameter; only those this rank owns
  std::vector<std::int64_t> steps_;                              ///< by parameter
  /// Of the running update, or the last one: what may change meanwhile.
  struct Noted {
    std::vector<optim::Hyper> hyper;  ///< by group, with rate and scale
    std::vector<int> group;           ///< by parameter; -1: it is left alone
    std::vector<std::int64_t> steps;  ///< by parameter: its updates before
  } noted_;
  std::vector<storage::FlatBuffer> next_low_;  ///< by unit, of update_range(), if updates_late
  bool is_late_ = false;                       ///< between begin_update() and end_update(), and in a try
};

}  // namespace zero::sharding
