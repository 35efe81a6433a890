// Gradients between backward() and step(): read, changed, clipped, as averages over the window.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>

#include "engine/engine_impl.h"
#include "zero/errors.h"

namespace zero {

void Engine::Impl::open_gradients(engine::Entry entry, const char* caller) {
  enter(entry, caller);
  sharded.reducer->flush(caller);
  const bool changes = entry == engine::Entry::kChangeGradients;
  if (changes || !sharded.reducer->window_is_empty()) sharded.reducer->hold_sums();
  if (!changes) return;
  if (!step.sums_are_averages) sharded.reducer->scale_sums(accumulation.averaging());
  step.sums_are_averages = true;
  gradients->mark_all();
}

namespace {

/// Calls `visit(parameter, part of it in its own elements, values)` for what this rank holds of each gradient, of which
/// the values may be changed.
template <class Visit>
void for_each_part(Engine::Impl& impl, Visit visit) {
  at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < impl.sharded.model.parameters.size(); ++p) {
    const auto& parameter = impl.sharded.model.parameters[p];
    const auto& unit = impl.sharded.model.units[parameter.unit];
    if (!unit.trainable || !parameter.tensor.requires_grad()) continue;
    const layout::Range mine = layout::intersect(parameter.range, impl.sharded.model.shard_of(parameter.unit));
    if (mine.empty()) continue;
    impl.sharded.reducer->visit_sums(parameter.unit, mine, sharding::GradientSums::Access::kUpdate,
                                     [&](layout::Range piece, sharding::Sums sums) {
                                       const std::int64_t begin = piece.begin - parameter.range.begin;
                                       visit(parameter, layout::Range{begin, begin + piece.numel()},
                                             impl.sharded.model.view(sums.data, sums.dtype, piece.numel()));
                                     });
  }
}

}  // namespace

void Engine::for_each_gradient(const std::function<void(const GradientPart&)>& change) {
  impl_->open_gradients(engine::Entry::kChangeGradients, "for_each_gradient");
  for_each_part(*impl_, [&](const sharding::Parameter& parameter, layout::Range part, const at::Tensor& values) {
    change({parameter.name, parameter.tensor.sizes(), parameter.strides, part.begin, values});
    const int p = parameter.handle->parameter();
    // A gradient that somebody gives to a parameter without one counts.
    if (!impl_->sharded.reducer->used_in_window(p) && values.any().item<bool>())
      impl_->sharded.reducer->count_as_used_here(p);
  });
  impl_->sharded.reducer->refresh_sumsq();
}

void Engine::set_full_gradient(std::string_view name, const at::Tensor& value) {
  const int p = engine::find_parameter(impl_->trained.inventory, name);
  const auto& parameter = impl_->sharded.model.parameters[p];
  if (!value.defined() || value.sizes() != parameter.tensor.sizes()) {
    throw ModelError(fmt::format("set_full_gradient('{}'): the value's shape is not the parameter's", name));
  }
  if (!parameter.tensor.requires_grad()) {
    throw ModelError(fmt::format("set_full_gradient('{}'): the parameter is frozen and has no gradient", name));
  }
  impl_->open_gradients(engine::Entry::kChangeGradients, "set_full_gradient");
  at::NoGradGuard no_grad;
  const at::Tensor flat =
      at::empty({parameter.range.numel()}, at::TensorOptions().dtype(at::kFloat).device(impl_->sharded.model.device));
  flat.as_strided(parameter.tensor.sizes(), parameter.strides).copy_(value);
  for_each_part(*impl_, [&](const sharding::Parameter& other, layout::Range part, const at::Tensor& values) {
    if (&other == &parameter) values.copy_(flat.narrow(0, part.begin, part.numel()));
  });
  impl_->sharded.reducer->count_as_used(p);
  impl_->sharded.reducer->refresh_sumsq();
}

void Engine::clip_grad_value(double bound) {
  if (!(bound >= 0))
    throw ConfigError(fmt::format("clip_grad_value({:g}): wanted a bound that is not negative", bound));
  impl_->open_gradients(engine::Entry::kChangeGradients, "clip_grad_value");
  for_each_part(*impl_, [&](const sharding::Parameter&, layout::Range, const at::Tensor& values) {
    values.clamp_(-bound, bound);
  });
  impl_->sharded.reducer->refresh_sumsq();
}

double Engine::clip_grad_norm(double bound) {
  if (!(bound > 0)) throw ConfigError(fmt::format("clip_grad_norm({:g}): wanted a bound above 0", bound));
  impl_->open_gradients(engine::Entry::kChangeGradients, "clip_grad_norm");
  const double norm = impl_->compute_norm();
  if (norm > bound) impl_->sharded.reducer->scale_sums(bound / (norm + 1e-6));
  return norm;
}

}  // namespace zero
