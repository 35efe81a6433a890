#include "sharding/gradient_sums.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/device_stream.h"
#include "layout/shard.h"
#include "layout/state_slots.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"
#include "zero/memory.h"

namespace zero::sharding {

using storage::FlatBuffer;

namespace {

class SumsInMemory final : public GradientSums {
 public:
  SumsInMemory(ShardedModel& model, storage::Ledger& ledger, const std::vector<Range>& held, MemoryForSums memory)
      : model_(model),
        ledger_(ledger),
        held_(held),
        dtype_(memory.dtype),
        is_readable_(memory.copied_by_device || !model.sharding.optimizer_states),
        comes_and_goes_(!is_readable_ && model.home.reuses_blocks()),
        data_(held.size(), nullptr) {
    const std::int64_t total = total_numel();
    if (comes_and_goes_) {
      count(nbytes_of(total));
      return;
    }
    const auto& all = always_.emplace_back(make_always(dtype_, total));
    std::int64_t offset = 0;
    for (std::size_t u = 0; u < held_.size(); ++u) {
      if (!held_[u].empty()) data_[u] = all.data_at(offset);
      offset += held_[u].numel();
    }
  }

  ~SumsInMemory() override {
    give_back();
    if (comes_and_goes_) count(-nbytes_of(total_numel()));
  }

  DType dtype() const override { return dtype_; }
  void widen() override {
    if (dtype_ == model_.sum_dtype) return;
    comes_and_goes_ ? widen_blocks() : widen_always();
  }

  void add_unit(int unit, Range held) override {
    held_[unit] = held;
    if (comes_and_goes_) {
      count(nbytes_of(held.numel()));
    } else if (!held.empty()) {
      data_[unit] = always_.emplace_back(make_always(dtype_, held.numel())).data();
    }
  }

  void take(int unit) override {
    if (data_[unit] || held_[unit].empty()) return;
    data_[unit] = take_block(unit, dtype_);
    ledger_.add_idle(MemoryKind::kGradients, -nbytes_of(held_[unit].numel()));
  }

  void take_zeros() override {
    for (std::size_t u = 0; u < held_.size(); ++u) {
      const int unit = static_cast<int>(u);
      take(unit);
      if (!held_[u].empty()) view(unit).zero_();
    }
  }

  void release() override { give_back(); }

  void visit(int unit, Range range, Access, Visit visit) override {
    if (range.empty()) return;
    ZERO_CHECK(data_[unit], "unit {} has no sums", unit);
    visit(range, Sums{data_[unit], dtype_}.from(range.begin - held_[unit].begin));
  }
  void* in_memory(int unit) const override { return data_[unit]; }

 private:
  FlatBuffer make_always(DType dtype, std::int64_t numel) {
    return is_readable_ ? model_.home.make_readable(ledger_, MemoryKind::kGradients, dtype, numel)
                        : model_.home.make_private(ledger_, MemoryKind::kGradients, dtype, numel);
  }
  void* take_block(int unit, DType dtype) {
    const std::size_t nbytes = static_cast<std::size_t>(held_[unit].numel()) * element_nbytes(dtype);
    void* const block = storage::take_block(nbytes);
    if (block) return block;
    throw IoError(
        fmt::format("no {} bytes of memory for the gradients of '{}'; use more ranks, a smaller model, "
                    "zerotorch.offload_gradients or a zerotorch.update that keeps none",
                    nbytes, model_.units[unit].name));
  }
  void convert(int unit, void* wide) {
    const at::NoGradGuard no_grad;
    const std::int64_t numel = held_[unit].numel();
    model_.view(wide, model_.sum_dtype, numel).copy_(model_.view(data_[unit], dtype_, numel));
  }
  void widen_blocks() {
    std::vector<void*> wide(data_.size(), nullptr);
    std::int64_t taken = 0;
    try {
      for (std::size_t u = 0; u < data_.size(); ++u) {
        if (!data_[u]) continue;
        wide[u] = take_block(static_cast<int>(u), model_.sum_dtype);
        taken += held_[u].numel();
      }
    } catch (const IoError&) {
      for (void* const block : wide) {
        if (block) storage::return_block(block);
      }
      throw;
    }
    for (std::size_t u = 0; u < data_.size(); ++u) {
      if (!data_[u]) continue;
      convert(static_cast<int>(u), wide[u]);
      storage::return_block(std::exchange(data_[u], wide[u]));
    }
    const std::int64_t before = nbytes_of(total_numel()), taken_before = nbytes_of(taken);
    dtype_ = model_.sum_dtype;
    count(nbytes_of(total_numel()) - before);
    ledger_.add_idle(MemoryKind::kGradients, taken_before - nbytes_of(taken));
  }
  void widen_always() {
    std::vector<FlatBuffer> wide(held_.size());
    for (std::size_t u = 0; u < held_.size(); ++u) {
      if (data_[u]) wide[u] = make_always(model_.sum_dtype, held_[u].numel());
    }
    for (std::size_t u = 0; u < held_.size(); ++u) {
      if (!data_[u]) continue;
      convert(static_cast<int>(u), wide[u].data());
      data_[u] = wide[u].data();
    }
    dtype_ = model_.sum_dtype;
    if (!model_.passes->in_host_memory()) device::finish_current_stream(model_.device);  // it reads what goes now
    always_ = std::move(wide);
  }
  std::int64_t total_numel() const {
    return std::accumulate(held_.begin(), held_.end(), std::int64_t{0},
                           [](std::int64_t sum, Range held) { return sum + held.numel(); });
  }
  std::int64_t nbytes_of(std::int64_t numel) const { return numel * static_cast<std::int64_t>(element_nbytes(dtype_)); }
  at::Tensor view(int unit) const { return model_.view(data_[unit], dtype_, held_[unit].numel()); }
  void count(std::int64_t nbytes) {
    ledger_.add(MemoryKind::kGradients, nbytes);
    ledger_.add_idle(MemoryKind::kGradients, nbytes);
  }
  void give_back() {
    if (!comes_and_goes_) return;
    for (std::size_t u = 0; u < data_.size(); ++u) {
      if (!data_[u]) continue;
      storage::return_block(data_[u]);
      data_[u] = nullptr;
      ledger_.add_idle(MemoryKind::kGradients, nbytes_of(held_[u].numel()));
    }
  }

