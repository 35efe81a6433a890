#include "sharding/plan/sharding_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "config/exclusions.h"
#include "config/features.h"
#include "layout/bucket_schedule.h"
#include "layout/module_tree.h"
#include "optim/configured.h"
#include "zero/errors.h"

namespace zero::sharding {
namespace {

layout::UnitOptions unit_options(const Config& config, const layout::ModuleNode& tree) {
  const auto& zero = config.zero_optimization;
  layout::UnitOptions options{config.zerotorch.unit_numel, config.zerotorch.unit_names};
  options.leaf_module_names = zero.leaf_module_names;
  const auto by_suffix = layout::modules_with_suffix(tree, zero.leaf_module_name_suffixes);
  options.unit_names.insert(options.unit_names.end(), by_suffix.begin(), by_suffix.end());
  return options;
}

using OffloadDevice = Config::OffloadDevice;

/// Of parameters in memory.
bool use_node_shared(const Config& config, const Ranks& ranks, const ShardingPlan& shards) {
  using Store = Config::Zerotorch::Store;
  if (config.zero_optimization.zero_hpz_partition_size > 1) return shards.world_size > 1;
  if (shards.gather_form) return false;
  const auto wanted = config.zerotorch.store;
  if (wanted != Store::kAuto) return wanted == Store::kNodeShared;
  if (!ranks.module_on_cpu || shards.world_size == 1 || !shards.sharding.parameters) return false;
  if (shards.hosts == 1) return true;
  // Every host has all parameters then, for two thirds of the traffic between them or less.
  constexpr std::int64_t kPartOfHost = 4;
  const std::int64_t nbytes = shards.padded_numel() * shards.low_nbytes();
  return ranks.alike_hosts && (ranks.host_nbytes == 0 || nbytes <= ranks.host_nbytes / kPartOfHost);
}

/// A single rank has all parameters where its module is, unless they are to be in host memory, and that is elsewhere.
bool stays_whole(const Config& config, const Ranks& ranks, const ShardingPlan& shards) {
  if (!shards.sharding.parameters) return true;
  const auto& zero = config.zero_optimization;
  // What is gathered is rounded, so that one rank gathers as well.
  if (shards.world_size > 1 || zero.offload_param.device == OffloadDevice::kNvme || shards.gather_form) return false;
  const bool in_host_memory = zero.cpu_offload_param || zero.offload_param.device != OffloadDevice::kNone;
  return ranks.module_on_cpu || !ranks.on_cpu || !in_host_memory;
}

std::vector<bool> residents(const Config& config, const Ranks& ranks, const ShardingPlan& shards) {
  const std::size_t count = shards.units.size();
  if (shards.place.reads_in_place()) return std::vector<bool>(count, false);
  if (stays_whole(config, ranks, shards)) return std::vector<bool>(count, true);
  const auto& zero = config.zero_optimization;
  std::vector<layout::UnitSize> sizes;
  for (const layout::Unit& unit : shards.units) {
    std::int64_t largest = 0;
    for (const auto& slot : unit.slots) largest = std::max(largest, slot.numel);
    sizes.push_back({unit.numel, largest});
  }
  return layout::resident_units(sizes, zero.stage3_param_persistence_threshold,
                                zero.stage3_model_persistence_threshold);
}

void choose_rules(const std::vector<layout::ParameterInfo>& parameters, const Config& config, ShardingPlan& shards) {
  const optim::Rule &rule = optim::rule_of(config), &of_rest = optim::rule_of(config, /*by_muon=*/false);
  std::vector<std::optional<layout::TensorPlace>> whole(parameters.size());  // in their order
  for (std::size_t u = 0; u < shards.units.size(); ++u) {
    auto& rules = shards.rules.emplace_back();
    for (const layout::Slot& slot : shards.units[u].slots) {
      const auto p = static_cast<std::size_t>(slot.parameter);
      const auto& [name, shape] = std::tie(parameters[p].name, parameters[p].shape);
      const bool is_known = !shape.empty() || parameters[p].numel == 1;
      const bool by_muon = !is_known || optim::is_for_muon(name, static_cast<int>(shape.size()));
      rules.push_back(by_muon ? &rule : &of_rest);
      if (optim::brings_together(*rules.back())) whole[p] = layout::TensorPlace{static_cast<int>(u), slot.range()};
    }
  }
  std::vector<layout::TensorPlace> places;
  for (std::size_t p = 0; p < whole.size(); ++p) {
    if (!whole[p]) continue;
    places.push_back(*whole[p]);
    const bool trainable = shards.units[static_cast<std::size_t>(whole[p]->unit)].trainable;
    const std::int64_t numel = trainable ? optim::tensor_state_numel(rule, parameters[p].shape) : 0;
    shards.whole_state_nbytes.push_back(numel * static_cast<std::int64_t>(sizeof(float)));
  }
  if (places.empty()) return;
  std::vector<std::vector<std::int64_t>> cuts;
  for (std::size_t u = 0; u < shards.units.size(); ++u) cuts.push_back(shards.cuts(u));
  shards.whole = layout::plan_rounds(places, cuts);
  for (std::size_t t = 0; t < places.size(); ++t) {
    const auto& [unit, range] = places[t];
    if (!shards.units[static_cast<std::size_t>(unit)].trainable) continue;
    const auto& its = cuts[static_cast<std::size_t>(unit)];
    const auto owner = static_cast<std::size_t>(shards.whole.owner[t]);
    const std::int64_t elsewhere = range.numel() - layout::intersect(range, {its[owner], its[owner + 1]}).numel();
    // To the owner and back; or from it to all the others.
    shards.whole_moved_numel +=
        shards.sharding.optimizer_states ? 2 * elsewhere : (shards.world_size - 1) * range.numel();
  }
}

/// Where states of units are on the accelerator: units by turns, so that both sides have of every part of the model.
std::vector<bool> split_states(double ratio, const ShardingPlan& shards) {
  std::vector<bool> on_device;
  double wanted = 0, placed = 0;
  for (const layout::Unit& unit : shards.units) {
    const auto numel = static_cast<double>(unit.numel);
    wanted += (1 - ratio) * numel;
    const bool there = unit.numel > 0 && placed + numel / 2 <= wanted;
    placed += there ? numel : 0;
    on_device.push_back(there);
  }
  return on_device;
}

layout::Tier tier_of_parameters(const Config& config, const Ranks& ranks, const ShardingPlan& shards) {
  using layout::Tier;
  if (use_node_shared(config, ranks, shards)) return Tier::kHostShared;
  // Shards of the ranks of a host are once in its memory, and those on devices where all can read them.
  const bool all_reach_them = ranks.on_cpu ? ranks.hosts == 1 : ranks.reads_in_place;
  const bool are_shared = !ranks.module_on_cpu && (ranks.count > 1 || !stays_whole(config, ranks, shards)) &&
                          all_reach_them && shards.sharding.optimizer_states;
  if (ranks.on_cpu) return are_shared ? Tier::kHostShared : Tier::kHost;
  return are_shared ? Tier::kDeviceShared : Tier::kDevice;
}

layout::Placements place(const config::Setting& setting, const Ranks& ranks, const ShardingPlan& shards) {
  using layout::Tier;
  namespace features = config::features;
  const Config& config = setting.config;
  const auto& zero = config.zero_optimization;
  const Tier in_memory = ranks.on_cpu ? Tier::kHost : Tier::kDevice;
  const Tier of_module = ranks.module_on_cpu ? Tier::kHost : Tier::kDevice;
  const auto in_memory_unless = [&](const config::Feature& on_disk, std::int64_t buffers, Tier tier) {
    return on_disk.is_on(setting) ? layout::Placement{.tier = Tier::kDisk, .disk_buffers = buffers}
                                  : layout::Placement{.tier = tier};
  };
  layout::Placements place;
  place.parameters = in_memory_unless(features::kParametersOnDisk, zero.offload_param.buffer_count,
                                      tier_of_parameters(config, ranks, shards));
  place.gradients =
      in_memory_unless(features::kGradientsOnDisk, config.zerotorch.offload_gradients.buffer_count, in_memory);
  place.states = in_memory_unless(features::kStatesOnDisk, zero.offload_optimizer.buffer_count, in_memory);
  if (features::divides_states(setting)) place.states.on_device = split_states(zero.offload_optimizer.ratio, shards);
  place.activations = in_memory_unless(features::kActivationsOnDisk, config.zerotorch.offload_activations.buffer_count,
                                       config.activations_in_host_memory() ? Tier::kHost : of_module);
  const bool reads_in_place = place.parameters.tier == Tier::kHostShared && ranks.module_on_cpu;
  place.units = reads_in_place ? Tier::kHostShared : of_module;
  return place;
}

optim::StateFormat format_of(Config::Zerotorch::Quantization quantization) {
  return quantization == Config::Zerotorch::Quantization::kDynamic8 ? optim::StateFormat::kDynamic8
                                                                    : optim::StateFormat::kLinear4;
}

void choose_wires(const Config& config, ShardingPlan& shards) {
  constexpr double kDecay = 0.8;
  constexpr std::int64_t kResetWindows = 1024;
  const auto& zero = config.zero_optimization;
  if (zero.zero_quantized_weights || zero.zero_quantized_nontrainable_weights)
    shards.gather_form = {format_of(config.zerotorch.weight_quantization), zero.zero_quantized_weights};
  if (!zero.zero_quantized_gradients) return;
  shards.gradient_wire = Wire{.format = format_of(config.zerotorch.gradient_quantization)};
  const auto& loco = zero.zeropp_loco_param;
  if (zero.feeds_errors_back())
    shards.gradient_wire->feedback = {.decay = loco.err_beta.value_or(kDecay),
                                      .reset_windows = loco.reset_T.value_or(kResetWindows)};
}

void check_ranks_per_host(const Config& config, const Ranks& ranks) {
  const std::int64_t wanted = config.zero_optimization.zero_hpz_partition_size;
  if (wanted <= 1 || ranks.count == 1) return;
  if (ranks.alike_hosts && wanted * ranks.hosts == ranks.count) return;
  throw ConfigError(
      fmt::format("zero_optimization.zero_hpz_partition_size: {}, but there are {} ranks on {} host{}: parameters are "
                  "whole once per host; write the number of ranks on each host, or remove the key",
                  wanted, ranks.count, ranks.hosts, ranks.hosts == 1 ? "" : "s"));
}

void check_blocks(const Config& config, const Ranks& ranks) {
  const std::int64_t block = config.zerotorch.hierarchical_reduce;
  if (block <= 1 || ranks.count % block == 0) return;
  throw ConfigError(
      fmt::format("zerotorch.hierarchical_reduce: {}, but there are {} ranks, which are not a multiple of it; write "
                  "the number of ranks on each host, or remove the key, which changes how gradients are rounded",
                  block, ranks.count));
}

/// Optimizers of whole tensors work in the memory of their sums, in fp32.
bool sums_are_gradients(const Config& config, const Ranks& ranks, const ShardingPlan& shards) {
  const bool has_one = ranks.count == 1 && config.gradient_accumulation_steps == 1;
  if (!has_one || shards.gradient_wire || shards.place.gradients.is_on_disk()) return false;
  const bool changes_them = optim::rule_of(config).whole || optim::rule_of(config, /*by_muon=*/false).whole;
  return shards.sum_dtype == shards.gradient_dtype || (shards.sum_dtype == DType::kFloat32 && !changes_them);
}

}  // namespace

std::size_t ShardingPlan::parameter_count() const {
  std::size_t count = 0;
  for (const auto& unit : units) count += unit.slots.size();
  return count;
}

std::vector<int> ShardingPlan::unit_of_parameter() const {
  std::vector<int> unit_of(parameter_count(), -1);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& slot : units[u].slots) unit_of[static_cast<std::size_t>(slot.parameter)] = static_cast<int>(u);
  }
  return unit_of;
}

