#include "zero/sharded_model.h"

#include "base/clock.h"

namespace zero::sharding {

Stopwatch::Stopwatch(double& seconds) : seconds_(seconds), begin_(base::seconds_now()) {}
Stopwatch::~Stopwatch() { seconds_ += base::seconds_now() - begin_; }

}  // namespace zero::sharding
