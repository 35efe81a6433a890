#include <ATen/Context.h>

#include "engine/engine_impl.h"
#include "engine/random_state.h"
#include "intercept/random_replay.h"

namespace zero {
namespace {

/// Of this model-parallel rank in this micro-batch.
at::Tensor first_state(const Engine::Impl& impl) {
  auto generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
  generator.set_current_seed(impl.stream_seed(impl.groups.model_parallel_rank() + 1));
  return generator.get_state();
}

}  // namespace

ModelParallelRandom::ModelParallelRandom(Engine& engine) : engine_(engine.impl().self) {
  auto& impl = engine.impl();
  impl.begin_random_stream();  // or it would begin inside, and take these numbers for the program's
  outside_ = engine::random_state(c10::kCPU);
  if (!impl.model_parallel_random.defined()) impl.model_parallel_random = first_state(impl);
  at::Tensor state = impl.model_parallel_random;
  if (intercept::begin_random_scope(state)) engine_.reset();  // numbers of before: the stream stays where it is
  engine::set_random_state(c10::kCPU, state);
}

ModelParallelRandom::~ModelParallelRandom() {
  if (Engine::Impl* const impl = engine_ ? *engine_ : nullptr)
    impl->model_parallel_random = engine::random_state(c10::kCPU);
  engine::set_random_state(c10::kCPU, outside_);
}

}  // namespace zero
