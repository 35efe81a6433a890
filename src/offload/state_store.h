#pragma once
// StateStore: holds an optimizer's per-element states, in memory (here) or in files. States are visited piece by piece,
// so that they need not be in memory; pointers to them are valid only during a call.
//
// A column is one state of all elements ("exp_avg", fp32). Ranges are ranges of a unit's elements, within the part that
// add_units() gave it; they begin and end at boundaries of the blocks that the columns consist of.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout/shard.h"
#include "storage/home.h"

namespace zero::offload {

inline constexpr std::size_t kMostColumns = 8;
inline constexpr std::uint32_t kAllColumns = ~0u;

struct StateColumn {
  std::string name;
  std::int64_t block_nbytes = 4;  ///< bytes of block_numel consecutive elements
  std::int64_t block_numel = 1;
  MemoryKind kind = MemoryKind::kOptimizer;

  /// Bytes of [numel] elements, a whole number of blocks.
  std::int64_t nbytes(std::int64_t numel) const { return numel / block_numel * block_nbytes; }
};

struct StatePart {
  int unit = 0;
  layout::Range range;                  ///< elements whose states are held
  std::uint32_t columns = kAllColumns;  ///< bit c: the part has column c
  std::int64_t piece_numel = 0;         ///< layout::ColumnsPart::piece_numel
};

class StateStore {
 public:
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,  ///< changes that the visit makes are kept
  };
  /// `memory[c]`: column c of `piece`, [piece.numel()], on the home's device, valid during the call; null if its part
  /// has no such column, or it was not requested.
  using Visit = c10::function_ref<void(layout::Range piece, std::span<void* const> memory)>;

  virtual ~StateStore() = default;

  const std::vector<StateColumn>& columns() const { return columns_; }

  /// Creates states of zero for units that have none; a unit's parts must follow each other. Local. Throws IoError.
  virtual void add_units(std::span<const StatePart> parts) = 0;
  /// Visits `range` from begin to end in pieces of at most `most_numel` elements, whole blocks of one part, with the
  /// columns in `wanted` (bit c: column c). Allocates nothing. Local, like all functions below; one thread at a time.
  /// Throws IoError.
  virtual void for_each(int unit, layout::Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                        Visit visit) = 0;
  /// Copies a column of `range` to or from memory of the home's device, [range.numel()]. `range` must lie in one part
  /// that has the column.
  virtual void read(std::size_t column, int unit, layout::Range range, void* out) const = 0;
  virtual void write(std::size_t column, int unit, layout::Range range, const void* in) = 0;
  /// Pointer to a column of `range`, for copying; null unless it is always in memory. Valid as long as the store; reads
  /// there see updates.
  virtual void* in_memory(std::size_t column, int unit, layout::Range range) const = 0;

 protected:
  explicit StateStore(std::vector<StateColumn> columns) : columns_(std::move(columns)) {}

  std::vector<StateColumn> columns_;
};

/// States in memory of `home`, private to this rank.
std::unique_ptr<StateStore> make_memory_states(const storage::Home& home, storage::Ledger& ledger,
                                               std::vector<StateColumn> columns);

}  // namespace zero::offload
