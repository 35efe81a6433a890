#pragma once
// StateStore: where what an optimizer keeps for every element lives: in memory here, elsewhere in files.
// States are visited piece by piece, so that they need not be in memory, and never handed out for longer than
// a call.
//
// A column is one state of all elements ("exp_avg", fp32). Ranges are of elements of a unit, inside the part
// that add_units() gave it; they begin and end between the blocks that the columns are made of.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout/shard.h"
#include "storage/home.h"

namespace zero::storage {

inline constexpr std::size_t kMostColumns = 8;
inline constexpr std::uint32_t kAllColumns = ~0u;

struct StateColumn {
  std::string name;
  std::int64_t block_nbytes = 4;  ///< of elements that lie together
  std::int64_t block_numel = 1;
  MemoryKind kind = MemoryKind::kOptimizer;

  /// Of [numel] elements, whole blocks.
  std::int64_t nbytes(std::int64_t numel) const { return numel / block_numel * block_nbytes; }
};

struct StatePart {
  int unit = 0;
  layout::Range range;                  ///< whose states are kept here
  std::uint32_t columns = kAllColumns;  ///< bit c: has column c
  std::int64_t piece_numel = 0;         ///< layout::ColumnsPart::piece_numel
};

class StateStore {
 public:
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,  ///< what the visit leaves in memory is kept
  };
  /// `memory[c]`: column c of `piece`, [piece.numel()], on the home's device, valid during the call; null
  /// where its part has none, or it was not asked for.
  using Visit = c10::function_ref<void(layout::Range piece, std::span<void* const> memory)>;

  virtual ~StateStore() = default;

  const std::vector<StateColumn>& columns() const { return columns_; }

  /// Units that had none get states of zero; a unit's parts follow each other. Local. Throws IoError.
  virtual void add_units(std::span<const StatePart> parts) = 0;
  /// Visits `range` from its begin to its end in pieces of at most `most_numel` elements, whole blocks of one
  /// part, with the columns of `wanted` (bit c: column c). Allocates nothing. Local, like all below; one thread at a
  /// time. Throws IoError.
  virtual void for_each(int unit, layout::Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                        Visit visit) = 0;
  /// A column of `range`, which lies in one part that has it, into and from memory of the home's device,
  /// [range.numel()].
  virtual void read(std::size_t column, int unit, layout::Range range, void* out) const = 0;
  virtual void write(std::size_t column, int unit, layout::Range range, const void* in) = 0;
  /// Where a column of `range` lies, for those who would copy it: null unless it is always in memory. As long as the
  /// store; whoever reads there sees updates.
  virtual void* in_memory(std::size_t column, int unit, layout::Range range) const = 0;

 protected:
  explicit StateStore(std::vector<StateColumn> columns) : columns_(std::move(columns)) {}

  std::vector<StateColumn> columns_;
};

/// In memory of `home`, private to this rank.
std::unique_ptr<StateStore> make_memory_states(const Home& home, Ledger& ledger, std::vector<StateColumn> columns);

}  // namespace zero::storage
