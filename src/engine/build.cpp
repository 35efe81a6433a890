// initialize(): from a module and a configuration to an engine.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <set>

#include "base/log.h"
#include "comm/gather_values.h"
#include "comm/memory.h"
#include "comm/transport.h"
#include "config/exclusions.h"
#include "device/cuda_runtime.h"
#include "device/device_stream.h"
#include "engine/agreement.h"
#include "engine/bind_cores.h"
#include "engine/buffers.h"
#include "engine/cpu_products.h"
#include "engine/engine_impl.h"
#include "engine/observers.h"
#include "engine/offload_files.h"
#include "engine/optimizers/optimizer_setup.h"
#include "engine/progress_log.h"
#include "engine/shard_place.h"
#include "intercept/deferred_values.h"
#include "intercept/gradient_hook.h"
#include "sharding/plan/sharding_plan.h"
#include "sharding/plan/transfers.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero::engine {
namespace {

using sharding::Range;
using storage::FlatBuffer;

DType param_dtype_of(const Config& config, const Inventory& inventory) {
  for (const auto& item : inventory.parameters) {
    const DType dtype = [&] {
      try {
        return device::to_dtype(item.tensor.scalar_type());
      } catch (const ModelError& error) {
        throw ModelError(fmt::format("parameter '{}': {}", item.name, error.what()));
      }
    }();
    if (dtype != DType::kFloat32 && config.param_dtype() == DType::kFloat32) {
      throw ModelError(
          fmt::format("parameter '{0}' is {1}, but the configuration does not enable {1}; add "
                      "\"{1}\": {{\"enabled\": true}} or build the module in fp32",
                      item.name, dtype_name(dtype)));
    }
  }
  return config.param_dtype();
}

/// Where the module is.
c10::Device present_device_of(const Inventory& inventory) {
  c10::Device device = inventory.parameters.empty() ? c10::Device(c10::kCPU) : inventory.parameters[0].tensor.device();
  for (const auto& item : inventory.parameters) {
    if (item.tensor.device() != device) {
      throw ModelError(fmt::format("parameter '{}' is on {} and others are on {}; move the whole module to one device",
                                   item.name, item.tensor.device().str(), device.str()));
    }
  }
  return device;
}

/// Where it is to be. Throws ConfigError.
c10::Device module_device_of(const Inventory& inventory, std::optional<c10::Device> wanted) {
  const c10::Device present = present_device_of(inventory);
  if (present.is_meta() || (wanted && wanted->is_meta())) {
    throw ConfigError(
        "initialize(): on libtorch's meta device nothing is computed; build the module under zero::deferred_init, "
        "which takes no memory either, and draws its values where they are needed");
  }
  if (!wanted) return present;
  c10::Device device = wanted->is_cpu() ? c10::Device(c10::kCPU) : *wanted;
  if (!device.is_cpu()) {
    const bool exists = c10::impl::hasDeviceGuardImpl(device.type());
    const int count = exists ? c10::impl::VirtualGuardImpl(device.type()).deviceCount() : 0;
    if (device.index() >= count || count == 0) {
      throw ConfigError(fmt::format("InitializeOptions::device is {}, and libtorch finds {} such device{} here",
                                    device.str(), count, count == 1 ? "" : "s"));
    }
    if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  if (device != present && !present.is_cpu()) {
    throw ConfigError(
        fmt::format("InitializeOptions::device is {}, and the module is on {}: build it on the CPU, or move it itself",
                    device.str(), present.str()));
  }
  return device;
}

/// Strides of the flat layout: the parameter's own where they are dense, so that user code that looks at
/// strides sees what it made.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<std::int64_t> strides(tensor.dim());
  std::int64_t next = 1;
  for (std::int64_t d = tensor.dim() - 1; d >= 0; --d) {
    strides[d] = next;
    next *= std::max<std::int64_t>(tensor.size(d), 1);
  }
  return strides;
}

/// Where the module is, and what is sharded of it. *Collective.*
ShardPlace place_model(Engine::Impl& impl) {
  auto& model = impl.sharded.model;
  // Work for a device other than the current one costs memory on both.
  if (!model.module_device.is_cpu())
    c10::impl::VirtualGuardImpl(model.module_device.type()).setDevice(model.module_device);
  const ShardPlace place = choose_shard_place(model.module_device, impl.config, impl.groups.island);
  model.device = place.device;
  if (model.module_is_elsewhere()) {
    impl.config.notices.push_back(fmt::format(
        "the module is on {}; shards, sums of gradients and optimizer states are in host memory, where they "
        "are updated",
        model.module_device.str()));
  } else if (model.device.is_cpu() && impl.config.zero_optimization.offload_optimizer.ratio < 1) {
    impl.config.notices.push_back(
        "zero_optimization.offload_optimizer.ratio: of a module on a GPU; all states are in host memory");
  } else if (!model.device.is_cpu() && !optim::fused_passes_for(model.device)) {
    impl.config.notices.push_back(fmt::format(
        "there are no kernels of zerotorch's own for {}: libtorch's operators update there, and round otherwise than "
        "on the CPU",
        model.device.str()));
  }
  return place;
}

/// *Collective* over several hosts.
sharding::Ranks ranks_of(const Engine::Impl& impl, const ShardPlace& place) {
  const auto& model = impl.sharded.model;
  Group group = impl.groups.island;
  sharding::Ranks ranks{.count = group.size(),
                        .on_cpu = model.device.is_cpu(),
                        .module_on_cpu = model.module_device.is_cpu(),
                        .reads_in_place = place.moved_by == ShardPlace::MovedBy::kSharedMemory};
  if (group.single_node()) return ranks;
  const std::int64_t here = group.local_size();
  std::array<std::int64_t, 3> least{here, -here, static_cast<std::int64_t>(comm::available_memory_nbytes())};
  group.all_reduce(least.data(), least.size(), DType::kInt64, ReduceOp::kMin, {.label = "hosts"}).wait();
  ranks.hosts = 2;  // or more: whether there are several
  ranks.alike_hosts = least[0] == -least[1];
  ranks.host_nbytes = least[2];
  return ranks;
}

sharding::ShardingPlan make_model(Engine::Impl& impl, const ShardPlace& place) {
  auto& model = impl.sharded.model;
  const auto& inventory = impl.trained.inventory;
  std::vector<layout::ParameterInfo> infos;
  infos.reserve(inventory.parameters.size());
  for (const auto& item : inventory.parameters) {
    infos.push_back({item.name, item.tensor.numel(), item.tensor.requires_grad() && !impl.trained.evaluation_only,
                     impl.groups.model_parallel && !item.split.is_split(), item.tensor.sizes().vec()});
  }
  model.param_dtype = param_dtype_of(impl.config, inventory);
  const sharding::ShardingPlan shards =
      sharding::plan_sharding(infos, inventory.tree, impl.config, ranks_of(impl, place));
  model.parameters.resize(infos.size());
  for (const auto& from : shards.units) {
    const int u = static_cast<int>(model.units.size());
    sharding::Unit unit{.name = from.name,
                        .trainable = from.trainable,
                        .replicated = from.replicated,
                        .numel = from.numel,
                        .cuts = shards.cuts(static_cast<std::size_t>(u))};
    for (const auto& slot : from.slots) {
      auto& parameter = model.parameters[slot.parameter];
      parameter.name = infos[slot.parameter].name;
      parameter.tensor = inventory.parameters[slot.parameter].tensor;
      parameter.unit = u;
      parameter.range = slot.range();
      parameter.strides = dense_strides(parameter.tensor);
      parameter.handle = c10::make_intrusive<intercept::ParameterHandle>(parameter.name, slot.parameter, u);
      unit.parameters.push_back(slot.parameter);
    }
    model.units.push_back(std::move(unit));
  }
  model.sharding = shards.sharding;
  model.gradient_dtype = shards.gradient_dtype;
  model.sum_dtype = shards.sum_dtype;
  model.passes = &optim::passes_for(model.device);
  model.data_ranks = impl.groups.island;
  return shards;
}

/// *Collective.* The groups inside and between hosts, if there are several. Throws ConfigError on every rank
/// when they have different numbers of ranks.
std::optional<sharding::Hosts> find_hosts(Group group) {
  if (group.single_node()) return std::nullopt;
  std::int64_t fewest = group.local_size(), most = fewest;
  group.all_reduce(&fewest, 1, DType::kInt64, ReduceOp::kMin, {.label = "ranks of a host"}).wait();
  group.all_reduce(&most, 1, DType::kInt64, ReduceOp::kMax, {.label = "ranks of a host"}).wait();
  if (fewest != most) {
    leave_together(group);
    throw ConfigError(
        fmt::format("zerotorch.store: 'node_shared' over several hosts needs as many ranks on each; there are "
                    "hosts with {} and with {} of the {} ranks. Start as many everywhere, or use 'copying'",
                    fewest, most, group.size()));
  }
  sharding::Hosts hosts{group.split_by_host(), group.split(group.local_rank()), {}};
  hosts.across_ranks = comm::gather_values(hosts.across, group.rank(), "ranks");
  return hosts;
}

optim::LossScaler make_scaler(const Config& config) {
  const auto& fp16 = config.fp16;
  optim::LossScalerOptions options{.skips_non_finite = config.skips_non_finite()};
  if (fp16.enabled) {
    options.dynamic = fp16.loss_scale == 0;
    options.scale = options.dynamic ? std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power)) : fp16.loss_scale;
    options.window = fp16.loss_scale_window;
    options.hysteresis = fp16.hysteresis;
    options.consecutive_hysteresis = fp16.consecutive_hysteresis;
    options.min_scale = fp16.min_loss_scale;
  }
  return optim::LossScaler(options);
}

