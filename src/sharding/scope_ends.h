#pragma once
// ScopeEnds: which scopes have ended in which one rank (the modifier) writes where the other ranks of its host read. A
// scope that fails ends on each rank by itself; ranks that go on wait at their next use until the modifier has taken
// back what it had written.
#include <atomic>
#include <cstdint>
#include <vector>

#include "zero/group.h"

namespace zero::sharding {

/// One thread at a time; waits() any.
class ScopeEnds {
 public:
  /// *Collective* over the ranks of a host. `rank`: of this one in the whole group.
  ScopeEnds(Group node, int rank);

  /// A scope of `modifier`, by its rank in the whole group, is over here: on the modifier after its last write. Local.
  void end(int modifier, bool failed);
  bool waits() const { return waits_.load(std::memory_order_relaxed); }
  /// Until scopes that have failed here are over on their modifiers. Throws CommError.
  void wait();

 private:
  /// By ranks of the host.
  struct Scopes {
    int rank = 0;              ///< in the whole group
    std::int64_t ended = 0;    ///< here
    std::int64_t awaited = 0;  ///< on that rank
  };
  std::atomic<std::int64_t>& ended_on(std::size_t rank) const;

  Group node_;
  std::vector<Scopes> scopes_;
  SharedMemory memory_;
  std::atomic<bool> waits_{false};
};

}  // namespace zero::sharding
