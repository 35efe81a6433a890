#include "host/machine_speed.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include "text/text_format.h"
#include "zero/cpu_products.h"
#include "zero/launch.h"

namespace zero::app {
namespace {

/// Matrices as large as those of a small GPT.
constexpr int kEdge = 384;

/// Threads that a rank will have: its share of the cores, unless the environment says.
int threads_of_rank(int ranks) {
  const char* const given = std::getenv("OMP_NUM_THREADS");
  if (const int threads = given ? std::atoi(given) : 0; threads > 0) return threads;
  return std::max(1, usable_cores() / ranks);
}

/// Of matrix products of one rank, with its threads.
struct MachineSpeed {
  DType dtype = DType::kBFloat16;
  int threads = 1;
  double flops = 0;      ///< floating-point operations per second in `dtype`, as an engine computes them
  bool in_fp32 = false;  ///< this CPU has no fast instructions for `dtype`: products are computed in fp32
};

/// `dtype`: of parameters. Measures at the first call.
MachineSpeed measure_machine(DType dtype, int ranks) {
  MachineSpeed speed{.dtype = dtype, .threads = threads_of_rank(ranks)};
  static std::map<std::pair<DType, int>, MachineSpeed> known;
  if (const auto found = known.find({dtype, speed.threads}); found != known.end()) return found->second;
  const int before = at::get_num_threads();
  at::set_num_threads(speed.threads);
  speed.in_fp32 = dtype != DType::kFloat32 && faster_cpu_products(dtype) == CpuProducts::kFp32;
  // What is computed in fp32 has its speed; libtorch's own kernels are not waited for then.
  speed.flops = measure_cpu_products(speed.in_fp32 ? DType::kFloat32 : dtype, kEdge).native;
  at::set_num_threads(before);
  known.emplace(std::pair(dtype, speed.threads), speed);
  return speed;
}

/// `sequences`: of a step.
double seconds_of_training(const WorkToDo& work, std::int64_t sequences, const MachineSpeed& speed, int ranks) {
  const ModelSize& model = work.model;
  // 6 operations for each parameter of a token forward and backward (2 of them forward), and half of the scores of
  // attention: the others are masked.
  const auto numel = static_cast<double>(model.numel);
  const auto activations = static_cast<double>(model.layers * model.dim);
  const double operations = 6 * numel + 6 * activations * static_cast<double>(model.seq);
  // Measured with gpt-tiny to gpt-25m on two kinds of CPU, with and without instructions for bf16: products reach 0.85
  // of the speed of the larger ones measured here; all else takes 40 ns for each element of the residual stream.
  const double recomputed = model.recompute_every > 0 ? 1.0 / 3.0 / static_cast<double>(model.recompute_every) : 0;
  const double seconds_of_token = (1 + recomputed) * operations / (0.85 * speed.flops) + 40e-9 * activations;
  const double tokens = static_cast<double>(model.seq) *
                        (static_cast<double>(work.steps * sequences) + static_cast<double>(work.validated) / 3);
  return tokens * seconds_of_token / ranks;
}

/// Preset and steps of a run for which neither was given.
struct FirstRun {
  const char* preset;
  std::int64_t steps;
};

FirstRun choose_first_run(const MachineSpeed& speed, int ranks) {
  // Each learns more than the one before it.
  constexpr std::array kRuns = {FirstRun{"gpt-tiny", 1000}, FirstRun{"gpt-2m", 400},  FirstRun{"gpt-2m", 800},
                                FirstRun{"gpt-2m", 1400},   FirstRun{"gpt-11m", 800}, FirstRun{"gpt-11m", 1400},
                                FirstRun{"gpt-25m", 1000},  FirstRun{"gpt-152m", 600}};
  constexpr double kMostSeconds = 200;
  // Of a step with the built-in configuration, and those that are validated in a run.
  constexpr std::int64_t kSequences = 16, kValidated = 5 * 24 * 8;
  FirstRun best = kRuns.front();
  for (const FirstRun& run : kRuns) {
    const WorkToDo work{size_of(gpt_preset(run.preset)), run.steps, kValidated};
    if (seconds_of_training(work, kSequences, speed, ranks) <= kMostSeconds) best = run;
  }
  return best;
}

}  // namespace

ModelSize size_of(const GPTOptions& model) {
  return {gpt_numel(model), model.layers, model.dim, model.seq, model.recompute_every};
}

std::string describe_time(const Config& config, int ranks, const WorkToDo& work, const std::string& remedy) {
  constexpr double kLong = 600;
  const MachineSpeed speed = measure_machine(config.param_dtype(), ranks);
  const double seconds = seconds_of_training(work, config.train_batch_size, speed, ranks);
  const std::string text = hanging(
      "machine", fmt::format("{} x {}, {:.0f} GFLOP/s each in {}{}: about {}", counted(ranks, "rank"),
                             counted(speed.threads, "thread"), speed.flops / 1e9, dtype_name(speed.dtype),
                             speed.in_fp32 ? ", computed in fp32: this CPU has no fast instructions for it" : "",
                             duration(seconds)));
  return text + (seconds > kLong && !remedy.empty() ? hanging("", remedy) : "");
}

void choose_run_size(TrainOptions& options, int ranks) {
  const bool sized = options.preset || options.layers || options.dim || options.heads || options.seq ||
                     !options.model.empty() || !options.init_from.empty() || !options.weights.empty();
  const bool open = !sized && !options.steps && options.config.empty() && !options.batch_size && !options.micro_batch;
  if (!open || !(options.device.empty() || options.device == "cpu")) return;
  const DType dtype = options.dtype == "fp32"   ? DType::kFloat32
                      : options.dtype == "fp16" ? DType::kFloat16
                                                : DType::kBFloat16;
  const FirstRun run = choose_first_run(measure_machine(dtype, ranks), ranks);
  options.preset = run.preset;
  options.steps = run.steps;
}

}  // namespace zero::app