/// make(), whose errors of a disk begin with the key that names its folder.
template <class Make>
auto with_key(const std::optional<offload::DiskOptions>& disk, std::string_view key, Make make) {
  const bool on_disk = disk.has_value();
  try {
    return make();
  } catch (const IoError& error) {
    if (!on_disk) throw;
    throw IoError(fmt::format("{}: {}", key, error.what()));
  }
}

/// *Collective.* Whether step() leaves updated parameters to the next forward to wait for.
bool overlaps_publish(const Engine::Impl& impl, const sharding::ShardingPlan& shards) {
  using Overlap = Config::Zerotorch::OverlapAllGather;
  const auto& model = impl.sharded.model;
  if (!sharding::may_publish_late(impl.config, shards) || model.module_is_elsewhere() || !model.device.is_cpu())
    return false;
  if (impl.config.zerotorch.overlap_all_gather == Overlap::kAlways) return true;
  Group group = model.data_ranks;
  if (group.single_node()) return false;
  // A rank gives the others its shards in its calls; while it does something else only the thread does.
  std::int64_t threads = group.has_progress_thread() ? 1 : 0;
  group.all_reduce(&threads, 1, DType::kInt64, ReduceOp::kMin, {.label = "progress threads"}).wait();
  return threads == 1;
}

