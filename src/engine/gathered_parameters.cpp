#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "intercept/gradient_hook.h"
#include "zero/errors.h"

namespace zero {
namespace {

std::vector<int> units_of(const sharding::ShardedModel& model, const std::vector<int>& parameters) {
  std::set<int> units;
  for (int p : parameters) units.insert(model.parameters[p].unit);
  return {units.begin(), units.end()};
}

/// What is not split gets the values of the first model-parallel rank. *Collective* over the modifiers of a copy.
void take_first_part(Engine::Impl& impl, const std::vector<int>& parameters) {
  for (const int p : parameters) {
    const auto& parameter = impl.sharded.model.parameters[p];
    if (!impl.sharded.model.units[parameter.unit].replicated || parameter.range.empty()) continue;
    const at::Tensor values =
        impl.sharded.store->pinned_view(parameter.unit).narrow(0, parameter.range.begin, parameter.range.numel());
    impl.groups.model_parallel
        ->broadcast(values.mutable_data_ptr(), parameter.range.numel(), impl.sharded.model.param_dtype, 0,
                    {.label = parameter.name})
        .wait();
  }
}

/// Of the modifier: what it has assigned goes where all have the parameters, and if the scope has failed, nothing has
/// been written there. Local.
void end_writes(Engine::Impl& impl, const std::vector<int>& parameters, bool failed) {
  sharding::ParameterWrites& writes = impl.sharded.store->writes();
  for (const int p : parameters) {
    const auto& parameter = impl.sharded.model.parameters[p];
    if (parameter.range.empty()) continue;
    void* const gathered = impl.sharded.store->module_values(p);
    if (failed) {
      writes.take_back(p, gathered);
      intercept::bump_version(parameter.tensor);
    } else if (writes.has(p)) {
      writes.copy_to(p, gathered);
    }
    writes.forget_original(p);
  }
  if (!failed) impl.sharded.store->collect(parameters);
}

std::vector<at::Tensor> all_parameters(Engine& engine) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : engine.impl().sharded.model.parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

GatheredParameters::GatheredParameters(Engine& engine, std::optional<int> modifier_rank)
    : GatheredParameters(engine, all_parameters(engine), modifier_rank) {}

GatheredParameters::GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters,
                                       std::optional<int> modifier_rank, ReadersWrites readers_writes)
    : engine_(engine.impl().life.self),
      modifier_rank_(modifier_rank),
      readers_writes_(readers_writes),
      exceptions_(std::uncaught_exceptions()) {
  auto& impl = **engine_;
  impl.enter(engine::Entry::kReadWeights, "GatheredParameters");
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= impl.groups.data_parallel.size())) {
    throw ConfigError(fmt::format("GatheredParameters: modifier_rank {} is not a rank of a group of {}", *modifier_rank,
                                  impl.groups.data_parallel.size()));
  }
  if (modifier_rank && impl.groups.across_islands) {
    throw ConfigError(
        "GatheredParameters with modifier_rank: what one rank writes reaches its island only (zerotorch.local_steps); "
        "write the same values on all ranks with Engine::set_full_weight");
  }
  for (const auto& tensor : parameters) {
    const auto* handle = intercept::ParameterHandle::of(tensor);
    if (!handle || handle->observer() != &impl.uses) {
      throw ModelError("GatheredParameters: a tensor is not a parameter of this engine's module");
    }
    parameters_.push_back(handle->parameter());
  }
  std::sort(parameters_.begin(), parameters_.end());
  parameters_.erase(std::unique(parameters_.begin(), parameters_.end()), parameters_.end());
  impl.sharded.store->pin(units_of(impl.sharded.model, parameters_));
  for (const int p : parameters_) {
    const auto& parameter = impl.sharded.model.parameters[p];
    before_.push_back(modifier_rank ? impl.sharded.optimizer->low_values(parameter.unit, parameter.range)
                                    : at::Tensor());
  }
  if (modifier_rank) impl.sharded.store->begin_modifying();
  if (modifier_rank && impl.groups.data_parallel.size() > 1) {
    // The modifier may write into memory that others have just copied.
    impl.groups.data_parallel.barrier({.label = "GatheredParameters"}).wait();
  }
  using Write = sharding::ParameterStore::Write;
  impl.sharded.store->set_write(parameters_, modifier_rank == impl.groups.data_parallel.rank() ? Write::kGathered
                                             : readers_writes == ReadersWrites::kDropped       ? Write::kOwnCopy
                                                                                               : Write::kRefused);
  if (readers_writes == ReadersWrites::kDropped) impl.sharded.store->begin_dropping(parameters_);
  ++impl.life.gathered_scopes;
}

void GatheredParameters::close() {
  if (!engine_) return;
  Engine::Impl* const engine = *std::exchange(engine_, nullptr);
  if (!engine) {
    if (modifier_rank_) base::log_warning("GatheredParameters: its engine went first, what was written is lost");
    return;
  }
  auto& impl = *engine;
  const auto units = units_of(impl.sharded.model, parameters_);
  --impl.life.gathered_scopes;
  impl.sharded.store->set_write(parameters_, sharding::ParameterStore::Write::kOwnCopy);
  const bool failed = std::uncaught_exceptions() != exceptions_;
  if (readers_writes_ == ReadersWrites::kDropped) impl.check_module();  // an assignment to data is a write, too
  if (modifier_rank_ == impl.groups.data_parallel.rank()) end_writes(impl, parameters_, failed);
  if (modifier_rank_) impl.sharded.store->end_modifying(*modifier_rank_, failed);
  if (readers_writes_ == ReadersWrites::kDropped) impl.sharded.store->end_dropping(parameters_);
  if (modifier_rank_ && !failed) {
    if (impl.groups.model_parallel && impl.groups.data_parallel.rank() == *modifier_rank_)
      take_first_part(impl, parameters_);
    impl.sharded.store->broadcast(parameters_, *modifier_rank_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& parameter = impl.sharded.model.parameters[parameters_[i]];
      impl.sharded.optimizer->refresh(parameter.unit, parameter.range, before_[i]);
      intercept::bump_version(parameter.tensor);
    }
  }
  before_.clear();
  impl.sharded.store->unpin(units);
}

GatheredParameters::~GatheredParameters() {
  try {
    close();
  } catch (const std::exception& error) {
    base::log_error("GatheredParameters: {}", error.what());
  }
}

}  // namespace zero