std::vector<std::int64_t> ShardingPlan::unit_numels() const {
  std::vector<std::int64_t> numels;
  for (const auto& unit : units) numels.push_back(unit.numel);
  return numels;
}

std::int64_t ShardingPlan::padded_numel(bool trainable_only) const {
  std::int64_t sum = 0;
  for (const auto& unit : units) sum += unit.trainable || !trainable_only ? unit.numel : 0;
  return sum;
}

namespace {

/// Adds up `nbytes_of(rule, numel)` over what of `range` belongs to each slot; padding belongs to the slot
/// before it.
template <class NbytesOf>
std::int64_t sum_over_rules(const ShardingPlan& shards, std::size_t unit, layout::Range range, NbytesOf nbytes_of) {
  const auto& slots = shards.units[unit].slots;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t end = i + 1 < slots.size() ? slots[i + 1].offset_numel : shards.units[unit].numel;
    const layout::Range part = layout::intersect({slots[i].offset_numel, end}, range);
    if (!part.empty()) sum += nbytes_of(*shards.rules[unit][i], part.numel());
  }
  return sum;
}

}  // namespace

std::int64_t ShardingPlan::state_nbytes(std::size_t unit, layout::Range range) const {
  return sum_over_rules(*this, unit, range,
                        [](const optim::Rule& rule, std::int64_t numel) { return rule.state_nbytes(numel); });
}