/// *Collective.*
void make_store(Engine::Impl& impl, const sharding::ShardingPlan& shards) {
  auto& [ledger, model, timeline, store, optimizer, reducer, update, norm, local_steps] = impl.sharded;
  const auto& zero = impl.config.zero_optimization;
  if (shards.place.reads_in_place()) {
    model.hosts = find_hosts(impl.groups.island);
    const bool is_possible = comm::sends_messages(model.data_ranks);
    store = sharding::make_node_shared_store(model, ledger, timeline, is_possible && overlaps_publish(impl, shards));
    return;
  }
  sharding::CopyingStoreOptions options{.resident = shards.resident,
                                        .max_live_numel = zero.stage3_max_live_parameters,
                                        .max_reuse_numel = zero.stage3_max_reuse_distance,
                                        .prefetch_numel = shards.prefetch_numel,
                                        .measured_prefetch = impl.config.zerotorch.measured_prefetch,
                                        .publish_bucket_numel = zero.allgather_bucket_size,
                                        .overlaps_publish = overlaps_publish(impl, shards),
                                        .updates_in_backward = !shards.update.keeps_gradients};
  options.form = shards.gather_form;
  options.shares_shards = shards.place.copies_from_shared();
  options.disk = disk_of(shards.place.parameters, impl.config, zero.offload_param.nvme_path, impl.observers);
  if (options.disk) options.disk->cuts = shards.parameter_slots();
  store = with_key(options.disk, "zero_optimization.offload_param.nvme_path",
                   [&] { return sharding::make_copying_store(model, ledger, timeline, options); });
}

void make_optimizer(Engine::Impl& impl, const sharding::ShardingPlan& shards, sharding::OptimizerOptions options) {
  const std::string& folder = impl.config.zero_optimization.offload_optimizer.nvme_path;
  options.disk = disk_of(shards.place.states, impl.config, folder, impl.observers);
  if (options.disk) options.disk->has_two_places = shards.update.second_states;
  if (!shards.update.keeps_gradients) options.bucket_numel = shards.bucket_numel;
  options.updates_late = shards.update.second_parameters;
  options.place = shards.place.states;
  options.device_update_numel = shards.device_update_numel;
  impl.sharded.optimizer = with_key(options.disk, "zero_optimization.offload_optimizer.nvme_path", [&] {
    return std::make_unique<sharding::ShardedOptimizer>(impl.sharded.model, *impl.sharded.store, impl.sharded.ledger,
                                                        options);
  });
}

/// *Collective.* `reads_narrow`: the optimizer takes sums in the dtype of gradients.
void make_reducer(Engine::Impl& impl, const sharding::ShardingPlan& shards, bool reads_narrow) {
  const std::string& own = impl.config.zerotorch.offload_gradients.nvme_path;
  const std::string& folder = own.empty() ? impl.config.zero_optimization.offload_optimizer.nvme_path : own;
  sharding::ReducerOptions options{
      .bucket_numel = shards.bucket_numel,
      .overlap = shards.overlap,
      .wire = shards.gradient_wire,
      .sum_block = shards.sum_block,
      .disk = disk_of(shards.place.gradients, impl.config, folder, impl.observers),
      .sums_are_gradients = shards.sums_are_gradients && (reads_narrow || shards.gradient_dtype == shards.sum_dtype),
      .copied_by_device = shards.place.states.is_split(),
      .sets_of_sums = shards.update.sets_of_sums,
      .keeps_sums = shards.update.keeps_gradients};
  if (options.disk) options.disk->cuts.slot_numel = shards.sub_group_numel;
  impl.sharded.reducer = with_key(options.disk, "zerotorch.offload_gradients.nvme_path", [&] {
    return std::make_unique<sharding::GradientReducer>(impl.sharded.model, impl.sharded.ledger, impl.sharded.timeline,
                                                       options);
  });
}

