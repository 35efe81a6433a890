#include "sharding/parameter_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "intercept/gradient_hook.h"

namespace zero::sharding {
ParameterStore::ParameterStore(ShardedModel& model, storage::Ledger& ledger, Timeline& timeline)
    : model_(model),
      timeline_(timeline),
      process_(::getpid()),
      writes_(model, ledger),
      write_(model.parameters.size(), Write::kOwnCopy) {}

void ParameterStore::set_write(std::span<const int> parameters, Write write) {
  for (int index : parameters) write_[index] = write;
}

void* ParameterStore::module_values(int p) {
  const auto& parameter = model_.parameters[p];
  return pinned_view(parameter.unit).narrow(0, parameter.range.begin, parameter.range.numel()).mutable_data_ptr();
}

void ParameterStore::end_dropping(std::span<const int> parameters) {
  writes_.set_to_be_dropped(parameters, false);
  for (const int p : parameters) {
    if (!writes_.has(p)) continue;
    writes_.drop(p);
    reattach(p);
    intercept::bump_version(model_.parameters[p].tensor);
  }
}

void ParameterStore::before_write(intercept::ParameterHandle& handle, const char* op_name) {
  const int p = handle.parameter();
  if (writes_.has(p) || model_.parameters[p].range.empty()) return;
  if (write_[p] == Write::kGathered) return writes_.keep_original(p, handle.data());
  if (write_[p] == Write::kRefused) {
    throw ModelError(
        fmt::format("rank {}: {} writes parameter '{}' in place inside a zero::GatheredParameters in which this rank "
                    "only reads; "
                    "give the scope this rank as modifier_rank, or write outside of it, the same on every rank",
                    model_.rank(), op_name, handle.name()));
  }
  if (!refuses_writes_.empty() && !writes_.is_to_be_dropped(p)) {
    throw ModelError(fmt::format("rank {}: {} writes parameter '{}' in place: {}", model_.rank(), op_name,
                                 handle.name(), refuses_writes_));
  }
  before_use(handle);
  writes_.begin(p, handle.data());
  after_use(handle);
}

void ParameterStore::attach(int index, void* base) {
  for (int p : unit(index).parameters) attach_parameter(p, base);
}

void ParameterStore::attach_parameter(int p, void* base) {
  if (writes_.has(p)) return;
  auto& parameter = model_.parameters[p];
  const auto nbytes = static_cast<std::int64_t>(element_nbytes(model_.param_dtype));
  parameter.handle->attach(static_cast<char*>(base) + parameter.range.begin * nbytes);
}

void ParameterStore::release(int index, std::string (*why_of)(const std::string& name)) {
  for (int p : unit(index).parameters) {
    if (writes_.has(p)) continue;
    intercept::ParameterHandle& handle = *model_.parameters[p].handle;
    handle.release(why_of ? why_of(handle.name()) : std::string());
  }
}

int ParameterStore::phase() const { return intercept::in_backward() ? 1 : 0; }

}  // namespace zero::sharding
