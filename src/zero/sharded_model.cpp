#include "zero/sharded_model.h"

#include <unistd.h>

#include "base/clock.h"

namespace zero::sharding {

void finish_or_fail(Work& work, const storage::FlatBuffer& memory, int owner) noexcept {
  if (!work.valid() || ::getpid() != owner) return;
  try {
    work.wait();
  } catch (...) {  // others learn why
    new std::shared_ptr<void>(memory.keep_alive());
  }
  work = {};
}

Stopwatch::Stopwatch(double& seconds) : seconds_(seconds), begin_(base::seconds_now()) {}
Stopwatch::~Stopwatch() { seconds_ += base::seconds_now() - begin_; }

}  // namespace zero::sharding