/// *Collective.*
void make_parts(Engine::Impl& impl, const sharding::ShardingPlan& shards, sharding::OptimizerOptions options) {
  // What changes directions in place, and a program's own optimizer, take them as they are added.
  const bool reads_narrow =
      !options.float_masters && std::ranges::none_of(options.groups, [](const auto& g) { return g.rule->whole; });
  impl.training.scaler = make_scaler(impl.config);
  impl.training.lr_overrides.resize(options.groups.size());
  make_store(impl, shards);
  make_optimizer(impl, shards, std::move(options));
  make_reducer(impl, shards, reads_narrow);
  impl.sharded.update = sharding::make_update_schedule(
      impl.config.zerotorch.update,
      {impl.sharded.model, *impl.sharded.store, *impl.sharded.optimizer, *impl.sharded.reducer, impl.sharded.timeline});
  if (impl.groups.across_islands) {
    const auto& local = impl.config.zerotorch.local_steps;
    impl.sharded.local_steps = std::make_unique<sharding::LocalSteps>(
        impl.sharded.model, *impl.sharded.optimizer, impl.sharded.ledger,
        sharding::LocalStepsOptions{
            .across = *impl.groups.across_islands, .steps = local.steps, .lr = local.lr, .momentum = local.momentum});
  }
  impl.sharded.norm = std::make_unique<sharding::GradientNorm>(impl.sharded.model, impl.groups.model_parallel);
  const bool skips_unused = impl.config.zerotorch.unused_parameters == Config::Zerotorch::UnusedParameters::kSkip;
  // Also while the reducer goes, whose last finish steps may update.
  impl.sharded.optimizer->choose_active([&impl, reducer = impl.sharded.reducer.get(), skips_unused](int p) {
    const auto& groups = impl.step.groups;
    const bool stepped =
        groups.empty() || std::ranges::find(groups, impl.sharded.optimizer->group_of(p)) != groups.end();
    // Frozen or not is asked now: a program's own loss.backward() does not say that a micro-batch has begun.
    const bool counts_as_zero = !skips_unused && impl.sharded.model.parameters[p].tensor.requires_grad();
    return stepped && (reducer->used_in_window(p) || counts_as_zero);
  });
}

/// Fails on every rank when a parameter's initial values differ from rank 0's.
void verify_unit(const Engine::Impl& impl, const sharding::Unit& unit, const FlatBuffer& values) {
  Group group = impl.groups.data_parallel;
  const at::Tensor whole = values.view(0, unit.numel).cpu();
  const auto count = static_cast<std::int64_t>(unit.parameters.size());
  std::vector<std::int64_t> mine(unit.parameters.size());
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const Range range = impl.sharded.model.parameters[unit.parameters[i]].range;
    const auto nbytes = static_cast<std::size_t>(range.numel()) * sizeof(float);
    mine[i] = static_cast<std::int64_t>(XXH3_64bits(whole.const_data_ptr<float>() + range.begin, nbytes));
  }
  std::vector<std::int64_t> all(mine.size() * group.size());
  group
      .all_gather(mine.data(), all.data(), std::vector<std::int64_t>(group.size(), count), DType::kInt64,
                  {.label = unit.name})
      .wait();
  for (int rank = 1; rank < group.size(); ++rank) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (all[rank * mine.size() + i] == all[i]) continue;
      leave_together(group);
      throw ModelError(
          fmt::format("parameter '{}' has other initial values on rank {} than on rank 0; seed all ranks alike, or set "
                      "zerotorch.verify_parameters to \"broadcast\" to take rank 0's",
                      impl.sharded.model.parameters[unit.parameters[i]].name, rank));
    }
  }
}

/// Of a model that was built without initial values: the parameters that nobody may use before they are loaded.
std::set<std::string> parameters_without_values(const Inventory& inventory) {
  std::set<std::string> names;
  for (const auto& item : inventory.parameters) {
    if (intercept::is_undrawn(item.tensor)) names.insert(item.name);
  }
  return names;
}

/// The module's values of one unit, flat, with zeros between them.
void fill(const Engine::Impl& impl, const sharding::Unit& unit, const FlatBuffer& staging) {
  std::int64_t filled = 0;
  const auto zero_until = [&](std::int64_t begin) {
    if (begin > filled) staging.view(filled, begin - filled).zero_();
  };
  for (int p : unit.parameters) {
    const auto& parameter = impl.sharded.model.parameters[p];
    if (parameter.range.empty()) continue;
    zero_until(parameter.range.begin);
    const at::Tensor place = staging.view(parameter.range.begin, parameter.range.numel());
    if (impl.trained.without_values.contains(parameter.name)) {
      place.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      place.as_strided(parameter.tensor.sizes(), parameter.strides).copy_(parameter.tensor.detach());
    }
    filled = parameter.range.end;
  }
  zero_until(unit.numel);
}

