#include "engine/micro_batch_random.h"

#include <ATen/Context.h>

#include <atomic>
#include <mutex>

#include "engine/random_state.h"
#include "intercept/random_replay.h"

namespace zero::engine {
namespace {

/// Whose stream it is; null: the program's.
std::atomic<MicroBatchRandom*> g_running{nullptr};

std::mutex& mutex() {
  static auto& the_mutex = *new std::mutex;  // engines may go after static objects
  return the_mutex;
}

at::CPUGeneratorImpl& cpu_generator() {
  static auto& generator = *at::check_generator<at::CPUGeneratorImpl>(at::globalContext().defaultGenerator(c10::kCPU));
  return generator;  // libtorch's for the whole process
}

}  // namespace

MicroBatchRandom::~MicroBatchRandom() {
  if (g_running == this) interrupt();
}

bool MicroBatchRandom::has_begun() { return g_running != nullptr; }

bool MicroBatchRandom::was_reseeded() {
  const MicroBatchRandom* const running = g_running;
  return running && cpu_generator().current_seed() != running->seed_;
}

// A generator that was just seeded has one number left of a block that does not exist and is at its first; where it is
// in that block means nothing until it is drawn from, so that is where we note that we have seen it.

bool MicroBatchRandom::is_just_seeded() {
  const auto state = cpu_generator().engine().data();
  return state.left_ == 1 && state.next_ == 0;
}

void MicroBatchRandom::forget_seeding() {
  auto& generator = cpu_generator();
  const std::lock_guard lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  auto state = engine.data();
  if (state.left_ != 1 || state.next_ != 0) return;
  state.next_ = at::MERSENNE_STATE_N;
  engine.set_data(state);
  generator.set_engine(engine);
}

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
  intercept::set_random_stream_interrupt(&MicroBatchRandom::interrupt);
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
  if (cpu_generator().current_seed() != running->seed_) return;  // manual_seed(): these are the program's numbers
  running->interrupted_ = running->take_state();
  running->give_state(running->program_);
}

void MicroBatchRandom::end() {
  interrupt();
  interrupted_.reset();
}

std::uint64_t MicroBatchRandom::program_seed() { return cpu_generator().current_seed(); }

}  // namespace zero::engine
