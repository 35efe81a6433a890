#pragma once
// A ShardStore on a disk: its columns are in one scratch file of this process, and in memory only for the
// slots that a pass is at (layout/state_slots.h).
//
// A pass over them is a pipeline: while a slot is visited, the ones that came after it in the pass before are read and
// the ones before it are written. What a pass leaves to write is written while the program does other things; the
// buffers keep what was read for the begin of the next pass.
//
// Every column of a slot has a checksum in memory, taken when it is written and compared when it is read.
#include <memory>
#include <string>
#include <string_view>

#include "io/file_system.h"
#include "layout/state_slots.h"
#include "offload/shard_store.h"

namespace zero::offload {

struct DiskOptions {
  io::FileSystem* files = nullptr;  ///< outlives the store
  std::string folder;               ///< where the file without a name is made; made where it is missing
  io::ScratchOptions scratch;
  int buffers = 4;  ///< slots in memory; at least 3
  /// Every slot has two places in the file: begin_try() may be called.
  bool has_two_places = false;
  layout::SlotCuts cuts;
};

/// Elements that lie together in the file, from `offset` on: the columns one after the other.
struct DiskSlot {
  int unit = 0;
  layout::Range range;
  std::int64_t offset = 0;
};

class DiskStore : public ShardStore {
 public:
  using ShardStore::ShardStore;
  /// In the order in which add_units() made them, a unit's by its elements. Local.
  virtual int slot_count() const = 0;
  virtual DiskSlot slot(int index) const = 0;
  /// Of a column of a slot as it was written last (XXH3, of its elements without padding); 0 before the first time.
  virtual std::uint64_t checksum(int slot, std::size_t column) const = 0;
  /// Returns when everything of a unit that was changed is in the file, where others may read it; not durable. Throws
  /// IoError.
  virtual void flush(int unit) = 0;
  /// What is changed from here on goes to the other places, until either it is all kept, as if it had been changed as
  /// usual, or it is all forgotten. Local. Throw IoError.
  virtual void begin_try() = 0;
  virtual void keep_try() = 0;
  virtual void forget_try() = 0;
  /// io::File::path_for_others() of the file; empty while nothing is kept.
  virtual std::string path_for_others() const = 0;
};

/// Memory of the CPU. release() and clear() make all columns zeros; what is not written yet then need not be.
/// add_units() throws IoError when the disk has no room, and leaves the store as it was; errors of
/// the disk and bytes that are not what was written are IoErrors that name unit and elements, then and at every call
/// after it.
std::unique_ptr<DiskStore> make_disk_store(const DiskOptions& options, storage::Ledger& ledger,
                                           std::vector<StoreColumn> columns);

}  // namespace zero::offload