/// Hands one unit's values to store and optimizer, the same on all ranks: rank 0's, unless they are compared.
void load_unit(Engine::Impl& impl, int u, const FlatBuffer& staging) {
  const auto& unit = impl.sharded.model.units[u];
  Group ranks = impl.sharded.model.group_of(u).ranks;
  const bool verify = impl.config.zerotorch.verify_parameters == Config::Zerotorch::VerifyParameters::kVerify;
  if (verify || ranks.rank() == 0) fill(impl, unit, staging);
  if (impl.groups.across_islands && !verify && ranks.rank() == 0) {
    impl.groups.across_islands->broadcast(staging.data(), unit.numel, DType::kFloat32, 0, {.label = unit.name}).wait();
  }
  if (ranks.size() > 1 && !verify && impl.sharded.model.sharding.optimizer_states &&
      impl.sharded.model.device.is_cpu()) {
    // Each rank needs its shard only, and reads it where rank 0 has it.
    const auto load_shard = [&](std::span<const void* const> slices) {
      const Range mine = impl.sharded.model.shard_of(u);
      if (mine.empty()) return;
      impl.sharded.optimizer->load_range(u, mine,
                                         at::from_blob(const_cast<void*>(slices[0]), {mine.numel()}, at::kFloat));
    };
    ranks
        .exchange(staging.data(), layout::shard_counts(unit.cuts, unit.whole()), DType::kFloat32, load_shard,
                  {.label = unit.name})
        .wait();
    return;
  }
  if (ranks.size() > 1 && verify) {
    verify_unit(impl, unit, staging);
  } else if (ranks.size() > 1) {
    impl.sharded.model.group_of(u)
        .transport->broadcast(staging.data(), unit.numel, DType::kFloat32, 0, {.label = unit.name})
        .wait();
  }
  impl.sharded.optimizer->load(u, staging.view(0, unit.numel));
}

/// Loads one unit and takes its parameters over. The module's own memory of the unit is freed here.
void adopt_unit(Engine::Impl& impl, int u, const FlatBuffer& staging) {
  auto& model = impl.sharded.model;
  load_unit(impl, u, staging);
  const auto nbytes = element_nbytes(model.param_dtype);
  for (int p : model.units[u].parameters) {
    auto& parameter = model.parameters[p];
    if (!parameter.tensor.device().is_cpu()) device::note_use(parameter.tensor);
    parameter.handle->adopt(parameter.tensor, device::to_scalar_type(model.param_dtype), parameter.strides,
                            static_cast<std::size_t>(parameter.range.numel()) * nbytes, model.module_device,
                            &impl.uses);
  }
}

void adopt_parameters(Engine::Impl& impl) {
  at::NoGradGuard no_grad;
  std::int64_t largest = 0;
  for (const auto& unit : impl.sharded.model.units) largest = std::max(largest, unit.numel);
  const FlatBuffer staging =
      impl.sharded.model.home.make_readable(impl.sharded.ledger, MemoryKind::kStaging, DType::kFloat32, largest);
  constexpr std::int64_t kMostKeptNumel = 64 << 20;  // of the module's fp32 values, freed but still in the heap
  std::int64_t freed = 0;
  for (std::size_t u = 0; u < impl.sharded.model.units.size(); ++u) {
    adopt_unit(impl, static_cast<int>(u), staging);
    freed += impl.sharded.model.units[u].numel;
    if (freed < kMostKeptNumel && u + 1 < impl.sharded.model.units.size()) continue;
    storage::give_back_freed_memory();
    freed = 0;
  }
  impl.sharded.store->start();
}

/// `moves`: to where the module is to compute.
void adopt_buffers(Engine::Impl& impl, bool moves) {
  for (const auto& buffer : impl.trained.inventory.buffers) {
    if (intercept::is_undrawn(buffer.tensor)) {
      throw ModelError(
          fmt::format("buffer '{}' is drawn at random, and the module was built under a zero::DeferredInit with "
                      "without_values; leave that out, or make the buffer outside of it",
                      buffer.name));
    }
    intercept::write_values(buffer.tensor);
    if (moves && buffer.tensor.device() != impl.sharded.model.module_device)
      buffer.tensor.set_data(buffer.tensor.detach().to(impl.sharded.model.module_device));
  }
  Inventory same_everywhere, same_parts;
  for (const auto& buffer : impl.trained.inventory.buffers)
    (buffer.split.is_split() ? same_parts : same_everywhere).buffers.push_back(buffer);
  broadcast_buffers(same_everywhere, impl.groups.all);
  broadcast_buffers(same_parts, impl.groups.data_parallel);
  const auto kept =
      convert_buffers(impl.trained.inventory, impl.sharded.model.param_dtype, impl.config.zerotorch.buffer_dtype);
  if (!kept.empty()) impl.config.notices.push_back(kept_buffers_notice(kept));
  impl.compute.buffers.emplace(impl.trained.inventory.buffers, impl.config.zerotorch.buffers);
}

