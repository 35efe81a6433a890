#pragma once
// One training run of the odd model, reduced to what must be equal everywhere.
#include <string>
#include <vector>

#include "zero/group.h"

namespace zero::testing {

struct ParityCase {
  int stage = 0;
  bool node_shared = false;
  bool bf16 = false;
  bool clipping = false;
  bool tiny_buckets = false;
  bool overlap = false;
  bool progress_thread = false;
  bool fp16 = false;             ///< in place of bf16, with a dynamic loss scale
  bool nvme = false;             ///< masters and states in a scratch file
  int recipe = 0;                ///< optimizer and schedule; 0: AdamW at a constant rate
  bool nvme_parameters = false;  ///< the parameters' shards in a scratch file; for ranks of one host
  bool on_device = false;        ///< shards, sums and states in the memory of the module's accelerator

  /// The runs that must agree with each other: "fp32 clip", "bf16", ...
  std::string curve() const;
  std::string name() const;
};

/// Every combination for AdamW, and other recipes at each stage, store and precision. `reduced`: each value of each
/// axis at least once with each stage, and other recipes at two stages, one in each store.
std::vector<ParityCase> parity_cases(bool reduced);

struct ParityResult {
  std::vector<double> losses;      ///< [steps * 12], by global micro-batch
  std::vector<double> norms;       ///< [steps]
  std::uint64_t weights_hash = 0;  ///< of all full fp32 weights and optimizer states
  std::string text() const;        ///< every bit of it, one line
};

inline constexpr int kParitySteps = 5;
inline constexpr int kParityMicroBatches = 12;

/// Trains kParitySteps steps of 12 micro-batches over the group, the module on `device`, the rest where the case says.
/// *Collective.* The same result on every rank.
ParityResult run_parity_case(const ParityCase& test_case, Group group, at::Device device = at::kCPU);

/// The same training written by hand with libtorch's AdamW in one process, no library of ours.
/// `weights`: full fp32 weights by registration order.
struct PlainResult {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
};
PlainResult run_plain(bool bf16, bool clipping);
/// The weights as run_plain gives them, from the engine, for a case in a group of one.
PlainResult run_engine_plain(const ParityCase& test_case);

}  // namespace zero::testing
