#include "engine/entry.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"
#include "storage/flat_buffer.h"
#include "zero/errors.h"

namespace zero {
namespace {

struct Needs {
  bool unscoped = false;          ///< no GatheredParameters is alive
  const char* why_unscoped = "";  ///< ends the message
  bool trains = false;            ///< it was not made for evaluation only
  bool sums = false;              ///< gradients are kept until step()
  bool last_micro_batch = false;
  bool module = false;         ///< unchanged
  bool own_gradients = false;  ///< only this engine's backward has made gradients
  bool no_gradients = false;
  bool committed = false;  ///< what the program has written is part of the weights
  bool values = false;     ///< every parameter has some
};

Needs needs_of(engine::Entry entry) {
  using engine::Entry;
  switch (entry) {
    case Entry::kZeroGrad:
      return {};
    case Entry::kBackward:
      return {.trains = true, .module = true, .own_gradients = true, .values = true};
    case Entry::kStep:
      return {.unscoped = true,
              .why_unscoped = ", its parameters would be stale",
              .trains = true,
              .module = true,
              .own_gradients = true,
              .values = true};
    case Entry::kReadWeights:
      return {.module = true, .committed = true};
    case Entry::kSetWeight:
      return {.unscoped = true,
              .why_unscoped = ", it would write back what it has gathered",
              .module = true,
              .committed = true};
    case Entry::kBetweenSteps:
      return {.unscoped = true, .module = true, .own_gradients = true, .no_gradients = true, .committed = true};
    case Entry::kReadGradients:
      return {.trains = true, .sums = true, .own_gradients = true};
    case Entry::kChangeGradients:
      return {.trains = true, .sums = true, .last_micro_batch = true, .own_gradients = true};
  }
  throw InternalError("unknown entry");
}

}  // namespace

void Engine::Impl::enter(engine::Entry entry, const char* caller) {
  check_usable();
  const bool trains_on = entry == engine::Entry::kBackward || entry == engine::Entry::kStep;
  if (!trains_on && entry != engine::Entry::kReadGradients) sharded.update->drop();
  const Needs needs = needs_of(entry);
  if (needs.trains) check_trains(caller);
  if (needs.values) check_values(caller);
  if (needs.unscoped && life.gathered_scopes > 0) {
    throw ModelError(fmt::format("{} inside a zero::GatheredParameters: close it first{}", caller, needs.why_unscoped));
  }
  if (const auto why = needs.sums ? without_gradients(caller) : std::string(); !why.empty()) throw ModelError(why);
  if (needs.last_micro_batch && !accumulation.is_boundary()) {
    throw ModelError(
        fmt::format("{}: gradients can be changed in the last micro-batch of a window only "
                    "(is_gradient_accumulation_boundary()): "
                    "micro-batches that come would be added to what was changed",
                    caller));
  }
  if (needs.module) check_module();
  if (needs.own_gradients) gradients->look(caller);
  if (needs.no_gradients && sharded.reducer->micro_batch_has_gradients()) {
    throw ModelError(
        fmt::format("{} between backward() and step(): call it after step(), also when that is inside an "
                    "accumulation window",
                    caller));
  }
  if (needs.committed) commit_weights();
}

void Engine::Impl::check_trains(const char* caller) const {
  if (!trained.evaluation_only) return;
  throw ModelError(
      fmt::format("{}: this engine was made with InitializeOptions::evaluation_only, its parameters are frozen and "
                  "have no gradients and optimizer states; make one without it to train",
                  caller));
}

void Engine::Impl::check_values(const char* caller) const {
  if (trained.without_values.empty()) return;
  throw ModelError(fmt::format(
      "{}: parameter '{}'{} was built under a zero::DeferredInit with without_values and has no values yet: call "
      "load_checkpoint(), load_full_weights() or set_full_weight() first",
      caller, *trained.without_values.begin(),
      trained.without_values.size() == 1 ? "" : fmt::format(" and {} others", trained.without_values.size() - 1)));
}

void Engine::Impl::note_loaded(const LoadReport& report) {
  const auto is_left_out = [&report](const std::string& name) {
    return std::ranges::find(report.missing, name) != report.missing.end() ||
           std::ranges::any_of(report.mismatched, [&](const auto& text) { return text.starts_with(name + ":"); });
  };
  std::erase_if(trained.without_values, [&](const std::string& name) { return !is_left_out(name); });
}

void Engine::Impl::check_usable() const {
  if (life.failed) {
    throw CommError(
        "an earlier step of this engine failed half-way; its ranks may hold different values: make a "
        "new engine");
  }
  if (life.half_loaded) {
    throw CheckpointError(
        "loading a checkpoint failed after some values had been changed; load another one (or set "
        "LoadOptions::fall_back) before going on");
  }
}

void Engine::Impl::check_module() {
  if (!engine::is_unchanged(trained.inventory, trained.view))
    engine::throw_module_changed(trained.inventory, trained.view);
  for (std::size_t p = 0; p < sharded.model.parameters.size(); ++p) {
    const auto& parameter = sharded.model.parameters[p];
    if (parameter.handle->owns(parameter.tensor)) continue;
    const at::Tensor& now = parameter.tensor;
    const bool same_kind = now.scalar_type() == device::to_scalar_type(sharded.model.param_dtype) &&
                           now.device() == sharded.model.module_device && now.layout() == at::kStrided &&
                           now.numel() == parameter.range.numel() &&
                           now.sizes() == at::IntArrayRef(trained.inventory.parameters[p].sizes);
    if (same_kind && !sharded.store->refuses_writes()) {
      sharded.store->writes().take_over(static_cast<int>(p), now.detach(), &uses);
      gradients->follow_set_data(static_cast<int>(p));
      continue;
    }
    throw ModelError(fmt::format(
        "parameter '{}' no longer has the memory the engine gave it (module->to(), torch::load(), "
        "set_data() or an assignment replaced it by one of another dtype, device or shape); convert and move "
        "the "
        "module before zero::initialize, load checkpoints with "
        "Engine::load_checkpoint, a plain state dict with Engine::load_full_weights and single whole tensors "
        "with Engine::set_full_weight",
        parameter.name));
  }
}

void Engine::Impl::commit_weights() {
  sharded.update->settle();
  finish_pending_update();
  if (keeps_gradients()) sharded.store->writes().commit(*sharded.store, *sharded.optimizer);
}

std::string Engine::Impl::without_gradients(const char* caller) const {
  if (keeps_gradients()) return {};
  return fmt::format("{}: zerotorch.update \"{}\" uses gradients up in backward and keeps none; choose another one",
                     caller, config::kind_of(config.zerotorch.update).name);
}

}  // namespace zero