MemoryReport measure_module(const Inventory& inventory) {
  MemoryReport report;
  std::int64_t nbytes = 0, gradient_nbytes = 0;
  for (const auto& item : inventory.parameters) {
    if (!intercept::is_deferred(item.tensor)) nbytes += static_cast<std::int64_t>(item.tensor.nbytes());
    if (item.tensor.grad().defined()) gradient_nbytes += static_cast<std::int64_t>(item.tensor.grad().nbytes());
  }
  report[MemoryKind::kParameters] = {nbytes, nbytes};
  report[MemoryKind::kGradients] = {gradient_nbytes, gradient_nbytes};
  report[MemoryKind::kActivations] = storage::activation_use();
  return report;
}

/// *Collective.* Starts the progress thread where the configuration wants it.
void choose_progress_thread(Engine::Impl& impl) {
  using ProgressThread = Config::Zerotorch::ProgressThread;
  const auto wanted = impl.config.zerotorch.progress_thread;
  bool on = wanted == ProgressThread::kAlways;
  if (wanted == ProgressThread::kAuto) {
    // Large messages move inside calls only, and cost little of a core; in shared memory moving is copying.
    const bool sends_messages = comm::sends_messages(impl.groups.island);
    const bool between_hosts = sends_messages && !impl.groups.island.single_node();
    const bool overlaps = impl.config.zero_optimization.overlaps_comm(between_hosts ? 2 : 1) &&
                          (sends_messages || count_cores_of_rank(impl.groups.all) > at::get_num_threads());
    on = (between_hosts || overlaps) && impl.groups.island.progress_thread_problem().empty();
  }
  if (!on && wanted != ProgressThread::kNever) return;
  try {
    impl.groups.island.set_progress_thread(on);
  } catch (const IoError& error) {
    if (wanted == ProgressThread::kAlways) throw;
    base::log_warning("{}", error.what());
  }
}

/// What is quantised on its way, for the log; empty: nothing.
std::string wire_description(const sharding::ShardingPlan& shards) {
  const auto bits = [](optim::StateFormat format) {
    return 8.0 * static_cast<double>(optim::block_nbytes(format)) / static_cast<double>(optim::block_numel(format));
  };
  std::string text;
  if (const auto& form = shards.gather_form) {
    text += fmt::format("{} gathered in {} bits an element", form->of_trained ? "units are" : "untrained units are",
                        bits(form->format));
  }
  if (shards.gradient_wire) {
    text +=
        fmt::format("{}gradients are sent in {} bits an element{}", text.empty() ? "" : ", ",
                    bits(shards.gradient_wire->format), shards.gradient_wire->feedback ? ", with error feedback" : "");
  }
  return text;
}

/// Blocks of ranks whose gradients are added first, for the log; empty: there are none.
std::string blocks_description(const Engine::Impl& impl, const sharding::ShardingPlan& shards) {
  if (shards.sum_block == 1 || impl.groups.island.size() == shards.sum_block) return {};
  std::string text = fmt::format("gradients of {} ranks each are added before these sums are", shards.sum_block);
  if (impl.sharded.reducer->sums_on_hosts()) return text + ", on their hosts";
  if (!impl.groups.island.single_node())
    text += "; each rank's go to other hosts, which are not of so many ranks that follow one another";
  return text;
}

void log_start(const Engine::Impl& impl, const sharding::ShardingPlan& shards, const std::string& optimizer) {
  if (!impl.groups.is_first()) return;
  for (const auto& notice : impl.config.notices) base::log_info("config: {}", notice);
  std::int64_t numel = 0;
  for (const auto& parameter : impl.sharded.model.parameters) numel += parameter.range.numel();
  const std::string parts = impl.groups.model_parallel
                                ? fmt::format(" for each of {} parts of the model", impl.groups.model_parallel_size())
                                : "";
  base::log_info("ZeRO stage {}, {} rank{}{} ({}{}), {} store{}: {:.2f} M parameters ({}) in {} units, {}",
                 impl.config.zero_optimization.stage, impl.groups.island.size(),
                 impl.groups.island.size() == 1 ? "" : "s", parts, impl.groups.island.backend(),
                 impl.groups.island.has_progress_thread() ? ", progress thread" : "",
                 shards.place.reads_in_place() ? "node-shared" : "copying",
                 impl.sharded.model.hosts ? fmt::format(" on {} hosts", impl.sharded.model.hosts->across.size()) : "",
                 numel / 1e6, dtype_name(impl.sharded.model.param_dtype), impl.sharded.model.units.size(), optimizer);
  const auto& local_steps = impl.sharded.local_steps;
  if (local_steps && local_steps->islands() == 1) {
    base::log_warning(
        "zerotorch.local_steps: there is one island, whose outer optimizer changes the training and saves no traffic; "
        "set ranks_per_island, or remove the section");
  }
  for (const std::string& line :
       {wire_description(shards), blocks_description(impl, shards),
        local_steps ? local_steps->description() : std::string(), impl.sharded.store->disk_description(),
        impl.sharded.optimizer->disk_description(), impl.sharded.reducer->disk_description(),
        impl.compute.activation_home->description()}) {
    if (!line.empty()) base::log_info("{}", line);
  }
}

