#pragma once
// States on a disk: a StateStore whose columns are in one scratch file of this process, and in memory only for the
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
#include "offload/state_store.h"

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

/// What has moved between memory and the disk since the store was made.
struct DiskTraffic {
  std::int64_t read_nbytes = 0, written_nbytes = 0;
  double waited_seconds = 0;  ///< in which a pass could not go on

  DiskTraffic operator+(const DiskTraffic& other) const {
    return {read_nbytes + other.read_nbytes, written_nbytes + other.written_nbytes,
            waited_seconds + other.waited_seconds};
  }
};

/// Elements that lie together in the file, from `offset` on: the columns one after the other.
struct DiskSlot {
  int unit = 0;
  layout::Range range;
  std::int64_t offset = 0;
};

class DiskStates : public StateStore {
 public:
  using StateStore::StateStore;
  /// From any thread.
  virtual DiskTraffic traffic() const = 0;
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
  /// All columns are zeros again; what is not written yet need not be. Local. Throws IoError where a write that was
  /// under way has failed.
  virtual void discard() = 0;
  /// io::File::path_for_others() of the file; empty while nothing is kept.
  virtual std::string path_for_others() const = 0;
  /// One line for people, about `what` is kept; empty while nothing is.
  virtual std::string description(std::string_view what) const = 0;
};

/// Memory of the CPU. add_units() throws IoError when the disk has no room, and leaves the store as it was; errors of
/// the disk and bytes that are not what was written are IoErrors that name unit and elements, then and at every call
/// after it.
std::unique_ptr<DiskStates> make_disk_states(const DiskOptions& options, storage::Ledger& ledger,
                                             std::vector<StateColumn> columns);

}  // namespace zero::offload
