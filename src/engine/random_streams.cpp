#include "engine/random_streams.h"

#include <ATen/Context.h>

#include <mutex>
#include <set>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/random_state.h"
#include "intercept/random_replay.h"

namespace zero::engine {
namespace {

/// The least number that no engine of this process has; given back with the engine.
class EngineNumbers {
 public:
  static int take() {
    const std::lock_guard lock(mutex());
    int number = 0;
    while (!taken().insert(number).second) ++number;
    return number;
  }
  static void give_back(int number) {
    const std::lock_guard lock(mutex());
    taken().erase(number);
  }

 private:
  static std::mutex& mutex() {
    static auto& the_mutex = *new std::mutex;  // engines may go after static objects
    return the_mutex;
  }
  static std::set<int>& taken() {
    static auto& the_numbers = *new std::set<int>;
    return the_numbers;
  }
};

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

EngineNumber::EngineNumber() : value(EngineNumbers::take()) {}
EngineNumber::~EngineNumber() { EngineNumbers::give_back(value); }

void RandomStreams::choose_seed(Group& all) {
  MicroBatchRandom::interrupt();
  const auto base = static_cast<std::uint64_t>(config_.zerotorch.seed.value_or(
      static_cast<std::int64_t>(at::globalContext().defaultGenerator(c10::kCPU).current_seed())));
  auto seed = static_cast<std::int64_t>(number_.seed_from(base));
  all.broadcast(&seed, 1, DType::kInt64, 0, {.label = "seed"}).wait();
  training_.seed = static_cast<std::uint64_t>(seed);
}

void RandomStreams::start(c10::Device device) {
  of_micro_batch_.set_device(device);
  program_seed_ = MicroBatchRandom::program_seed();
  MicroBatchRandom::forget_seeding();
}

void RandomStreams::begin_or_go_on() {
  using Random = MicroBatchRandom;
  if (Random::has_begun()) {
    // The seed of numbers that are given once more is of before.
    if (intercept::replays_random() || !Random::was_reseeded()) return;
    Random::interrupt();
  }
  intercept::random_stream_begins();
  const bool just_seeded = Random::is_just_seeded();
  const std::uint64_t now = Random::program_seed();
  if (std::exchange(program_seed_, now) != now || just_seeded) {
    // The program has called manual_seed(): streams are keyed by its seed from here on, and two forwards with one seed
    // have the same noise.
    training_.seed = number_.seed_from(now);
    of_micro_batch_.restart();
    Random::forget_seeding();
  }
  of_micro_batch_.begin(seed(0));
  intercept::random_stream_has_begun();
}

void RandomStreams::end() {
  of_micro_batch_.end();
  model_parallel.reset();
}

void RandomStreams::restart() {
  MicroBatchRandom::interrupt();
  of_micro_batch_.restart();
}

std::uint64_t RandomStreams::seed(int branch) const {
  // Micro-batch i of the whole run, whatever rank it falls on: i = j*N + r.
  const auto index = static_cast<std::uint64_t>(training_.micro_batches + groups_.data_rank());
  const std::uint64_t stream = mix(training_.seed + (index + 1) * 0x9E3779B97F4A7C15ull);
  return branch == 0 ? stream : mix(stream + static_cast<std::uint64_t>(branch) * 0xBF58476D1CE4E5B9ull);
}

}  // namespace zero::engine

namespace zero {
namespace {

/// Of this model-parallel rank in this micro-batch.
at::Tensor first_state(const Engine::Impl& impl) {
  auto generator = at::globalContext().defaultGenerator(c10::kCPU).clone();
  generator.set_current_seed(impl.random.seed(impl.groups.model_parallel_rank() + 1));
  return generator.get_state();
}

}  // namespace

ModelParallelRandom::ModelParallelRandom(Engine& engine) : engine_(engine.impl().life.self) {
  auto& impl = engine.impl();
  impl.random.begin();  // or it would begin inside, and take these numbers for the program's
  outside_ = engine::random_state(c10::kCPU);
  if (!impl.random.model_parallel.defined()) impl.random.model_parallel = first_state(impl);
  at::Tensor state = impl.random.model_parallel;
  if (intercept::begin_random_scope(state)) engine_.reset();  // numbers of before: the stream stays where it is
  engine::set_random_state(c10::kCPU, state);
}

ModelParallelRandom::~ModelParallelRandom() {
  if (Engine::Impl* const impl = engine_ ? *engine_ : nullptr)
    impl->random.model_parallel = engine::random_state(c10::kCPU);
  engine::set_random_state(c10::kCPU, outside_);
}

}  // namespace zero
