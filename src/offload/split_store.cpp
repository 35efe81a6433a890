#include "offload/split_store.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/device_stream.h"

namespace zero::offload {
namespace {

using layout::Range;

class SplitStoreInMemory final : public SplitStore {
 public:
  SplitStoreInMemory(const storage::Home& home, c10::Device device, storage::Ledger& ledger,
                     std::vector<StoreColumn> columns, std::vector<bool> on_device)
      : SplitStore(columns),
        device_(device),
        on_device_(std::move(on_device)),
        here_(make_memory_store(home, ledger, columns)),
        there_(make_memory_store(storage::Home(device, nullptr), ledger, columns)) {}

  ShardStore& there() override { return *there_; }

  void add_units(std::span<const StorePart> parts) override {
    std::vector<StorePart> here, there;
    for (const StorePart& part : parts) (is_there(part.unit) ? there : here).push_back(part);
    here_->add_units(here);
    there_->add_units(there);
    device::finish_current_stream(device_);  // the updates' stream, too, finds zeros
  }

  void for_each(int unit, Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                Visit visit) override {
    if (!is_there(unit)) return here_->for_each(unit, range, most_numel, access, wanted, visit);
    const at::NoGradGuard no_grad;
    there_->for_each(unit, range, std::min(most_numel, kMostCopiedNumel), access, wanted,
                     [&](Range piece, std::span<void* const> memory) { visit_copies(piece, memory, access, visit); });
  }

  void read(std::size_t column, int unit, Range range, void* out) const override {
    if (!is_there(unit)) return here_->read(column, unit, range, out);
    if (range.empty()) return;
    const at::NoGradGuard no_grad;
    on_host(out, nbytes(column, range)).copy_(on_device(there_->in_memory(column, unit, range), nbytes(column, range)));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    if (!is_there(unit)) return here_->write(column, unit, range, in);
    if (range.empty()) return;
    const at::NoGradGuard no_grad;
    on_device(there_->in_memory(column, unit, range), nbytes(column, range)).copy_(on_host(in, nbytes(column, range)));
    device::finish_current_stream(device_);
  }
  void* in_memory(std::size_t column, int unit, Range range) const override {
    return is_there(unit) ? nullptr : here_->in_memory(column, unit, range);
  }
  void clear() override {
    here_->clear();
    there_->clear();
    device::finish_current_stream(device_);
  }

 private:
  static constexpr std::int64_t kMostCopiedNumel = 1 << 20;

  bool is_there(int unit) const { return on_device_[static_cast<std::size_t>(unit)]; }
  std::int64_t nbytes(std::size_t column, Range range) const { return columns_[column].nbytes(range.numel()); }
  at::Tensor on_host(const void* data, std::int64_t nbytes) const {
    return device::view_of(data, DType::kByte, nbytes, c10::Device(c10::kCPU));
  }
  at::Tensor on_device(const void* data, std::int64_t nbytes) const {
    return device::view_of(data, DType::kByte, nbytes, device_);
  }

  void visit_copies(Range piece, std::span<void* const> memory, Access access, Visit visit) {
    std::array<void*, kMostColumns> copies{};
    for (std::size_t c = 0; c < memory.size(); ++c) {
      if (!memory[c]) continue;
      auto& copy = copies_[c];
      copy.resize(std::max(copy.size(), static_cast<std::size_t>(nbytes(c, piece))));
      copies[c] = copy.data();
      on_host(copy.data(), nbytes(c, piece)).copy_(on_device(memory[c], nbytes(c, piece)));
    }
    visit(piece, {copies.data(), memory.size()});
    if (access != Access::kUpdate) return;
    for (std::size_t c = 0; c < memory.size(); ++c) {
      if (memory[c]) on_device(memory[c], nbytes(c, piece)).copy_(on_host(copies[c], nbytes(c, piece)));
    }
    device::finish_current_stream(device_);
  }

  const c10::Device device_;
  const std::vector<bool> on_device_;  ///< by unit
  std::unique_ptr<ShardStore> here_, there_;
  std::array<std::vector<std::byte>, kMostColumns> copies_;  ///< of a piece's columns
};

}  // namespace

std::unique_ptr<SplitStore> make_split_store(const storage::Home& home, c10::Device device, storage::Ledger& ledger,
                                             std::vector<StoreColumn> columns, std::vector<bool> on_device) {
  return std::make_unique<SplitStoreInMemory>(home, device, ledger, std::move(columns), std::move(on_device));
}

}  // namespace zero::offload
