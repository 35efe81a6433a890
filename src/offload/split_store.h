#pragma once
// SplitStore: the states of some units in the memory of an accelerator, of all others in the host's (ZeRO-Offload++'s
// twin flow). Who visits them sees host memory: those of the device are copied into a buffer and back. Updates on the
// device use there().
#include <memory>
#include <vector>

#include "offload/shard_store.h"

namespace zero::offload {

class SplitStore : public ShardStore {
 public:
  using ShardStore::ShardStore;
  /// The device's part, whose visits get memory of the device, in the order of the stream that is current.
  virtual ShardStore& there() = 0;
};

/// `on_device`: by unit. Between updates through there() and visits of the same units the streams of the updates are to
/// be waited for.
std::unique_ptr<SplitStore> make_split_store(const storage::Home& home, c10::Device device, storage::Ledger& ledger,
                                             std::vector<StoreColumn> columns, std::vector<bool> on_device);

}  // namespace zero::offload
