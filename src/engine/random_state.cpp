#include "engine/random_state.h"

#include <ATen/Context.h>

#include <mutex>

namespace zero::engine {

at::Tensor random_state(c10::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(c10::Device device, const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace zero::engine
