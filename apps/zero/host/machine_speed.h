#pragma once
// How fast this machine computes, by a measurement of some tenths of a second, and what a first run can do with it.
#include <cstdint>
#include <string>

#include "train/train_options.h"
#include "zero/config.h"
#include "zero/lm/models.h"

namespace zero::app {

/// What of a transformer its time depends on.
struct ModelSize {
  std::int64_t numel = 0, layers = 0, dim = 0, seq = 0, recompute_every = 0;
};
ModelSize size_of(const GPTOptions& model);

/// What there is to do.
struct WorkToDo {
  ModelSize model;
  std::int64_t steps = 0;
  std::int64_t validated = 0;  ///< sequences, in all validations
};

/// The line "machine" of a run on the CPU of this host: the speed of its ranks, and how long it will take, within a
/// third on a machine that does nothing else. Where that is more than ten minutes another one with `remedy`, if there
/// is one. *Local*, main thread, as choose_run_size().
std::string describe_time(const Config& config, int ranks, const WorkToDo& work, const std::string& remedy);

/// Fills in what `options` leave open of a first run: preset and steps, where no model, size, configuration or number
/// of steps is given and the CPU computes: the most training that takes two to four minutes, of a list that is the same
/// on every machine. Measures only then, and once.
void choose_run_size(TrainOptions& options, int ranks);

}  // namespace zero::app
