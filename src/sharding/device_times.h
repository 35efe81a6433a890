#pragma once
// DeviceTimes: how far ahead of use to copy units to a device, from times that the device itself measures: events that
// its streams pass. For the host, which is ahead of it, they are of no use before a step is over.
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/prefetch_window.h"

namespace zero::sharding {

/// A copy of a unit, or of parts of it one after the other, between two events of the stream that copies.
struct TimedCopy {
  c10::Event begin, end;
  std::int64_t numel = 0;
};

/// One thread at a time. Functions are local.
class DeviceTimes {
 public:
  explicit DeviceTimes(c10::DeviceType device) : device_(device) {}

  /// An event that knows when it was passed.
  c10::Event make_event() const { return c10::Event(device_, c10::EventFlag::BACKEND_DEFAULT); }

  /// Uses of this step are to be noted.
  bool measuring() const { return has_times_ && window_.measuring(); }
  /// While measuring: `user` comes to the next use of a unit, and may have to wait for it.
  void begin_use(int phase, const c10::Stream& user);
  /// The host has waited `seconds` for values that it copies from for this use.
  void note_host_gather(double seconds);
  /// `user` has the unit, for which `copy` was made, or nothing.
  void begin_compute(const c10::Stream& user, std::optional<TimedCopy> copy);

  /// A step is over. What it asks for, in elements, where it was measured and had a backward: waits for the end of the
  /// last use then. As many as there may be where the device has no times.
  std::optional<std::int64_t> end_step();

 private:
  struct Use {
    int phase = 0;
    c10::Event come, ready;
    bool is_ready = false;
    double host_seconds = 0;
    std::optional<TimedCopy> copy;
  };

  const c10::DeviceType device_;
  layout::MeasuredWindow window_;
  std::vector<Use> uses_;
  bool has_times_ = true;
};

}  // namespace zero::sharding