std::int64_t ShardingPlan::wide_state_nbytes(std::size_t unit, layout::Range range) const {
  return sum_over_rules(*this, unit, range, [](const optim::Rule& rule, std::int64_t numel) {
    return numel * static_cast<std::int64_t>(rule.states.size() * sizeof(float));
  });
}

std::int64_t ShardingPlan::whole_state_nbytes_of(int rank) const {
  std::int64_t sum = 0;
  for (std::size_t t = 0; t < whole_state_nbytes.size(); ++t) sum += whole.owner[t] == rank ? whole_state_nbytes[t] : 0;
  return sum;
}

layout::SlotCuts ShardingPlan::parameter_slots() const {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!resident[u]) largest = std::max(largest, (units[u].numel + world_size - 1) / world_size);
  }
  const layout::ColumnShape low{low_nbytes(), 1};
  layout::SlotCuts slots = layout::slot_cuts({&low, 1}, sub_group_numel, largest);
  slots.multiple = cut_numel;
  slots.slot_numel = layout::round_up(slots.slot_numel, cut_numel);
  return slots;
}

std::int64_t ShardingPlan::largest_unit() const {
  std::int64_t largest = 0;
  for (const auto& unit : units) largest = std::max(largest, unit.numel);
  return largest;
}

bool wants_nccl(const Config& config, int hosts) {
  using Transport = Config::Zerotorch::DeviceTransport;
  const Transport wanted = config.zerotorch.device_transport;
  return wanted == Transport::kNccl || (wanted == Transport::kAuto && hosts > 1);
}

