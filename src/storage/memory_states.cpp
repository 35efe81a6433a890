#include <algorithm>
#include <array>
#include <cstring>
#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "storage/state_store.h"

namespace zero::storage {
namespace {

using layout::Range;

constexpr std::size_t kMostColumns = 8;

class MemoryStates final : public StateStore {
 public:
  MemoryStates(const Home& home, Ledger& ledger, std::vector<StateColumn> columns)
      : StateStore(std::move(columns)), home_(home), ledger_(ledger) {
    ZERO_CHECK(columns_.size() <= kMostColumns, "{} columns", columns_.size());
  }

  void add_units(std::span<const StatePart> parts) override {
    Chunk& chunk = *chunks_.emplace_back(std::make_unique<Chunk>());
    std::int64_t total = 0;
    for (const StatePart& part : parts) {
      if (part.unit >= static_cast<int>(places_.size())) places_.resize(static_cast<std::size_t>(part.unit) + 1);
      places_[part.unit] = {&chunk, part.range, total};
      total += part.range.numel();
    }
    for (const StateColumn& column : columns_)
      chunk.push_back(home_.make_private(ledger_, column.kind, column.dtype, total));
  }

  void for_each(int unit, Range range, std::int64_t most_numel, Access, Visit visit) override {
    std::array<void*, kMostColumns> memory{};
    for (std::int64_t begin = range.begin; begin < range.end; begin += most_numel) {
      const Range piece{begin, std::min(range.end, begin + most_numel)};
      for (std::size_t c = 0; c < columns_.size(); ++c) memory[c] = in_memory(c, unit, piece);
      visit(piece, {memory.data(), columns_.size()});
    }
  }

  void read(std::size_t column, int unit, Range range, void* out) const override {
    if (!range.empty()) view(column, out, range).copy_(view(column, in_memory(column, unit, range), range));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    if (!range.empty())
      view(column, in_memory(column, unit, range), range).copy_(view(column, const_cast<void*>(in), range));
  }

  void* in_memory(std::size_t column, int unit, Range range) const override {
    const Place& place = places_.at(static_cast<std::size_t>(unit));
    ZERO_CHECK(place.chunk && range.begin >= place.range.begin && range.end <= place.range.end,
               "states of unit {} in [{}, {})", unit, range.begin, range.end);
    return (*place.chunk)[column].data_at(place.offset + range.begin - place.range.begin);
  }

 private:
  using Chunk = std::vector<FlatBuffer>;  ///< by column
  struct Place {
    Chunk* chunk = nullptr;  ///< null for units without states
    Range range;
    std::int64_t offset = 0;  ///< of range.begin
  };

  at::Tensor view(std::size_t column, void* data, Range range) const {
    return at::from_blob(data, {range.numel()},
                         at::TensorOptions().dtype(to_scalar_type(columns_[column].dtype)).device(home_.device()));
  }

  Home home_;
  Ledger& ledger_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<Place> places_;  ///< by unit
};

}  // namespace

std::unique_ptr<StateStore> make_memory_states(const Home& home, Ledger& ledger, std::vector<StateColumn> columns) {
  return std::make_unique<MemoryStates>(home, ledger, std::move(columns));
}

}  // namespace zero::storage
