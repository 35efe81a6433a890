#include <algorithm>
#include <array>

#include "base/check.h"
#include "device/tensor_view.h"
#include "offload/shard_store.h"

namespace zero::offload {
namespace {

using layout::Range;

class MemoryStore final : public ShardStore {
 public:
  MemoryStore(const storage::Home& home, storage::Ledger& ledger, std::vector<StoreColumn> columns, Reach reach)
      : ShardStore(std::move(columns)), home_(home), ledger_(ledger), reach_(reach) {
    ZERO_CHECK(columns_.size() <= kMostColumns, "{} columns", columns_.size());
  }

  void add_units(std::span<const StorePart> parts) override {
    std::array<std::int64_t, kMostColumns> total{};
    const std::size_t chunk = chunks_.size();
    for (const StorePart& part : parts) {
      if (part.unit >= static_cast<int>(places_.size())) places_.resize(static_cast<std::size_t>(part.unit) + 1);
      Place& place = places_[part.unit].emplace_back(Place{chunk, part, total});
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        if (place.has(c)) total[c] += columns_[c].nbytes(part.range.numel());
      }
    }
    auto& columns = chunks_.emplace_back();
    for (std::size_t c = 0; c < columns_.size(); ++c) columns.push_back(make(columns_[c].kind, total[c]));
  }

  void for_each(int unit, Range range, std::int64_t most_numel, Access, std::uint32_t wanted, Visit visit) override {
    for (const Place& place : places_.at(static_cast<std::size_t>(unit))) {
      visit_pieces(
          layout::intersect(range, place.part.range), most_numel, wanted,
          [&](std::size_t c, std::int64_t element) { return address(c, place, element); }, visit);
    }
  }

  void read(std::size_t column, int unit, Range range, void* out) const override {
    if (!range.empty()) view(column, out, range).copy_(view(column, in_memory(column, unit, range), range));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    if (!range.empty()) view(column, in_memory(column, unit, range), range).copy_(view(column, in, range));
  }

  void* in_memory(std::size_t column, int unit, Range range) const override {
    ZERO_CHECK(unit < static_cast<int>(places_.size()), "states of unit {}", unit);
    for (const Place& place : places_[static_cast<std::size_t>(unit)]) {
      if (layout::intersect(range, place.part.range) != range) continue;
      ZERO_CHECK(place.has(column), "unit {} in [{}, {}) has no {}", unit, range.begin, range.end,
                 columns_[column].name);
      return address(column, place, range.begin);
    }
    ZERO_CHECK(false, "states of unit {} in [{}, {})", unit, range.begin, range.end);
  }

  void clear() override {
    for (auto& columns : chunks_) {
      for (storage::FlatBuffer& column : columns) {
        if (!column.empty()) column.view(0, column.numel()).zero_();
      }
    }
  }

 private:
  struct Place {
    std::size_t chunk = 0;
    StorePart part;
    std::array<std::int64_t, kMostColumns> offset{};  ///< of part.range.begin, by column, in bytes

    bool has(std::size_t column) const { return (part.columns >> column & 1u) != 0; }
  };

  storage::FlatBuffer make(MemoryKind kind, std::int64_t nbytes) const {
    return reach_ == Reach::kReadable ? home_.make_readable(ledger_, kind, DType::kByte, nbytes)
                                      : home_.make_private(ledger_, kind, DType::kByte, nbytes);
  }

  void* address(std::size_t column, const Place& place, std::int64_t element) const {
    if (!place.has(column)) return nullptr;
    return chunks_[place.chunk][column].data_at(place.offset[column] +
                                                columns_[column].nbytes(element - place.part.range.begin));
  }

  at::Tensor view(std::size_t column, const void* data, Range range) const {
    return device::view_of(data, DType::kByte, columns_[column].nbytes(range.numel()), home_.device());
  }

  storage::Home home_;
  storage::Ledger& ledger_;
  const Reach reach_;
  std::vector<std::vector<storage::FlatBuffer>> chunks_;  ///< by call of add_units(), by column
  std::vector<std::vector<Place>> places_;                ///< by unit, in the order of their elements
};

}  // namespace

std::unique_ptr<ShardStore> make_memory_store(const storage::Home& home, storage::Ledger& ledger,
                                              std::vector<StoreColumn> columns, Reach reach) {
  return std::make_unique<MemoryStore>(home, ledger, std::move(columns), reach);
}

}  // namespace zero::offload