ShardingPlan plan_sharding(const std::vector<layout::ParameterInfo>& parameters, const layout::ModuleNode& tree,
                           const Config& config, const Ranks& ranks) {
  const config::Setting setting{
      .config = config, .module_on_gpu = !ranks.module_on_cpu, .shards_on_gpu = !ranks.on_cpu, .hosts = ranks.hosts};
  config::refuse_excluded(setting);
  check_ranks_per_host(config, ranks);
  check_blocks(config, ranks);
  const auto& zero = config.zero_optimization;
  ShardingPlan shards;
  shards.units = layout::make_units(tree, parameters, unit_options(config, tree));
  shards.sharding = layout::sharding_of_stage(zero.stage, ranks.count);
  shards.param_dtype = config.param_dtype();
  shards.gradient_dtype = config.communication_dtype.value_or(shards.param_dtype);
  shards.sum_dtype = config.sum_dtype();
  shards.master_dtype = config.master_dtype();
  shards.world_size = ranks.count;
  shards.sum_block = static_cast<int>(std::max<std::int64_t>(1, config.zerotorch.hierarchical_reduce));
  shards.hosts = ranks.hosts;
  shards.alike_hosts = ranks.alike_hosts;
  shards.overlap = zero.overlaps_comm(ranks.module_on_cpu ? ranks.hosts : 1);
  shards.update = config::kind_of(config.zerotorch.update);
  shards.bucket_numel = layout::bucket_numel(zero.reduce_bucket_size, ranks.count, ranks.on_cpu);
  shards.prefetch_numel = shards.overlap ? zero.stage3_prefetch_bucket_size : 0;
  shards.sub_group_numel = layout::round_up(zero.sub_group_numel(), layout::kBlockNumel);
  choose_wires(config, shards);
  shards.place = place(setting, ranks, shards);
  constexpr std::int64_t kMostUpdatedNumel = 4 << 20;
  if (std::ranges::find(shards.place.states.on_device, true) != shards.place.states.on_device.end())
    shards.device_update_numel = std::min(shards.sub_group_numel, kMostUpdatedNumel);
  const bool from_disk = shards.place.parameters.is_on_disk();
  // Shards begin where pages of the file may.
  if (from_disk) shards.cut_numel = std::max(layout::kBlockNumel, layout::kColumnAlignNbytes / shards.low_nbytes());
  shards.sums_are_gradients = sums_are_gradients(config, ranks, shards);
  // Less than a unit ahead would be none at all, and the disk or the GPU's bus idle.
  if (shards.prefetch_numel > 0 && (from_disk || !ranks.module_on_cpu))
    shards.prefetch_numel = std::max(shards.prefetch_numel, shards.largest_unit());
  shards.resident = residents(config, ranks, shards);
  choose_rules(parameters, config, shards);
  return shards;
}

}  // namespace zero::sharding
