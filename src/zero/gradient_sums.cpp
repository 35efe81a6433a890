#include "zero/gradient_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <numeric>

#include "base/check.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero::sharding {

using storage::FlatBuffer;

GradientSums::GradientSums(ShardedModel& model, storage::Ledger& ledger, std::vector<std::int64_t> numel)
    : model_(model), ledger_(ledger), numel_(std::move(numel)), data_(numel_.size(), nullptr) {
  comes_and_goes_ = model.sharding.optimizer_states && model.home.reuses_blocks();
  if (comes_and_goes_) {
    ledger.add(MemoryKind::kGradients, nbytes_of(total_numel()));
    ledger.add_idle(MemoryKind::kGradients, nbytes_of(total_numel()));
    return;
  }
  const auto& all = always_.emplace_back(make_always(total_numel()));
  std::int64_t offset = 0;
  for (std::size_t u = 0; u < numel_.size(); ++u) {
    if (numel_[u]) data_[u] = all.data_at(offset);
    offset += numel_[u];
  }
}

std::int64_t GradientSums::total_numel() const {
  return std::accumulate(numel_.begin(), numel_.end(), std::int64_t{0});
}

FlatBuffer GradientSums::make_always(std::int64_t numel) {
  // Whole sums are sent to all ranks, who read them in place.
  return model_.sharding.optimizer_states
             ? model_.home.make_private(ledger_, MemoryKind::kGradients, model_.sum_dtype, numel)
             : model_.home.make_readable(ledger_, MemoryKind::kGradients, model_.sum_dtype, numel);
}

void GradientSums::add_unit(int unit, std::int64_t numel) {
  numel_[unit] = numel;
  if (comes_and_goes_) {
    ledger_.add(MemoryKind::kGradients, nbytes_of(numel));
    ledger_.add_idle(MemoryKind::kGradients, nbytes_of(numel));
  } else if (numel > 0) {
    data_[unit] = always_.emplace_back(make_always(numel)).data();
  }
}

GradientSums::~GradientSums() {
  release();
  if (!comes_and_goes_) return;
  ledger_.add_idle(MemoryKind::kGradients, -nbytes_of(total_numel()));
  ledger_.add(MemoryKind::kGradients, -nbytes_of(total_numel()));
}

void GradientSums::take(int unit) {
  if (data_[unit] || numel_[unit] == 0) return;
  const std::int64_t nbytes = nbytes_of(numel_[unit]);
  data_[unit] = storage::take_block(static_cast<std::size_t>(nbytes));
  if (!data_[unit]) {
    throw IoError(
        fmt::format("no {} bytes of memory for the gradients of '{}'; use more ranks, a smaller model or "
                    "zerotorch.step_in_backward",
                    nbytes, model_.units[unit].name));
  }
  ledger_.add_idle(MemoryKind::kGradients, -nbytes);
}

void GradientSums::release() {
  if (!comes_and_goes_) return;
  for (std::size_t u = 0; u < data_.size(); ++u) {
    if (!data_[u]) continue;
    storage::return_block(data_[u]);
    data_[u] = nullptr;
    ledger_.add_idle(MemoryKind::kGradients, nbytes_of(numel_[u]));
  }
}

at::Tensor GradientSums::view(int unit) const {
  const auto options = at::TensorOptions().dtype(storage::to_scalar_type(model_.sum_dtype)).device(model_.device);
  if (numel_[unit] == 0) return at::empty({0}, options);
  ZERO_CHECK(data_[unit], "unit {} has no sums", unit);
  return at::from_blob(data_[unit], {numel_[unit]}, options);
}

}  // namespace zero::sharding
