// The simulated device as a library for LD_PRELOAD: programs find a backend "sim" (support/simulated_device.h), whose
// streams run in the order of ZERO_SIMULATED_SEED.
#include <cstdlib>

#include "support/simulated_device.h"

namespace {

const bool is_started = [] {
  const char* const seed = std::getenv("ZERO_SIMULATED_SEED");
  zero::testing::simulated::start({.seed = seed ? std::strtoull(seed, nullptr, 10) : 0});
  zero::testing::simulated::use_kernels(true);
  return true;
}();

}  // namespace
