#include "zero/parameter_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "intercept/gradient_hook.h"

namespace zero::sharding {
ParameterStore::ParameterStore(ShardedModel& model, StepBreakdown& times)
    : model_(model),
      times_(times),
      process_(::getpid()),
      writes_allowed_(model.parameters.size(), false) {}

void ParameterStore::allow_writes(std::span<const int> parameters, bool allowed) {
  for (int index : parameters) writes_allowed_[index] = allowed;
}

void ParameterStore::before_write(intercept::ParameterHandle& handle, const char* op_name) {
  if (writes_allowed_[handle.parameter()]) return;
  throw ModelError(fmt::format(
      "rank {}: {} writes parameter '{}' in place; the write would be lost at the next step, because the "
      "values live in a sharded master copy. Load a state dict with Engine::load_full_weights; for other "
      "changes hold a zero::GatheredParameters over the parameter with modifier_rank set, and write on that "
      "rank",
      model_.rank(), op_name, handle.name()));
}

void ParameterStore::attach(int index, void* base) {
  const auto nbytes = static_cast<std::int64_t>(element_nbytes(model_.low_dtype));
  for (int p : unit(index).parameters) {
    auto& parameter = model_.parameters[p];
    parameter.handle->attach(static_cast<char*>(base) + parameter.range.begin * nbytes);
  }
}

void ParameterStore::release(int index) {
  for (int p : unit(index).parameters) model_.parameters[p].handle->release();
}

int ParameterStore::phase() const { return intercept::in_backward() ? 1 : 0; }

}  // namespace zero::sharding
