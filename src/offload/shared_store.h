#pragma once
// SharedStore: a ShardStore of one column whose elements all ranks of the host reach in place. What a rank adds with
// add_units() is its own; visit_all() goes to everybody's.
#include <c10/util/FunctionRef.h>

#include <memory>
#include <vector>

#include "comm/transport.h"
#include "offload/shard_store.h"
#include "zero/dtype.h"
#include "zero/group.h"

namespace zero::offload {

class SharedStore : public ShardStore {
 public:
  using ShardStore::ShardStore;
  using VisitAll = c10::function_ref<void(layout::Range piece, void* memory)>;
  /// Visits `range` of a unit from begin to end, in pieces of one rank's each or larger. What others write at the same
  /// time is undefined. Local.
  virtual void visit_all(int unit, layout::Range range, VisitAll visit) = 0;
  /// All of a unit in one piece; null if it lies in the memories of several ranks. Local.
  virtual void* all_of(int unit) const = 0;
};

/// What ranks have of each unit: rank r's part of unit u is [cuts[u][r], cuts[u][r + 1]).
using UnitCuts = std::vector<std::vector<std::int64_t>>;

/// Once on the host, in one mapping: memory of the CPU, pinned for `copies_by` where that is an accelerator. The ledger
/// is charged this rank's parts. *Collective.* Throws IoError.
std::unique_ptr<SharedStore> make_mapped_store(Group& group, storage::Ledger& ledger, StoreColumn column, UnitCuts cuts,
                                               c10::Device copies_by = c10::kCPU);

/// In each owner's memory of `home`, which the others read through `transport`. *Collective.* Throws IoError.
std::unique_ptr<SharedStore> make_peer_store(Group& group, comm::ShardTransport& transport, const storage::Home& home,
                                             storage::Ledger& ledger, StoreColumn column, UnitCuts cuts);

}  // namespace zero::offload
