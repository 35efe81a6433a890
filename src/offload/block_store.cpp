#include <fmt/format.h>

#include <cstring>
#include <map>

#include "base/check.h"
#include "offload/shard_store.h"
#include "storage/cpu_allocator.h"
#include "zero/errors.h"

namespace zero::offload {
namespace {

using layout::Range;

/// A unit's block has its columns one after the other.
class BlockStore final : public ShardStore {
 public:
  BlockStore(storage::Ledger& ledger, std::vector<StoreColumn> columns)
      : ShardStore(std::move(columns)), ledger_(ledger) {
    ZERO_CHECK(columns_.size() <= kMostColumns, "{} columns", columns_.size());
  }
  ~BlockStore() override {
    release();
    for (const auto& [unit, place] : places_) reserve(place, -1);
  }

  void add_units(std::span<const StorePart> parts) override {
    for (const StorePart& part : parts) {
      const auto [place, is_new] = places_.try_emplace(part.unit, Place{part.range, nullptr, false});
      ZERO_CHECK(is_new, "unit {} has a second part", part.unit);
      reserve(place->second, 1);
    }
  }

  void for_each(int unit, Range range, std::int64_t most_numel, Access, std::uint32_t wanted, Visit visit) override {
    visit_pieces(
        range, most_numel, wanted,
        [&](std::size_t c, std::int64_t element) {
          return held(c, unit, {element, element});
        },
        visit);
  }
  void read(std::size_t column, int unit, Range range, void* out) const override {
    if (!range.empty()) std::memcpy(out, held(column, unit, range), nbytes(column, range));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    if (!range.empty()) std::memcpy(held(column, unit, range), in, nbytes(column, range));
  }
  void* in_memory(std::size_t column, int unit, Range range) const override {
    const Place& place = places_.at(unit);
    if (!place.block) return nullptr;
    ZERO_CHECK(layout::intersect(range, place.range) == range, "unit {} in [{}, {})", unit, range.begin, range.end);
    std::int64_t offset = columns_[column].nbytes(range.begin - place.range.begin);
    for (std::size_t c = 0; c < column; ++c) offset += columns_[c].nbytes(place.range.numel());
    return place.block + offset;
  }

  void hold(int unit) override {
    Place& place = places_.at(unit);
    if (place.block || place.range.empty()) return;
    std::int64_t wanted = 0;
    for (const StoreColumn& column : columns_) wanted += column.nbytes(place.range.numel());
    place.block = static_cast<std::byte*>(storage::take_block(static_cast<std::size_t>(wanted)));
    if (!place.block) throw IoError(fmt::format("no {} bytes of memory", wanted));
    if (!place.is_used) std::memset(place.block, 0, static_cast<std::size_t>(wanted));
    place.is_used = true;
    add_idle(place, -1);
  }
  void release() override {
    for (auto& [unit, place] : places_) {
      if (!place.block) continue;
      storage::return_block(place.block);
      place.block = nullptr;
      add_idle(place, 1);
    }
  }
  void clear() override {
    for (auto& [unit, place] : places_) {
      hold(unit);
      for (std::size_t c = 0; c < columns_.size() && place.block; ++c)
        std::memset(in_memory(c, unit, place.range), 0, nbytes(c, place.range));
    }
  }

 private:
  struct Place {
    Range range;
    std::byte* block = nullptr;  ///< while it is held
    bool is_used = false;        ///< it was held before: it need not begin with zeros
  };

  std::size_t nbytes(std::size_t column, Range range) const {
    return static_cast<std::size_t>(columns_[column].nbytes(range.numel()));
  }
  void* held(std::size_t column, int unit, Range range) const {
    void* const data = in_memory(column, unit, range);
    ZERO_CHECK(data, "unit {} is not held", unit);
    return data;
  }
  void reserve(const Place& place, int sign) {
    for (const StoreColumn& column : columns_) ledger_.add(column.kind, sign * column.nbytes(place.range.numel()));
    add_idle(place, sign);
  }
  void add_idle(const Place& place, int sign) {
    for (const StoreColumn& column : columns_) ledger_.add_idle(column.kind, sign * column.nbytes(place.range.numel()));
  }

  storage::Ledger& ledger_;
  std::map<int, Place> places_;  ///< by unit
};

}  // namespace

std::unique_ptr<ShardStore> make_block_store(storage::Ledger& ledger, std::vector<StoreColumn> columns) {
  return std::make_unique<BlockStore>(ledger, std::move(columns));
}

}  // namespace zero::offload
