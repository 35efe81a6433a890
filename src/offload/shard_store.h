#pragma once
// ShardStore: holds what a rank keeps of sharded tensors, by column, unit and range of elements: optimizer states and
// master weights, sums of gradients, parameters. Stores differ in where the elements live, and are used in one way:
// elements are visited piece by piece, so that they need not be in memory; pointers are valid only during a call.
//
//   make_memory_store()  memory of one device, as long as the store               (here)
//   make_block_store()   host memory that comes and goes with every step          (here)
//   make_disk_store()    a scratch file, and buffers in memory                    (offload/disk_store.h)
//   make_split_store()   some units in an accelerator's memory, others on the host (offload/split_store.h)
//   make_mapped_store(), make_peer_store()  memory that all ranks of the host read (offload/shared_store.h)
//
// A column is one value of all elements ("exp_avg", fp32). Ranges are ranges of a unit's elements, within the part that
// add_units() gave it; they begin and end at boundaries of the blocks that the columns consist of.
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layout/shard.h"
#include "storage/home.h"

namespace zero::offload {

inline constexpr std::size_t kMostColumns = 8;
inline constexpr std::uint32_t kAllColumns = ~0u;

struct StoreColumn {
  std::string name;
  std::int64_t block_nbytes = 4;  ///< bytes of block_numel consecutive elements
  std::int64_t block_numel = 1;
  MemoryKind kind = MemoryKind::kOptimizer;

  /// Bytes of [numel] elements, a whole number of blocks.
  std::int64_t nbytes(std::int64_t numel) const { return numel / block_numel * block_nbytes; }
};

struct StorePart {
  int unit = 0;
  layout::Range range;                  ///< elements that are held
  std::uint32_t columns = kAllColumns;  ///< bit c: the part has column c
  std::int64_t piece_numel = 0;         ///< layout::ColumnsPart::piece_numel
};

/// What has moved between memory and a disk since a store was made.
struct DiskTraffic {
  std::int64_t read_nbytes = 0, written_nbytes = 0;
  double waited_seconds = 0;  ///< in which a pass could not go on

  DiskTraffic operator+(const DiskTraffic& other) const {
    return {read_nbytes + other.read_nbytes, written_nbytes + other.written_nbytes,
            waited_seconds + other.waited_seconds};
  }
};

class ShardStore {
 public:
  enum class Access : std::uint8_t {
    kRead,
    kUpdate,  ///< changes that the visit makes are kept
  };
  /// `memory[c]`: column c of `piece`, [piece.numel()], on the home's device, valid during the call; null if its part
  /// has no such column, or it was not requested.
  using Visit = c10::function_ref<void(layout::Range piece, std::span<void* const> memory)>;

  virtual ~ShardStore() = default;

  const std::vector<StoreColumn>& columns() const { return columns_; }

  /// Creates elements of zero for units that have none; a unit's parts must follow each other. Local. Throws IoError.
  virtual void add_units(std::span<const StorePart> parts) = 0;
  /// Visits `range` from begin to end in pieces of at most `most_numel` elements, whole blocks of one part, with the
  /// columns in `wanted` (bit c: column c). Allocates nothing. Local, like all functions below; one thread at a time.
  /// Throws IoError.
  virtual void for_each(int unit, layout::Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                        Visit visit) = 0;
  /// Copies a column of `range` to or from memory of the home's device, [range.numel()]. `range` must lie in one part
  /// that has the column.
  virtual void read(std::size_t column, int unit, layout::Range range, void* out) const = 0;
  virtual void write(std::size_t column, int unit, layout::Range range, const void* in) = 0;
  /// Pointer to a column of `range`, for copying; null unless it is in memory from hold() to release(). Valid as long;
  /// reads there see updates.
  virtual void* in_memory(std::size_t column, int unit, layout::Range range) const = 0;

  /// For content that comes and goes, as sums of gradients do. release(): nobody wants what the columns have, and they
  /// are undefined until they are written. hold(): a unit is visited next, after a release(). clear(): holds all units,
  /// whose elements are zeros again. Throw IoError.
  virtual void hold(int unit) { (void)unit; }
  virtual void release() {}
  virtual void clear() = 0;

  /// From any thread. Nullopt without a disk.
  virtual std::optional<DiskTraffic> disk_traffic() const { return std::nullopt; }
  /// One line for people, about `what` is kept; empty without a disk.
  virtual std::string disk_description(std::string_view what) const {
    (void)what;
    return {};
  }

 protected:
  explicit ShardStore(std::vector<StoreColumn> columns) : columns_(std::move(columns)) {}

  /// for_each() of a range whose columns each lie in one piece: `address_of(c, element)` is where column c has it.
  template <class AddressOf>
  void visit_pieces(layout::Range range, std::int64_t most_numel, std::uint32_t wanted, AddressOf address_of,
                    Visit visit) const {
    std::array<void*, kMostColumns> memory{};
    for (std::int64_t begin = range.begin; begin < range.end; begin += most_numel) {
      const layout::Range piece{begin, std::min(range.end, begin + most_numel)};
      for (std::size_t c = 0; c < columns_.size(); ++c)
        memory[c] = (wanted >> c & 1u) != 0 ? address_of(c, begin) : nullptr;
      visit(piece, {memory.data(), columns_.size()});
    }
  }

  std::vector<StoreColumn> columns_;
};

/// Who reaches a store's memory in place.
enum class Reach : std::uint8_t {
  kPrivate,
  kReadable,  ///< the other ranks of the host read it, and an accelerator copies it while the host goes on
};

/// In memory of `home`.
std::unique_ptr<ShardStore> make_memory_store(const storage::Home& home, storage::Ledger& ledger,
                                              std::vector<StoreColumn> columns, Reach reach = Reach::kPrivate);

/// In blocks of the cache behind libtorch's CPU allocator, at whose other end activations grow: a unit has memory from
/// hold() to release(). The ledger shows all of it from add_units() on, and in use what is held. One part a unit.
std::unique_ptr<ShardStore> make_block_store(storage::Ledger& ledger, std::vector<StoreColumn> columns);

}  // namespace zero::offload
