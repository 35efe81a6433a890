#include "engine/micro_batch_random.h"

#include <ATen/Context.h>

#include <atomic>
#include <mutex>

#include "engine/random_state.h"

namespace zero::engine {
namespace {

/// Whose stream it is; null: the program's.
std::atomic<MicroBatchRandom*> g_running{nullptr};

std::mutex& mutex() {
  static auto& the_mutex = *new std::mutex;  // engines may go after static objects
  return the_mutex;
}

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::globalContext().defaultGenerator(c10::kCPU));
}

}  // namespace

MicroBatchRandom::~MicroBatchRandom() {
  if (g_running == this) interrupt();
}

bool MicroBatchRandom::has_begun() { return g_running != nullptr; }

MicroBatchRandom::State MicroBatchRandom::take_state() const {
  auto& generator = cpu_generator();
  const std::lock_guard lock(generator.mutex_);
  return {generator.engine(), generator.next_float_normal_sample(), generator.next_double_normal_sample(),
          device_.is_cpu() ? at::Tensor() : random_state(device_)};
}

void MicroBatchRandom::give_state(const State& state) const {
  auto& generator = cpu_generator();
  const std::lock_guard lock(generator.mutex_);
  generator.set_engine(state.cpu);
  generator.set_next_float_normal_sample(state.next_float);
  generator.set_next_double_normal_sample(state.next_double);
  if (state.device.defined()) set_random_state(device_, state.device);
}

void MicroBatchRandom::begin(std::uint64_t seed) {
  const std::lock_guard lock(mutex());
  if (g_running) return;
  program_ = take_state();
  if (interrupted_) {
    give_state(*interrupted_);
  } else {
    at::manual_seed(seed);
    seed_ = seed;
  }
  g_running = this;
}

void MicroBatchRandom::interrupt() {
  const std::lock_guard lock(mutex());
  MicroBatchRandom* const running = g_running.exchange(nullptr);
  if (!running) return;
  if (cpu_generator().current_seed() != running->seed_)
    return;  // manual_seed(): these are the program's numbers
  running->interrupted_ = running->take_state();
  running->give_state(running->program_);
}

void MicroBatchRandom::end() {
  interrupt();
  interrupted_.reset();
}

std::uint64_t MicroBatchRandom::program_seed() { return cpu_generator().current_seed(); }

}  // namespace zero::engine
