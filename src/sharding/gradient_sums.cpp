#include "sharding/gradient_sums.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "device/device_stream.h"
#include "layout/shard.h"
#include "layout/state_slots.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::sharding {

using offload::ShardStore;

GradientSums::GradientSums(ShardedModel& model, const std::vector<Range>& held, DType dtype, MakeStore make_store,
                           std::function<std::int64_t(int unit)> piece_numel)
    : model_(model),
      held_(held),
      dtype_(dtype),
      make_store_(std::move(make_store)),
      piece_numel_(std::move(piece_numel)),
      taken_(held.size(), false),
      store_(make(dtype)) {}

std::unique_ptr<ShardStore> GradientSums::make(DType dtype) const {
  std::unique_ptr<ShardStore> store = make_store_(dtype);
  std::vector<offload::StorePart> parts;
  for (std::size_t u = 0; u < held_.size(); ++u) {
    if (!held_[u].empty()) parts.push_back(part_of(static_cast<int>(u)));
  }
  store->add_units(parts);
  return store;
}

offload::StorePart GradientSums::part_of(int unit) const {
  return {unit, held_[unit], offload::kAllColumns, piece_numel_(unit)};
}

void GradientSums::widen() {
  if (dtype_ == model_.sum_dtype) return;
  std::unique_ptr<ShardStore> wide = make(model_.sum_dtype);
  for (std::size_t u = 0; u < held_.size(); ++u) {
    if (taken_[u]) wide->hold(static_cast<int>(u));
  }
  const at::NoGradGuard no_grad;
  for (std::size_t u = 0; u < held_.size(); ++u) {
    const int unit = static_cast<int>(u);
    const std::int64_t numel = held_[u].numel();
    void* const narrow = in_memory(unit);
    if (!narrow) continue;
    model_.view(wide->in_memory(0, unit, held_[u]), model_.sum_dtype, numel).copy_(model_.view(narrow, dtype_, numel));
  }
  if (!model_.passes->in_host_memory()) device::finish_current_stream(model_.device);  // it reads what goes now
  store_ = std::move(wide);
  dtype_ = model_.sum_dtype;
}

void GradientSums::add_unit(int unit, Range held) {
  held_[unit] = held;
  const offload::StorePart part = part_of(unit);
  if (!held.empty()) store_->add_units({&part, 1});
}

void GradientSums::take(int unit) {
  if (held_[unit].empty() || taken_[unit]) return;
  try {
    store_->hold(unit);
  } catch (const IoError& error) {
    throw IoError(
        fmt::format("{} for the gradients of '{}'; use more ranks, a smaller model, zerotorch.offload_gradients or a "
                    "zerotorch.update that keeps none",
                    error.what(), model_.units[unit].name));
  }
  taken_[unit] = true;
}

void GradientSums::take_zeros() {
  store_->clear();
  for (std::size_t u = 0; u < held_.size(); ++u) taken_[u] = !held_[u].empty();
}

void GradientSums::release() {
  std::fill(taken_.begin(), taken_.end(), false);
  try {
    store_->release();
  } catch (const IoError& error) {
    throw IoError(fmt::format("sums of gradients of a window that is over: {}", error.what()));
  }
}

void GradientSums::visit(int unit, Range range, Access access, Visit visit) {
  try {
    store_->for_each(unit, range, range.numel(), access, offload::kAllColumns,
                     [&](Range piece, std::span<void* const> memory) {
                       visit(piece, {memory.front(), dtype_});
                     });
  } catch (const IoError& error) {
    throw IoError(fmt::format("sums of gradients of '{}': {}", model_.units[unit].name, error.what()));
  }
}

void* GradientSums::in_memory(int unit) const {
  return held_[unit].empty() ? nullptr : store_->in_memory(0, unit, held_[unit]);
}

namespace {

offload::StoreColumn column_of(DType dtype) {
  return {"gradients", static_cast<std::int64_t>(element_nbytes(dtype)), 1, MemoryKind::kGradients};
}

layout::ColumnShape shape_of(const ShardedModel& model) { return {column_of(model.sum_dtype).block_nbytes, 1}; }

/// Options of a file whose buffers fit the largest shard, of frozen units too: they may be unfrozen.
offload::DiskOptions disk_options(const ShardedModel& model, offload::DiskOptions disk) {
  const layout::ColumnShape shape = shape_of(model);
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u)
    largest = std::max(largest, model.shard_of(static_cast<int>(u)).numel());
  disk.cuts = layout::slot_cuts({&shape, 1}, disk.cuts.slot_numel, largest);
  return disk;
}

void warn_of_large_buffers(const ShardedModel& model, const std::vector<Range>& held,
                           const offload::DiskOptions& disk) {
  const layout::ColumnShape shape = shape_of(model);
  std::int64_t nbytes = 0;
  for (const Range range : held) nbytes += range.numel() * shape.block_nbytes;
  const std::int64_t buffers = disk.buffers * layout::slot_nbytes({&shape, 1}, 1, disk.cuts.slot_numel);
  if (model.rank() != 0 || nbytes == 0 || buffers < nbytes) return;
  base::log_warning(
      "zerotorch.offload_gradients: the sums of a rank take {}, and the buffers before their file {}: "
      "they need less memory there without it",
      human_nbytes(nbytes), human_nbytes(buffers));
}

}  // namespace

std::unique_ptr<GradientSums> make_sums(ShardedModel& model, storage::Ledger& ledger, const std::vector<Range>& held,
                                        const SumsOptions& options) {
  const auto piece_numel = [&model, bucket_numel = options.bucket_numel](int unit) {
    return layout::bucket_step(model.units[unit].numel, bucket_numel);
  };
  if (options.disk) {
    const offload::DiskOptions disk = disk_options(model, *options.disk);
    warn_of_large_buffers(model, held, disk);
    const auto make = [disk, &ledger](DType dtype) -> std::unique_ptr<ShardStore> {
      return offload::make_disk_store(disk, ledger, {column_of(dtype)});
    };
    return std::make_unique<GradientSums>(model, held, model.sum_dtype, make, piece_numel);
  }
  // All ranks read whole sums, which are sent to them; so does a device.
  const bool is_readable = options.copied_by_device || !model.sharding.optimizer_states;
  const auto make = [&model, &ledger, is_readable](DType dtype) -> std::unique_ptr<ShardStore> {
    if (!is_readable && model.home.reuses_blocks()) return offload::make_block_store(ledger, {column_of(dtype)});
    return offload::make_memory_store(model.home, ledger, {column_of(dtype)},
                                      is_readable ? offload::Reach::kReadable : offload::Reach::kPrivate);
  };
  return std::make_unique<GradientSums>(model, held, options.dtype, make, piece_numel);
}

}  // namespace zero::sharding
