#pragma once
// Random numbers of an engine's forwards: a stream for each micro-batch of the run, whatever rank it falls on.
#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/groups.h"
#include "engine/micro_batch_random.h"
#include "engine/training_state.h"
#include "zero/config.h"

namespace zero::engine {

/// An engine's number among those of this process that live, from 0: two do not draw the same noise.
struct EngineNumber {
  EngineNumber();
  ~EngineNumber();
  EngineNumber(const EngineNumber&) = delete;
  EngineNumber& operator=(const EngineNumber&) = delete;
  /// The engine's own seed where several have the same one.
  std::uint64_t seed_from(std::uint64_t base) const {
    return base + static_cast<std::uint64_t>(value) * 0xD1342543DE82EF95ull;
  }
  const int value;
};

class RandomStreams {
 public:
  /// All outlive it; the seed is in `training`.
  RandomStreams(const Config& config, TrainingState& training, const Groups& groups)
      : config_(config), training_(training), groups_(groups) {}

  /// One seed for all ranks: the configuration's, or that of rank 0's default generator. *Collective.*
  void choose_seed(Group& all);
  /// The engine is made: what the program draws is its own. `device`: the module's. Local.
  void start(c10::Device device);
  /// What libtorch's generators give from here on, until the backward is over, is the micro-batch's, keyed by the
  /// program's own seed where it has called manual_seed() since. Nothing where gradients are off. Local.
  void begin() {
    if (config_.zerotorch.reseed_per_micro_batch && at::GradMode::is_enabled()) begin_or_go_on();
  }
  /// The micro-batch is over, or another one is to come. Local.
  void end();
  /// The forward that has run is given up: the next one is the micro-batch's first. Local.
  void restart();
  /// The seed of the stream of the micro-batch that comes next; each `branch` is another one.
  std::uint64_t seed(int branch) const;

  /// Among the engines of this process.
  int engine_number() const { return number_.value; }

  at::Tensor model_parallel;  ///< where ModelParallelRandom goes on in this micro-batch; undefined: its start

 private:
  void begin_or_go_on();

  const Config& config_;
  TrainingState& training_;
  const Groups& groups_;
  EngineNumber number_;
  MicroBatchRandom of_micro_batch_;
  std::uint64_t program_seed_ = 0;  ///< of the program's numbers, when the engine last looked
};

}  // namespace zero::engine
