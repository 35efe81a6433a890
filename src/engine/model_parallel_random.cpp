#include <ATen/Context.h>

#include <mutex>

#include "engine/engine_impl.h"

namespace zero {
namespace {

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

at::Generator cpu_generator() { return at::globalContext().defaultGenerator(c10::kCPU); }

}  // namespace

ModelParallelRandom::ModelParallelRandom(Engine& engine)
    : engine_(engine.impl().self), outside_(state_of(cpu_generator())) {
  const auto& impl = engine.impl();
  if (impl.model_parallel_random.defined()) {
    set_state(cpu_generator(), impl.model_parallel_random);
    return;
  }
  auto generator = cpu_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(impl.stream_seed(impl.groups.model_parallel_rank() + 1));
}

ModelParallelRandom::~ModelParallelRandom() {
  if (Engine::Impl* const impl = *engine_) impl->model_parallel_random = state_of(cpu_generator());
  set_state(cpu_generator(), outside_);
}

}  // namespace zero
