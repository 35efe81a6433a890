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

namespace {

std::int64_t nbytes_of(std::int64_t numel) { return numel * static_cast<std::int64_t>(sizeof(float)); }

}  // namespace

GradientSums::GradientSums(ShardedModel& model, storage::Ledger& ledger, std::vector<std::int64_t> numel)
    : model_(model), ledger_(ledger), numel_(std::move(numel)), data_(numel_.size(), nullptr) {
  const std::int64_t total = std::accumulate(numel_.begin(), numel_.end(), std::int64_t{0});
  if (model.device.is_cpu() && model.sharding.optimizer_states && storage::keeps_blocks()) {
    ledger.add(MemoryKind::kGradients, nbytes_of(total));
    ledger.set_idle(MemoryKind::kGradients, nbytes_of(total));
    return;
  }
  // Whole sums are sent to all ranks, who read them in place.
  always_ =
      model.sharding.optimizer_states || !model.device.is_cpu()
          ? FlatBuffer::make_private(ledger, MemoryKind::kGradients, DType::kFloat32, total, model.device)
          : FlatBuffer::make_readable(ledger, MemoryKind::kGradients, DType::kFloat32, total, model.group);
  std::int64_t offset = 0;
  for (std::size_t u = 0; u < numel_.size(); ++u) {
    if (numel_[u]) data_[u] = static_cast<float*>(always_.data_at(offset));
    offset += numel_[u];
  }
}

GradientSums::~GradientSums() {
  release();
  if (!always_.empty()) return;
  const std::int64_t total = std::accumulate(numel_.begin(), numel_.end(), std::int64_t{0});
  ledger_.set_idle(MemoryKind::kGradients, -nbytes_of(total));
  ledger_.add(MemoryKind::kGradients, -nbytes_of(total));
}

void GradientSums::take(int unit) {
  if (data_[unit] || numel_[unit] == 0) return;
  const std::int64_t nbytes = nbytes_of(numel_[unit]);
  data_[unit] = static_cast<float*>(storage::take_block(static_cast<std::size_t>(nbytes)));
  if (!data_[unit]) {
    throw IoError(
        fmt::format("no {} bytes of memory for the gradients of '{}'; use more ranks, a smaller model or "
                    "zerotorch.step_in_backward",
                    nbytes, model_.units[unit].name));
  }
  ledger_.set_idle(MemoryKind::kGradients, -nbytes);
}

void GradientSums::release() {
  if (!always_.empty()) return;
  for (std::size_t u = 0; u < data_.size(); ++u) {
    if (!data_[u]) continue;
    storage::return_block(data_[u]);
    data_[u] = nullptr;
    ledger_.set_idle(MemoryKind::kGradients, nbytes_of(numel_[u]));
  }
}

at::Tensor GradientSums::view(int unit) const {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(model_.device);
  if (numel_[unit] == 0) return at::empty({0}, options);
  ZERO_CHECK(data_[unit], "unit {} has no sums", unit);
  return at::from_blob(data_[unit], {numel_[unit]}, options);
}

}  // namespace zero::sharding
