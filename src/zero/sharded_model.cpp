#include "zero/sharded_model.h"

#include "base/clock.h"

namespace zero::sharding {

void finish_or_fail(Work& work) noexcept {
  try {
    work.wait();
  } catch (...) {
    // The group has failed: it moves nothing any more, and its other users learn why.
  }
  work = {};
}

Stopwatch::Stopwatch(double& seconds) : seconds_(seconds), begin_(base::seconds_now()) {}
Stopwatch::~Stopwatch() { seconds_ += base::seconds_now() - begin_; }

}  // namespace zero::sharding