/// "SGD with momentum_buffer".
std::string describe_states(const sharding::OptimizerOptions& options) {
  std::string text;
  for (const auto& group : options.groups) {
    text += std::string(group.rule->name) + " with";
    for (const auto& state : group.rule->states) text += fmt::format(" {}", state.name);
    text += "\n";
  }
  return text;
}

/// Of states that are divided between a device and the host. Throws ConfigError.
void check_ratio(const Engine::Impl& impl, const sharding::OptimizerOptions& options) {
  constexpr std::string_view kKey = "zero_optimization.offload_optimizer.ratio";
  const c10::Device device = impl.sharded.model.module_device;
  const optim::Passes* const there = optim::fused_passes_for(device);
  if (!there) {
    throw ConfigError(
        fmt::format("{}: there are no kernels of zerotorch's own for {}, which would update what is there; "
                    "build with nvcc, or set it to 1",
                    kKey, device.str()));
  }
  for (const auto& group : options.groups) {
    if (!group.rule->whole && there->updates(*group.rule)) continue;
    throw ConfigError(fmt::format("{}: {} does not update on {} and on the host at once; set it to 1", kKey,
                                  group.rule->name, device.str()));
  }
}

/// Throws ConfigError.
void check_device(const Engine::Impl& impl, const sharding::ShardingPlan& shards,
                  const sharding::OptimizerOptions& options) {
  if (shards.place.states.is_split()) check_ratio(impl, options);
  if (impl.sharded.model.passes->in_host_memory()) return;
  constexpr std::string_view kRemedy =
      "set zero_optimization.offload_optimizer.device to 'cpu', which keeps and updates states there";
  for (const auto& group : options.groups) {
    if (impl.sharded.model.passes->updates(*group.rule)) continue;
    throw ConfigError(
        fmt::format("optimizer.type: {} updates host memory only, and the module is on {}; {}, or choose another type",
                    group.rule->name, impl.sharded.model.device.str(), kRemedy));
  }
  if (options.stochastic_rounding && !impl.sharded.model.passes->rounds_stochastically()) {
    throw ConfigError(fmt::format("zerotorch.stochastic_rounding: in host memory only, and the module is on {}; {}",
                                  impl.sharded.model.device.str(), kRemedy));
  }
}

/// For a model that nobody trains: what is only for training is refused or not used. Throws ConfigError.
void prepare_for_evaluation(Engine::Impl& impl, const InitializeOptions& options) {
  if (options.optimizer || options.optimizer_factory || options.schedule || !options.parameter_groups.empty()) {
    throw ConfigError(
        "InitializeOptions::evaluation_only, and an optimizer, its factory, parameter groups or a schedule: remove one "
        "or the other");
  }
  impl.trained.evaluation_only = true;
  Config& config = impl.config;
  config.zerotorch.update = Config::Zerotorch().update;
  config.zerotorch.local_steps.steps = 0;
  config.zero_optimization.offload_optimizer.ratio = 1;
  if (config.train_batch_size == 0 && config.train_micro_batch_size_per_gpu == 0)
    config.train_micro_batch_size_per_gpu = 1;
}

void freeze(Engine::Impl& impl) {
  for (const auto& parameter : impl.sharded.model.parameters) {
    if (parameter.tensor.requires_grad()) impl.trained.frozen.push_back(parameter.tensor);
    parameter.tensor.requires_grad_(false);
  }
}

/// The part of initialize() in which ranks depend on each other. *Collective.*
void join_ranks(Engine::Impl& impl, const sharding::ShardingPlan& shards, const ShardPlace& place, OptimizerSetup setup,
                bool moves_buffers) {
  if (auto difference = first_difference(impl.config.to_json(), impl.groups.all, "config")) {
    throw ConfigError(fmt::format("the ranks have different configurations: {}", *difference));
  }
  check_device(impl, shards, setup.options);
  const std::string states =
      impl.trained.evaluation_only ? "nothing, for evaluation only\n" : describe_states(setup.options);
  if (auto difference = first_difference(states, impl.groups.all, "optimizer")) {
    throw ConfigError(fmt::format("the ranks have different optimizers: {}", *difference));
  }
  check_agreement(impl.trained.inventory, impl.groups.data_parallel);
  agree_on_parts(impl.groups, impl.trained.inventory);
  if (impl.sharded.model.module_device.is_cpu()) {
    impl.compute.cpu_products = choose_cpu_products(impl.config.zerotorch.cpu_products, impl.sharded.model.param_dtype,
                                                    impl.groups.all, impl.config.notices);
  }
  choose_progress_thread(impl);
  make_transport(impl.sharded.model, place.moved_by);
  impl.random.choose_seed(impl.groups.all);
  impl.optimizer_source = std::move(setup.source);
  make_parts(impl, shards, std::move(setup.options));
  make_replicated_alike(impl.groups, impl.trained.inventory,
                        impl.config.zerotorch.verify_parameters == Config::Zerotorch::VerifyParameters::kVerify);
  impl.trained.without_values = parameters_without_values(impl.trained.inventory);
  adopt_parameters(impl);
  adopt_buffers(impl, moves_buffers);
  if (impl.trained.evaluation_only) freeze(impl);
  impl.optimizer_source->attach(impl.sharded.model, *impl.sharded.optimizer, impl.groups.all);
  impl.rates.attach(*impl.optimizer_source, *impl.sharded.optimizer);
  impl.gradients = std::make_unique<Gradients>(impl);
  impl.gradients->hook();
  add_checks(impl);
  impl.refresh_rates();
  impl.random.start(impl.sharded.model.module_device);
}

}  // namespace

