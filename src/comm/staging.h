#pragma once
// Copies of inputs that do not lie in shared memory: a FIFO arena in regions that are reused, so that
// the steady state neither allocates nor faults pages.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "comm/memory.h"

namespace zero::comm {

class StagingArena {
 public:
  explicit StagingArena(std::shared_ptr<RegionRegistry> registry) : registry_(std::move(registry)) {}

  struct Block {
    std::shared_ptr<Region> region;
    std::byte* data = nullptr;
  };

  /// `nbytes` (above 0), 64-byte aligned, for call `sequence`. Grows when there is no room. Throws
  /// IoError. Local.
  Block take(std::size_t nbytes, std::uint64_t sequence);
  /// Gives back the blocks of calls before `sequence`. Local.
  void release_before(std::uint64_t sequence);
  /// Bytes that are taken. Local.
  std::size_t used_nbytes() const { return used_nbytes_; }

 private:
  struct Taken {
    std::uint64_t sequence;
    std::size_t begin;
    std::size_t end;
    Region* region;
  };

  bool fits(std::size_t nbytes, std::size_t& begin) const;

  std::shared_ptr<RegionRegistry> registry_;
  std::shared_ptr<Region> region_;  ///< the newest; older ones live as long as their calls
  std::deque<Taken> taken_;         ///< oldest first
  std::size_t used_nbytes_ = 0;
};

}  // namespace zero::comm
