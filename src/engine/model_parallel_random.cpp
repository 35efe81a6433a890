#include <ATen/Context.h>

#include <mutex>

#include "engine/engine_impl.h"
#include "engine/random_state.h"

namespace zero {

ModelParallelRandom::ModelParallelRandom(Engine& engine) : engine_(engine.impl().self) {
  auto& impl = engine.impl();
  impl.begin_random_stream();  // or it would begin inside, and take these numbers for the program's
  outside_ = engine::random_state(c10::kCPU);
  if (impl.model_parallel_random.defined()) {
    engine::set_random_state(c10::kCPU, impl.model_parallel_random);
    return;
  }
  auto generator = at::globalContext().defaultGenerator(c10::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(impl.stream_seed(impl.groups.model_parallel_rank() + 1));
}

ModelParallelRandom::~ModelParallelRandom() {
  if (Engine::Impl* const impl = *engine_) impl->model_parallel_random = engine::random_state(c10::kCPU);
  engine::set_random_state(c10::kCPU, outside_);
}

}  // namespace zero
