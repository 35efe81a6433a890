#pragma once
// DeviceUnits: whole units in the memory of the module's accelerator, copied there from where shards are (host memory,
// or that of the ranks' devices) beside the stream that computes. The host waits for nothing: streams wait for each
// other.
//
//   upload      its stream waits for those that have read the memory before
//   use         the stream of the operator waits for the upload
//   give back   the next upload into this memory waits for the streams that have used it
//   finish      nothing reads shards any more: they may be written
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/device_stream.h"
#include "sharding/buffer_pool.h"
#include "sharding/device_times.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

/// One thread at a time. Functions are local.
class DeviceUnits {
 public:
  DeviceUnits(ShardedModel& model, storage::Ledger& ledger);
  /// Waits for what is under way.
  ~DeviceUnits();
  DeviceUnits(const DeviceUnits&) = delete;
  DeviceUnits& operator=(const DeviceUnits&) = delete;

  /// Memory for a unit that has none, [U]: until give_back(), or for good.
  void take(int unit);
  void take_for_good(int unit);
  void* data(int unit) const { return places_[unit].memory->data(); }
  /// Begins to copy `range` of it from `low`, which has that range, of ShardedModel::device, and must stay as it is
  /// until finish().
  void upload(int unit, Range range, const void* low);
  /// Uploads of what was taken until give_back() are timed from here on with events of `times`, or no longer: a pair
  /// goes with the first who asks, and none is left over from before.
  void time_uploads(const DeviceTimes* times);
  std::optional<TimedCopy> taken_time(int unit) { return std::exchange(places_[unit].timed, std::nullopt); }
  /// The caller's current stream may read and write it from here on.
  void use(int unit);
  /// Nobody is given it any more. `host_is_reused`: returns only when nothing reads the host memory of its upload.
  void give_back(int unit, bool host_is_reused);
  /// Copies `range` of a unit to `low`, and returns when it is there.
  void download(int unit, Range range, void* low);
  /// Returns when no upload reads shards.
  void finish() { stream_.finish(); }

  std::shared_ptr<void> keep_alive(int unit) const { return places_[unit].memory->keep_alive(); }

 private:
  struct Place {
    storage::FlatBuffer* memory = nullptr;
    std::unique_ptr<storage::FlatBuffer> own;
    std::optional<c10::Event> arrived;
    std::optional<TimedCopy> timed;
    std::vector<c10::Stream> users;  ///< since it arrived: they wait for that
  };
  /// A stream that has used a buffer, and an event that is over when it has; recorded anew each time.
  struct User {
    c10::Stream stream;
    c10::Event end;
  };
  /// Those that had a buffer before. The first `count` are to be waited for; the others' events will be used again.
  struct Left {
    std::vector<User> users;
    std::size_t count = 0;
  };

  storage::FlatBuffer make(MemoryKind kind, std::int64_t numel);
  /// Part of it, in the memory of either side.
  at::Tensor part(int unit, Range range) const;

  ShardedModel& model_;
  storage::Ledger& ledger_;
  device::DeviceStream stream_;
  std::vector<c10::Stream> makers_;  ///< streams in which memory was made
  BufferPool pool_;
  const DeviceTimes* times_ = nullptr;               ///< while uploads are timed
  std::map<const storage::FlatBuffer*, Left> left_;  ///< of the pool's buffers
  std::vector<Place> places_;                        ///< by unit
};

}  // namespace zero::sharding
