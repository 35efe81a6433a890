// Whole tensors by parameter name, from what the ranks hold in shards.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/agreement.h"
#include "engine/engine_impl.h"
#include "intercept/gradient_hook.h"
#include "zero/errors.h"

namespace zero {
namespace {

/// [sizes] contiguous, from the parameter's elements in the order of its own memory.
at::Tensor to_shape(const at::Tensor& flat, const at::Tensor& like) {
  if (like.numel() == 0) return at::zeros(like.sizes(), flat.options());
  return flat.as_strided(like.sizes(), like.strides(), 0).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

template <class PartOf>
at::Tensor Engine::Impl::gather_full(int parameter, std::string_view label, PartOf part_of) {
  at::NoGradGuard no_grad;
  const auto& target = sharded.model.parameters[parameter];
  const auto& unit = sharded.model.units[target.unit];
  const auto counts = layout::shard_counts(unit.cuts, target.range);
  const sharding::ShardGroup& shards = sharded.model.group_of(target.unit);
  const layout::Range mine = layout::intersect(target.range, sharded.model.shard_of(target.unit));
  at::Tensor flat =
      at::empty({target.range.numel()}, at::TensorOptions().dtype(at::kFloat).device(sharded.model.device));
  const at::Tensor part = part_of(target.unit, mine);
  if (shards.ranks.size() == 1) {
    if (part.defined()) flat.copy_(part);
  } else {
    shards.transport
        ->all_gather(part.defined() ? part.const_data_ptr() : nullptr, flat.mutable_data_ptr(), counts, DType::kFloat32,
                     {.label = label})
        .wait();
  }
  return to_shape(flat, target.tensor);
}

namespace {

/// *Collective* over model-parallel ranks.
void check_replicated(Engine::Impl& impl, int p, const at::Tensor& values) {
  const auto& parameter = impl.sharded.model.parameters[p];
  if (!impl.sharded.model.units[parameter.unit].replicated) return;
  if (engine::have_same_values(values, *impl.groups.model_parallel, "set_full_weight")) return;
  throw ModelError(fmt::format(
      "set_full_weight('{}'): the parameter is not split, and the model-parallel ranks give it different values",
      parameter.name));
}

/// `value` in the order of the parameter's memory, fp32 [numel].
at::Tensor to_flat(const Engine::Impl& impl, int p, const at::Tensor& value) {
  const auto& parameter = impl.sharded.model.parameters[p];
  at::Tensor flat =
      at::empty({parameter.range.numel()}, at::TensorOptions().dtype(at::kFloat).device(impl.sharded.model.device));
  if (parameter.range.numel() > 0)
    flat.as_strided(parameter.tensor.sizes(), parameter.tensor.strides(), 0).copy_(value);
  return flat;
}

}  // namespace

at::Tensor Engine::full_weight(std::string_view name) {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kReadWeights, "full_weight");
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const auto& parameter = impl.sharded.model.parameters[p];
  if (impl.sharded.model.units[parameter.unit].trainable) {
    return impl.gather_full(
        p, name, [&](int unit, layout::Range range) { return impl.sharded.optimizer->master_values(unit, range); });
  }
  // Frozen parameters have no master.
  at::NoGradGuard no_grad;
  impl.sharded.store->pin({&parameter.unit, 1});
  at::Tensor flat = impl.sharded.store->pinned_view(parameter.unit)
                        .narrow(0, parameter.range.begin, parameter.range.numel())
                        .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  impl.sharded.store->unpin({&parameter.unit, 1});
  return to_shape(flat, parameter.tensor);
}

void Engine::set_full_weight(std::string_view name, const at::Tensor& value) {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kSetWeight, fmt::format("set_full_weight('{}')", name).c_str());
  at::NoGradGuard no_grad;
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const auto& parameter = impl.sharded.model.parameters[p];
  if (!value.defined() || value.sizes() != parameter.tensor.sizes()) {
    throw ModelError(fmt::format("set_full_weight('{}'): the value's shape is not the parameter's", name));
  }
  const at::Tensor flat = to_flat(impl, p, value);
  check_replicated(impl, p, flat);
  impl.sharded.store->quiesce();
  impl.groups.data_parallel.barrier({.label = name}).wait();  // nobody reads the old values any more
  impl.sharded.optimizer->load_range(parameter.unit, parameter.range, flat);
  impl.sharded.store->publish(/*frozen_too=*/true);
  intercept::bump_version(parameter.tensor);
  impl.trained.without_values.erase(parameter.name);
}

at::Tensor Engine::full_gradient(std::string_view name) {
  auto& impl = *impl_;
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const auto& parameter = impl.sharded.model.parameters[p];
  impl.open_gradients(engine::Entry::kReadGradients, "full_gradient");
  if (!impl.sharded.model.units[parameter.unit].trainable) {  // and none has been unfrozen, either
    throw ModelError(fmt::format("parameter '{}' is frozen and has no gradient", name));
  }
  if (impl.sharded.reducer->window_is_empty()) return at::zeros(parameter.tensor.sizes(), at::kFloat);
  return impl
      .gather_full(p, name,
                   [&](int unit, layout::Range range) -> at::Tensor {
                     return range.empty() ? at::Tensor()
                                          : impl.sharded.reducer->accumulated(unit, range).to(at::kFloat);
                   })
      .mul_(impl.step.sums_are_averages ? 1.0 : impl.accumulation.averaging());
}

at::Tensor Engine::full_optimizer_state(std::string_view name, std::string_view state) {
  auto& impl = *impl_;
  impl.check_trains("full_optimizer_state");
  impl.enter(engine::Entry::kReadWeights, "full_optimizer_state");
  const int p = engine::find_parameter(impl.trained.inventory, name);
  for (const auto& known : impl.sharded.optimizer->tensor_states(p)) {
    if (known.name != state) continue;
    const int owner = impl.sharded.optimizer->tensor_states_owner(p);
    at::Tensor values = impl.sharded.optimizer->tensor_state(p, state);
    values = values.defined() ? values.clone() : at::empty(known.shape, impl.sharded.model.device);
    const sharding::ShardGroup& shards = impl.sharded.model.group_of(impl.sharded.model.parameters[p].unit);
    shards.transport->broadcast(values.mutable_data_ptr(), values.numel(), DType::kFloat32, owner, {.label = name})
        .wait();
    return values;
  }
  const engine::OptimizerSource& source = *impl.optimizer_source;
  if (!impl.sharded.model.units[impl.sharded.model.parameters[p].unit].trainable)
    return source.state_before_updates(p, state);
  return impl.gather_full(p, name, [&](int, layout::Range range) { return source.state(p, state, range); });
}

namespace {

/// Throws ModelError.
void check_shape(std::string_view caller, std::string_view name, const at::Tensor& value, at::IntArrayRef wanted) {
  if (value.defined() && value.sizes() == wanted) return;
  throw ModelError(fmt::format(
      "{}('{}'): the value has {}, wanted the shape [{}]", caller, name,
      value.defined() ? fmt::format("the shape [{}]", fmt::join(value.sizes(), ", ")) : std::string("no tensor"),
      fmt::join(wanted, ", ")));
}

/// What this rank updates of a parameter. Throws ModelError for a frozen one.
layout::Range updated_part(const Engine::Impl& impl, int p) {
  const auto& parameter = impl.sharded.model.parameters[p];
  if (!impl.sharded.model.units[parameter.unit].trainable)
    throw ModelError(fmt::format("parameter '{}' is frozen: nothing of it is updated", parameter.name));
  return layout::intersect(parameter.range, impl.sharded.optimizer->update_range(parameter.unit));
}

Engine::LocalRange range_in_parameter(const Engine::Impl& impl, int p, layout::Range mine) {
  if (mine.empty()) return {};
  const std::int64_t begin = mine.begin - impl.sharded.model.parameters[p].range.begin;
  return {begin, begin + mine.numel()};
}

Engine::LocalPart local_part(const Engine::Impl& impl, int p, layout::Range mine, const at::Tensor& values) {
  return {range_in_parameter(impl, p, mine).begin, values.defined()
                                                       ? values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
                                                       : at::empty({0}, impl.sharded.model.device)};
}

}  // namespace

void Engine::set_full_optimizer_state(std::string_view name, std::string_view state, const at::Tensor& value) {
  auto& impl = *impl_;
  const at::NoGradGuard no_grad;
  impl.check_trains("set_full_optimizer_state");
  impl.enter(engine::Entry::kBetweenSteps, "set_full_optimizer_state");
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const layout::Range mine = updated_part(impl, p);
  const auto& parameter = impl.sharded.model.parameters[p];
  for (const auto& known : impl.sharded.optimizer->tensor_states(p)) {
    if (known.name != state) continue;
    check_shape("set_full_optimizer_state", name, value, known.shape);
    if (const at::Tensor held = impl.sharded.optimizer->tensor_state(p, state); held.defined()) held.copy_(value);
    return;
  }
  check_shape("set_full_optimizer_state", name, value, parameter.tensor.sizes());
  const at::Tensor its =
      mine.empty() ? at::Tensor() : to_flat(impl, p, value).narrow(0, mine.begin - parameter.range.begin, mine.numel());
  impl.optimizer_source->set_state(p, state, mine, its);
}

std::vector<std::string> Engine::optimizer_states(std::string_view name) const {
  const auto& impl = *impl_;
  const int p = engine::find_parameter(impl.trained.inventory, name);
  if (impl.trained.evaluation_only || !impl.sharded.model.units[impl.sharded.model.parameters[p].unit].trainable)
    return {};
  return impl.optimizer_source->state_names(p);
}

int Engine::parameter_group_of(std::string_view name) const {
  return impl_->sharded.optimizer->group_of(engine::find_parameter(impl_->trained.inventory, name));
}

Engine::LocalRange Engine::local_range(std::string_view name) const {
  const int p = engine::find_parameter(impl_->trained.inventory, name);
  return range_in_parameter(*impl_, p, updated_part(*impl_, p));
}

Engine::LocalPart Engine::local_weight(std::string_view name) {
  auto& impl = *impl_;
  impl.enter(engine::Entry::kReadWeights, "local_weight");
  const at::NoGradGuard no_grad;
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const layout::Range mine = updated_part(impl, p);
  return local_part(
      impl, p, mine,
      mine.empty() ? at::Tensor() : impl.sharded.optimizer->master_values(impl.sharded.model.parameters[p].unit, mine));
}

Engine::LocalPart Engine::local_optimizer_state(std::string_view name, std::string_view state) {
  auto& impl = *impl_;
  impl.check_trains("local_optimizer_state");
  impl.enter(engine::Entry::kReadWeights, "local_optimizer_state");
  const at::NoGradGuard no_grad;
  const int p = engine::find_parameter(impl.trained.inventory, name);
  const layout::Range mine = updated_part(impl, p);
  return local_part(impl, p, mine, impl.optimizer_source->state(p, state, mine));
}

}  // namespace zero