std::uint64_t EngineMoments::now() {
  static std::atomic<std::uint64_t> clock = 0;
  return ++clock;
}

std::unique_ptr<Engine::Impl> build(ModelView model, std::shared_ptr<torch::nn::Module> module, Config config,
                                    const InitializeOptions& options) {
  auto impl = std::make_unique<Engine::Impl>();
  impl->life.aborts_on_exception = false;  // until ranks depend on each other
  impl->life.exceptions_at_start = std::uncaught_exceptions();
  impl->config = std::move(config);
  impl->trained.view = std::move(model);
  impl->trained.module = std::move(module);
  impl->groups = find_groups(options);
  base::set_log_rank(impl->groups.all.size() > 1 ? impl->groups.all.rank() : -1);
  // What a rank can find wrong alone comes first: then all ranks report it, and none waits for another.
  if (intercept::defers_values()) {
    throw ConfigError(
        "initialize(): a zero::DeferredInit is alive on this thread, and what training draws would be put off as "
        "initial values are; end its scope when the module is built");
  }
  if (options.evaluation_only) prepare_for_evaluation(*impl, options);
  impl->config.validate();
  if (impl->config.zerotorch.timeout_s > 0) {
    impl->groups.set_timeout(
        std::chrono::milliseconds(static_cast<std::int64_t>(impl->config.zerotorch.timeout_s * 1e3)));
  }
  impl->config.resolve_batch(impl->groups.data_parallel.size());
  impl->trained.inventory = take_inventory(impl->trained.view);
  if (impl->config.zerotorch.bind_cores_to_rank) {
    const auto& parameters = impl->trained.inventory.parameters;
    const c10::Device here = parameters.empty() ? c10::kCPU : parameters.front().tensor.device();
    bind_cores(impl->groups.all, device::memory_node_of(options.device.value_or(here)));
  }
  if (impl->trained.inventory.parameters.empty() && !impl->groups.model_parallel) {
    const char* const problem =
        "the model has no parameters: there is nothing to train or to shard; use it without an engine";
    impl->groups.abort(problem);  // other ranks may know nothing of it
    throw ModelError(problem);
  }
  impl->trained.view.parameters.clear();
  impl->trained.view.buffers.clear();
  place_parts(options, impl->groups, impl->trained.inventory);
  impl->sharded.model.module_device = module_device_of(impl->trained.inventory, options.device);
  config::refuse_excluded({.config = impl->config,
                           .module_on_gpu = !impl->sharded.model.module_device.is_cpu(),
                           .model_parallel = impl->groups.model_parallel.has_value(),
                           .program_optimizer = static_cast<bool>(options.optimizer_factory)});
  find_islands(impl->config, impl->groups);
  if (options.schedule && impl->config.scheduler.type != Config::Scheduler::Type::kNone)
    throw ConfigError("both the JSON ('scheduler') and InitializeOptions::schedule give a schedule; remove one");
  impl->rates.set_schedule(options.schedule);
  impl->life.zero_grad_keeps_window = options.zero_grad_keeps_window;
  OptimizerSetup setup = set_up_optimizer(impl->config, options, impl->trained.inventory);
  const std::string description = impl->trained.evaluation_only ? "for evaluation only" : setup.description;
  const ShardPlace place = place_model(*impl);
  const sharding::ShardingPlan shards = make_model(*impl, place);
  check_buffers(impl->trained.inventory);
  check_memory(impl->trained.inventory);
  storage::install_cpu_allocator(impl->config.zerotorch.caching_allocator);
  impl->trained.memory_before = measure_module(impl->trained.inventory);
  add_trace(*impl);
  try {
    impl->compute.activation_home.emplace(impl->config, shards.place.activations, impl->groups,
                                          impl->sharded.model.module_device, impl->sharded.ledger);
    join_ranks(*impl, shards, place, std::move(setup), options.device.has_value());
  } catch (const std::exception& error) {
    impl->groups.abort(error.what());
    throw;
  }
  impl->life.aborts_on_exception = true;
  log_start(*impl, shards, description);
  log_configuration(*impl);
  add_observers(*impl);
  return impl;
}

}  // namespace zero::engine
