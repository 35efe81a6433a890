#pragma once
// How fast this machine computes, by a measurement of some tenths of a second, and what a first run can do with it.
#include <cstdint>
#include <string>

#include "train/train_options.h"
#include "zero/dtype.h"
#include "zero/lm/models.h"

namespace zero::app {

/// Speed of matrix products of one rank, with its threads.
struct MachineSpeed {
  DType dtype = DType::kBFloat16;
  int threads = 1;
  double flops = 0;      ///< floating-point operations per second in `dtype`, as an engine computes them
  bool in_fp32 = false;  ///< this CPU has no fast instructions for `dtype`: products are computed in fp32
};

/// Of a CPU rank in a job of `ranks` ranks on this host. `dtype`: of parameters. Measures at the first call. *Local*,
/// main thread.
MachineSpeed measure_machine(DType dtype, int ranks);

/// "2 ranks x 1 thread at 88 GFLOP/s in bf16 (computed in fp32)".
std::string describe_speed(const MachineSpeed& speed, int ranks);

/// The line "machine" of a run that takes `seconds`; after ten minutes, another one with `remedy`, if there is one.
std::string describe_time(const MachineSpeed& speed, int ranks, double seconds, const std::string& remedy);

/// What of a transformer its time depends on.
struct ModelSize {
  std::int64_t numel = 0, layers = 0, dim = 0, seq = 0, recompute_every = 0;
};
ModelSize size_of(const GPTOptions& model);

/// Seconds of a training run of a transformer on `ranks` such ranks: `steps` of `sequences` each, and validations of
/// `validated` sequences in all. Within a third of what it takes on a machine that does nothing else.
double seconds_of_training(const ModelSize& model, const MachineSpeed& speed, int ranks, std::int64_t steps,
                           std::int64_t sequences, std::int64_t validated);

/// Preset and steps of a run for which neither was given: the most training that takes two to four minutes on `ranks`
/// such ranks, of a list that is the same on every machine.
struct FirstRun {
  const char* preset;
  std::int64_t steps;
};
FirstRun choose_first_run(const MachineSpeed& speed, int ranks);

/// Fills in what `options` leave open of a first run: preset and steps, where no model, size, configuration or number
/// of steps is given and the CPU computes. Measures only then.
void choose_run_size(TrainOptions& options, int ranks);

}  // namespace zero::app
