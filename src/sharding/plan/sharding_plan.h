#pragma once
// From a configuration and a model's parameters to what the other rooms are told: units, what is sharded, which store,
// sizes of buckets. The engine builds from it, and the plan computes with the same. No libtorch.
#include <optional>
#include <vector>

#include "config/update_kind.h"
#include "layout/placement.h"
#include "layout/shard.h"
#include "layout/sharding.h"
#include "layout/state_slots.h"
#include "layout/tensor_rounds.h"
#include "layout/units.h"
#include "optim/rule.h"
#include "optim/state_format.h"
#include "zero/config.h"
#include "zero/dtype.h"

namespace zero::sharding {

/// The ranks that hold the same model, and where they are.
struct Ranks {
  int count = 1;
  int hosts = 1;
  bool on_cpu = true;            ///< shards are in host memory
  bool module_on_cpu = true;     ///< the module is, too
  bool reads_in_place = true;    ///< the memory of the others' devices
  bool alike_hosts = true;       ///< as many ranks on each
  std::int64_t host_nbytes = 0;  ///< memory of the host that has least of it; 0: unknown, everything fits
};

/// True where NCCL is what moves shards between GPUs: between hosts, if there is an NCCL and the configuration does not
/// name another way, and where it names NCCL.
bool wants_nccl(const Config& config, int hosts);

/// The quantised form in which gradients travel between ranks.
struct Wire {
  optim::StateFormat format = optim::StateFormat::kDynamic8;
  /// What values lose is added to the next ones.
  struct Feedback {
    double decay = 0;                ///< the part of the old error that stays in the moving average
    std::int64_t reset_windows = 1;  ///< accumulation windows after which errors are forgotten
  };
  std::optional<Feedback> feedback = {};
};
/// In which form units are gathered.
struct GatherForm {
  optim::StateFormat format = optim::StateFormat::kDynamic8;
  bool of_trained = true;  ///< false: of those only that are not trained at first
};
/// What errors are kept in.
inline constexpr optim::StateFormat kErrorFormat = optim::StateFormat::kDynamic8;

struct ShardingPlan {
  std::vector<layout::Unit> units;
  layout::Sharding sharding;
  layout::Placements place;
  std::vector<bool> resident;  ///< units that are whole on every rank; none with the node-shared store
  DType param_dtype = DType::kFloat32;
  DType gradient_dtype = DType::kFloat32;  ///< what gradients travel in
  DType sum_dtype = DType::kFloat32;       ///< they are added in
  std::optional<Wire> gradient_wire;       ///< not given: they are sent as they are
  int sum_block = 1;                       ///< so many consecutive ranks' gradients are added before these sums are
  std::optional<GatherForm> gather_form;   ///< not given: units are gathered as they are
  /// Of one rank whose window is one micro-batch: a sum is a gradient itself, and kept in the dtype of gradients, into
  /// which these come straight, or consumed where it is.
  bool sums_are_gradients = false;
  DType master_dtype = DType::kFloat32;  ///< of master weights
  int world_size = 1;
  int hosts = 1;
  bool alike_hosts = true;  ///< as many ranks on each
  /// Of islands that train apart each has such a plan (zerotorch.local_steps); `island`: whose rank's memory it is.
  int islands = 1, island = 0;
  /// Of the configuration's optimizer, by unit and its slots: a rule each.
  std::vector<std::vector<const optim::Rule*>> rules;
  layout::TensorRounds whole;                    ///< tensors that are brought together in a step
  std::int64_t whole_moved_numel = 0;            ///< elements that all ranks together receive for it
  std::vector<std::int64_t> whole_state_nbytes;  ///< by these: of their states that are not of elements
  bool overlap = false;
  config::UpdateKind update;             ///< what the schedule of updates takes
  std::int64_t bucket_numel = 0;         ///< most elements of a bucket
  std::int64_t prefetch_numel = 0;       ///< gathered ahead of their use, at most
  std::int64_t sub_group_numel = 0;      ///< most elements of a slot of what is on a disk
  std::int64_t device_update_numel = 0;  ///< of split states: copied for their updates at once; 0: there are none
  std::int64_t cut_numel = layout::kBlockNumel;  ///< shards begin at multiples of it

  std::vector<std::int64_t> cuts(std::size_t unit) const {
    return layout::shard_cuts(units[unit].numel, world_size, static_cast<int>(unit), cut_numel);
  }
  layout::Range shard(std::size_t unit, int rank) const {
    return layout::shard_range(units[unit].numel, world_size, static_cast<int>(unit), rank, cut_numel);
  }
  /// How shards on a disk are cut into slots.
  layout::SlotCuts parameter_slots() const;
  std::int64_t low_nbytes() const { return static_cast<std::int64_t>(element_nbytes(param_dtype)); }
  std::int64_t gradient_nbytes() const { return static_cast<std::int64_t>(element_nbytes(gradient_dtype)); }
  std::int64_t sum_nbytes() const {
    return static_cast<std::int64_t>(element_nbytes(sums_are_gradients ? gradient_dtype : sum_dtype));
  }
  /// Of so many gradients, as they are sent.
  std::int64_t sent_gradient_nbytes(std::int64_t numel) const {
    return gradient_wire ? optim::nbytes_of(gradient_wire->format, numel) : numel * gradient_nbytes();
  }
  /// Of a unit, as it is gathered.
  std::int64_t gathered_nbytes(std::size_t unit) const {
    const auto format = gathered_format(unit);
    return format ? optim::nbytes_of(*format, units[unit].numel) : units[unit].numel * low_nbytes();
  }
  /// The form in which a unit is gathered.
  std::optional<optim::StateFormat> gathered_format(std::size_t unit) const {
    const bool is_quantized = gather_form && !resident[unit] && (gather_form->of_trained || !units[unit].trainable);
    return is_quantized ? std::optional(gather_form->format) : std::nullopt;
  }
  /// Bytes of the optimizer's states of `range`, which begins and ends where shards may; and of their values
  /// in fp32.
  std::int64_t state_nbytes(std::size_t unit, layout::Range range) const;
  std::int64_t wide_state_nbytes(std::size_t unit, layout::Range range) const;
  /// Of whole tensors' states, of those that the rank changes.
  std::int64_t whole_state_nbytes_of(int rank) const;
  std::size_t parameter_count() const;
  std::vector<int> unit_of_parameter() const;     ///< by parameter
  std::vector<std::int64_t> unit_numels() const;  ///< by unit
  /// Where shards, sums and states are that are in memory.
  layout::Tier memory_tier() const {
    return place.parameters.is_on_disk() ? layout::Tier::kHost : place.parameters.tier;
  }
  /// Elements of all units, of the trainable ones only if so wanted.
  std::int64_t padded_numel(bool trainable_only = false) const;
  std::int64_t largest_unit() const;
  int ranks_per_node() const { return world_size / hosts; }  ///< with the node-shared store, as many on each
};

/// Throws ConfigError for unknown unit names, and what config::exclusions() refuses.
ShardingPlan plan_sharding(const std::vector<layout::ParameterInfo>& parameters, const layout::ModuleNode& tree,
                           const Config& config, const Ranks& ranks);

}  // namespace zero::sharding
