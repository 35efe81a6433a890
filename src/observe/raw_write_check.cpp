#include "observe/raw_write_check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "zero/errors.h"

namespace zero::observe {

RawWriteCheck::RawWriteCheck(const sharding::ShardedModel& model) : model_(model) { remember(); }

RawWriteCheck::Mark RawWriteCheck::mark_of(const sharding::Parameter& parameter) const {
  if (!parameter.handle->attached() || parameter.range.empty() || !model_.module_device.is_cpu()) return {};
  const auto nbytes = static_cast<std::size_t>(parameter.range.numel()) * element_nbytes(model_.param_dtype);
  const void* const data = parameter.tensor.const_data_ptr();
  return {data, static_cast<std::uint32_t>(parameter.tensor._version()), XXH3_64bits(data, nbytes)};
}

void RawWriteCheck::before_step() {
  for (std::size_t p = 0; p < marks_.size(); ++p) {
    const Mark& before = marks_[p];
    const Mark now = mark_of(model_.parameters[p]);
    if (!now.data || now.data != before.data || now.version != before.version || now.hash == before.hash) continue;
    throw ModelError(fmt::format(
        "parameter '{}' was written through a raw pointer (data_ptr(), an accessor, from_blob) since the last step: "
        "the engine cannot see such a write, and ranks would come apart; write with operators, or take "
        "zero::GatheredParameters with modifier_rank or Engine::set_full_weight",
        model_.parameters[p].name));
  }
}

void RawWriteCheck::remember() {
  marks_.clear();
  for (const auto& parameter : model_.parameters) marks_.push_back(mark_of(parameter));
}

}  // namespace zero::observe
