#pragma once
// HostUnits: units that are whole in memory for a while, once for all ranks of a host.
//
// A unit has a buffer while ranks hold it, and keeps it until somebody else needs one: a rank that comes back before
// finds what was there. Its values come in parts (a part: elements that are read from a file at once), each of which
// one of the ranks brings; which one, they agree on by claiming it. Nobody waits inside of a call, and nobody needs
// another rank to go on: a part that is claimed and does not come may be brought by somebody else as well.
//
// Buffers are reused: the smallest free one that is large enough is taken, else a new one. All of them together never
// have more pages than the most that was held at a time so far and one unit more, so that a small unit does not cost a
// large one its pages; beyond it those give theirs back that nobody holds.
#include <cstdint>
#include <ranges>
#include <vector>

#include "storage/flat_buffer.h"
#include "storage/ledger.h"

namespace zero::storage {

struct HostUnitSize {
  std::int64_t numel = 0;
  int parts = 0;
};

class HostUnits {
 public:
  enum class Part : std::uint8_t { kMissing, kClaimed, kThere };

  /// *Collective* over `group`, all of whose ranks are on this host. There must be memory for the largest one.
  HostUnits(Group& group, Ledger& ledger, DType dtype, std::vector<HostUnitSize> units);
  ~HostUnits();
  HostUnits(const HostUnits&) = delete;
  HostUnits& operator=(const HostUnits&) = delete;

  /// Holds the unit's memory, [numel] elements in whole pages of 4096 bytes, until as many calls of leave() on this
  /// rank. Where its buffer has values of another `version`, or there is none, all parts are missing;
  /// ModelError where somebody holds them. Throws CommError when a rank died in here. Local, as all below.
  void* join(int unit, std::uint64_t version);
  /// Nothing of this rank may be on its way into the memory.
  void leave(int unit);

  // Parts of a unit that this rank holds, counted over all units.
  int first_part(int unit) const { return first_part_[static_cast<std::size_t>(unit)]; }
  auto parts_of(int unit) const { return std::views::iota(first_part(unit), first_part(unit + 1)); }
  Part state(int part) const;
  /// True for one of the ranks: it is to bring the part.
  bool claim(int part);
  /// Its values are in memory, and right.
  void put(int part);

  // What the owner of a part says of its values in the file.
  std::uint64_t checksum(int part) const;
  void set_checksum(int part, std::uint64_t checksum);
  /// They are being changed: what is read may be of before, of after or of both.
  bool is_changing(int part) const;
  void set_changing(int part, bool changing);

 private:
  struct Header;
  struct Entry;
  struct Buffer;
  struct Fact;
  class Lock;

  std::size_t most_buffers() const { return 2 * sizes_.size(); }
  std::int64_t nbytes_of(int unit) const;
  int take_buffer(std::int64_t nbytes);
  void keep(Buffer& buffer, std::int64_t nbytes);
  void give_back_pages();
  void charge();

  Ledger& ledger_;
  const DType dtype_;
  const int ranks_;
  std::vector<HostUnitSize> sizes_;
  std::vector<int> first_part_;      ///< by unit, and their number
  std::int64_t largest_nbytes_ = 0;  ///< of a unit
  SharedMemory control_, memory_;
  Header* header_ = nullptr;
  Entry* entries_ = nullptr;  ///< by unit
  Buffer* buffers_ = nullptr;
  Fact* facts_ = nullptr;  ///< by part
  std::int64_t charged_nbytes_ = 0;
};

}  // namespace zero::storage