  ShardedModel& model_;
  storage::Ledger& ledger_;
  std::vector<Range> held_;
  DType dtype_;
  const bool is_readable_;  ///< by all ranks, to whom whole sums are sent, or by a device
  const bool comes_and_goes_;
  std::vector<FlatBuffer> always_;  ///< of all units, where memory does not come and go
  std::vector<void*> data_;         ///< by unit; null: none now
};

class SumsOnDisk final : public GradientSums {
 public:
  SumsOnDisk(ShardedModel& model, storage::Ledger& ledger, const std::vector<Range>& held, offload::DiskOptions disk,
             std::int64_t bucket_numel)
      : model_(model), bucket_numel_(bucket_numel) {
    const std::int64_t element = static_cast<std::int64_t>(element_nbytes(model.sum_dtype));
    const layout::ColumnShape shape{element, 1};
    std::int64_t largest = 0;  // of frozen units too: they may be unfrozen
    for (const Unit& unit : model.units) largest = std::max(largest, unit.shard(model.rank()).numel());
    disk.cuts = layout::slot_cuts({&shape, 1}, disk.cuts.slot_numel, largest);
    states_ = offload::make_disk_states(disk, ledger, {{"gradients", element, 1, MemoryKind::kGradients}});
    std::vector<offload::StatePart> parts;
    std::int64_t numel = 0;
    for (std::size_t u = 0; u < held.size(); ++u) {
      if (held[u].empty()) continue;
      parts.push_back(part_of(static_cast<int>(u), held[u]));
      numel += held[u].numel();
    }
    states_->add_units(parts);
    const std::int64_t buffers = disk.buffers * layout::slot_nbytes({&shape, 1}, 1, disk.cuts.slot_numel);
    if (model.rank() == 0 && numel > 0 && buffers >= numel * element) {
      base::log_warning(
          "zerotorch.offload_gradients: the sums of a rank take {}, and the buffers before their file {}: "
          "they need less memory there without it",
          human_nbytes(numel * element), human_nbytes(buffers));
    }
  }

  DType dtype() const override { return model_.sum_dtype; }
  void widen() override {}
  void add_unit(int unit, Range held) override {
    const offload::StatePart part = part_of(unit, held);
    if (!held.empty()) states_->add_units({&part, 1});
  }
  void take(int) override {}
  void take_zeros() override { release(); }
  void release() override {
    try {
      states_->discard();
    } catch (const IoError& error) {
      throw IoError(fmt::format("sums of gradients of a window that is over: {}", error.what()));
    }
  }

  void visit(int unit, Range range, Access access, Visit visit) override {
    try {
      states_->for_each(unit, range, range.numel(), access, offload::kAllColumns,
                        [&](Range piece, std::span<void* const> memory) {
                          visit(piece, {memory.front(), model_.sum_dtype});
                        });
    } catch (const IoError& error) {
      throw IoError(fmt::format("sums of gradients of '{}': {}", model_.units[unit].name, error.what()));
    }
  }
  void* in_memory(int) const override { return nullptr; }

  std::optional<offload::DiskTraffic> disk_traffic() const override { return states_->traffic(); }
  std::string disk_description() const override { return states_->description("sums of gradients"); }

 private:
  offload::StatePart part_of(int unit, Range held) const {
    return {unit, held, offload::kAllColumns, layout::bucket_step(model_.units[unit].numel, bucket_numel_)};
  }

  ShardedModel& model_;
  const std::int64_t bucket_numel_;
  std::unique_ptr<offload::DiskStates> states_;
};

}  // namespace

std::unique_ptr<GradientSums> make_sums_in_memory(ShardedModel& model, storage::Ledger& ledger,
                                                  const std::vector<Range>& held, MemoryForSums memory) {
  return std::make_unique<SumsInMemory>(model, ledger, held, memory);
}

std::unique_ptr<GradientSums> make_sums_on_disk(ShardedModel& model, storage::Ledger& ledger,
                                                const std::vector<Range>& held, offload::DiskOptions disk,
                                                std::int64_t bucket_numel) {
  return std::make_unique<SumsOnDisk>(model, ledger, held, std::move(disk), bucket_numel);
}

}  // namespace zero::sharding
