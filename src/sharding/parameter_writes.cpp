#include "sharding/parameter_writes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "sharding/parameter_store.h"
#include "sharding/sharded_optimizer.h"
#include "zero/errors.h"

namespace zero::sharding {

storage::FlatBuffer ParameterWrites::make(int parameter) {
  return storage::FlatBuffer::make_private(ledger_, MemoryKind::kParameters, model_.param_dtype,
                                           model_.parameters[parameter].range.numel(), model_.module_device);
}

void ParameterWrites::copy(void* out, const void* in, const storage::FlatBuffer& size_of) const {
  optim::passes_for(model_.module_device).copy(out, in, size_of.nbytes());
}

storage::FlatBuffer& ParameterWrites::copy_of(int parameter) {
  const auto found = copies_.find(parameter);
  return found != copies_.end() ? found->second : copies_.emplace(parameter, make(parameter)).first->second;
}

void ParameterWrites::keep_original(int parameter, const void* memory) {
  if (originals_.contains(parameter)) return;
  const auto& kept = originals_.emplace(parameter, make(parameter)).first->second;
  copy(kept.data(), memory, kept);
}

void ParameterWrites::take_back(int parameter, void* memory) {
  const auto kept = originals_.find(parameter);
  if (kept == originals_.end()) return;
  copy(memory, kept->second.data(), kept->second);
  originals_.erase(kept);
}

void ParameterWrites::copy_to(int parameter, void* memory) const {
  const storage::FlatBuffer& own = copies_.at(parameter);
  copy(memory, own.data(), own);
}

void ParameterWrites::begin(int parameter, const void* values) {
  if (has(parameter)) return;
  auto& own = copy_of(parameter);
  copy(own.data(), values, own);
  model_.parameters[parameter].handle->attach(own.data());
}

void ParameterWrites::take_over(int p, const at::Tensor& values, intercept::UseObserver* observer) {
  at::NoGradGuard no_grad;
  auto& parameter = model_.parameters[p];
  auto& own = copy_of(p);
  own.view(0, own.numel()).as_strided(values.sizes(), parameter.strides).copy_(values.detach());
  parameter.handle->adopt(parameter.tensor, device::to_scalar_type(model_.param_dtype), parameter.strides, own.nbytes(),
                          model_.module_device, observer);
  parameter.handle->attach(own.data());
}

void ParameterWrites::set_to_be_dropped(std::span<const int> parameters, bool to_be_dropped) {
  for (const int p : parameters) {
    if (to_be_dropped) {
      to_be_dropped_.insert(p);
    } else {
      to_be_dropped_.erase(p);
    }
  }
}

bool ParameterWrites::empty() const {
  return std::ranges::all_of(copies_, [&](const auto& item) { return to_be_dropped_.contains(item.first); });
}

std::vector<int> ParameterWrites::written_by_any() {
  std::vector<std::int64_t> flags(model_.parameters.size(), 0);
  for (const auto& [p, copy] : copies_) flags[p] = !to_be_dropped_.contains(p);
  if (model_.world_size() > 1) {
    model_.data_ranks
        .all_reduce(flags.data(), static_cast<std::int64_t>(flags.size()), DType::kInt64, ReduceOp::kMax,
                    {.label = "written parameters"})
        .wait();
  }
  std::vector<int> written;
  for (std::size_t p = 0; p < flags.size(); ++p) {
    if (flags[p]) written.push_back(static_cast<int>(p));
  }
  return written;
}

/// Makes `current` [numel], the values that all ranks have, what the ranks have made of it.
void ParameterWrites::merge(int p, const at::Tensor& current) const {
  const auto found = copies_.find(p);
  const at::Tensor mine =
      found == copies_.end() ? current.clone() : found->second.view(0, current.numel()).to(current.device());
  const ShardGroup& group = model_.group_of(model_.parameters[p].unit);
  const int ranks = group.ranks.size();
  if (ranks == 1) {
    current.copy_(mine);
    return;
  }
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), current.numel());
  const at::Tensor all = at::empty({ranks, current.numel()}, current.options());
  group.transport
      ->all_gather(mine.const_data_ptr(), all.mutable_data_ptr(), counts, model_.param_dtype,
                   {.label = model_.parameters[p].name})
      .wait();
  const auto bits = [](const at::Tensor& tensor) {
    return tensor.view(tensor.element_size() == 2 ? at::kShort : at::kInt);
  };
  const at::Tensor before = current.clone();
  for (int rank = 0; rank < ranks; ++rank) {
    const at::Tensor theirs = all.select(0, rank);
    const at::Tensor changed = bits(theirs).ne(bits(before));
    const at::Tensor conflict =
        changed.logical_and(bits(current).ne(bits(before))).logical_and(bits(current).ne(bits(theirs)));
    if (conflict.any().item<bool>()) {
      model_.data_ranks.barrier({.label = "conflicting writes"}).wait();  // so that all ranks know as much
      throw ModelError(
          fmt::format("rank {} and a rank before it have written different values into parameter '{}' since "
                      "the last step; a "
                      "program must write the same on every rank, or on one only (seed random values alike, "
                      "and derive nothing "
                      "from the rank's own data)",
                      rank, model_.parameters[p].name));
    }
    current.copy_(at::where(changed, theirs, current));
  }
}

void ParameterWrites::commit(ParameterStore& store, ShardedOptimizer& optimizer) {
  at::NoGradGuard no_grad;
  store.quiesce();  // nobody fetches what is about to change
  const std::vector<int> written = written_by_any();
  for (const int p : written) {
    const auto& parameter = model_.parameters[p];
    const int unit = parameter.unit;
    store.pin({&unit, 1});
    const at::Tensor before = optimizer.low_values(unit, parameter.range);
    const at::Tensor whole = store.pinned_view(unit).narrow(0, parameter.range.begin, parameter.range.numel());
    at::Tensor merged = whole.clone();
    merge(p, merged);
    if (model_.units[unit].replicated) {
      const std::uint64_t seed = replicated_hash_ + static_cast<std::uint64_t>(p) + 1;
      replicated_hash_ = XXH3_64bits_withSeed(merged.cpu().const_data_ptr(), merged.nbytes(), seed);
    }
    // Everybody has read it; rank 0 writes for all.
    model_.data_ranks.barrier({.label = parameter.name}).wait();
    if (model_.rank() == 0) whole.copy_(merged);
    store.broadcast({&p, 1}, 0);
    optimizer.refresh(unit, parameter.range, before);
    const auto copy = copies_.find(p);
    if (copy != copies_.end()) {
      const storage::FlatBuffer ended = std::move(copy->second);
      copies_.erase(copy);
      parameter.handle->release();
      store.reattach(p);
    }
    store.unpin({&unit, 1});
  }
  if (!written.empty()) store.publish(/*frozen_too=*/true);
}

}  // namespace zero::sharding
