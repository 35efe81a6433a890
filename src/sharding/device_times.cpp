#include "sharding/device_times.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.h"

namespace zero::sharding {
namespace {

double seconds_between(const c10::Event& from, const c10::Event& to) { return from.elapsedTime(to) / 1e3; }

}  // namespace

void DeviceTimes::begin_use(int phase, const c10::Stream& user) {
  constexpr std::size_t kMostUses = 10'000;  // evaluation without end between two steps
  if (uses_.size() >= kMostUses) return;
  uses_.push_back({.phase = phase, .come = make_event(), .ready = make_event()});
  uses_.back().come.record(user);
}

void DeviceTimes::note_host_gather(double seconds) {
  if (!uses_.empty() && !uses_.back().is_ready) uses_.back().host_seconds += seconds;
}

void DeviceTimes::begin_compute(const c10::Stream& user, std::optional<TimedCopy> copy) {
  if (uses_.empty() || uses_.back().is_ready) return;
  Use& use = uses_.back();
  use.ready.record(user);
  use.is_ready = true;
  use.copy = std::move(copy);
}

std::optional<std::int64_t> DeviceTimes::end_step() {
  auto uses = std::exchange(uses_, {});
  std::erase_if(uses, [](const Use& use) { return !use.is_ready; });  // an error was thrown
  for (const Use& use : uses) {
    use.ready.synchronize();
    if (use.copy) use.copy->end.synchronize();
  }
  try {
    double now = 0, waited = 0;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const Use& use = uses[i];
      // Two streams of a program may compute at the same time.
      if (i > 0) now += std::max(0.0, seconds_between(uses[i - 1].ready, use.come));
      const double wait = seconds_between(use.come, use.ready);
      now += wait;
      waited += wait;
      window_.note_use(use.phase, now, waited);
      if (!use.copy) continue;
      window_.note_gather(use.copy->numel, use.host_seconds + seconds_between(use.copy->begin, use.copy->end));
    }
  } catch (const c10::Error& error) {
    base::log_info("measured_prefetch: the device has no times: {}", error.what_without_backtrace());
    has_times_ = false;
    static_cast<void>(window_.end_step());
    return std::numeric_limits<std::int64_t>::max();
  }
  return window_.end_step();
}

}  // namespace zero::sharding
