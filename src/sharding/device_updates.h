#pragma once
// DeviceUpdates: updates on the module's accelerator of shards that are in host memory (offload/split_store.h): sums of
// gradients and low-precision values are copied there, and the new values back, in a stream beside the host's own
// updates.
#include <c10/util/FunctionRef.h>

#include "device/device_stream.h"
#include "sharding/gradient_sums.h"
#include "sharding/sharded_model.h"
#include "storage/flat_buffer.h"

namespace zero::sharding {

/// One thread at a time. Functions are local.
class DeviceUpdates {
 public:
  /// `most_numel`: of a piece, most elements. Waits for all of the device.
  DeviceUpdates(const ShardedModel& model, storage::Ledger& ledger, std::int64_t most_numel);
  /// Waits for what is under way.
  ~DeviceUpdates();
  DeviceUpdates(const DeviceUpdates&) = delete;
  DeviceUpdates& operator=(const DeviceUpdates&) = delete;

  std::int64_t most_numel() const { return sums_.numel(); }
  /// Begins to update [numel] elements: `update` launches kernels on the device's copies, in the stream that is current
  /// then. `sums` (of ShardedModel::sum_dtype, or narrower) and `low`, of host memory, stay as they are until finish(),
  /// when `low` has the new values.
  /// `reads_low`: the update needs those that it has before.
  using Update = c10::function_ref<void(Sums sums, void* low)>;
  void begin(std::int64_t numel, Sums sums, void* low, bool reads_low, Update update);
  /// Returns when all that was begun is over.
  void finish();

 private:
  const ShardedModel& model_;
  storage::FlatBuffer sums_, low_;
  device::DeviceStream stream_;
};

}  // namespace zero::sharding
