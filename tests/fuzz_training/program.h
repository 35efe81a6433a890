#pragma once
// A random training program as data: a small model, a list of events, and the settings to run it with. It is
// interpreted twice, by plain libtorch and by zerotorch, and can be shrunk while it still fails. No libtorch
// here.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zero::fuzz_training {

/// What a program may be made of. Layers, then events, then properties of the whole program.
enum class Ingredient : std::uint8_t {
  kLinear,  ///< always there
  kWide,
  kNorm,
  kEmbedding,
  kSparse,
  kTied,
  kReuse,
  kView,
  kTransposed,
  kScalar,
  kEmpty,
  kOdd,
  kUnused,
  kTop1,
  kTop2,
  kLayerDrop,
  kHeads,
  kUnroll,
  kBuffer,
  kMask,
  kLazy,
  kTrain,  ///< always there
  kFreeze,
  kZeroGrad,
  kDiscard,
  kThrowForward,
  kThrowBackward,
  kEvaluate,
  kEvaluateOne,
  kGatheredRead,
  kGatheredWrite,
  kSetWeight,
  kClipValue,
  kScaleGradient,
  kSetGradient,
  kReadGradient,
  kReadWeights,
  kLearningRate,
  kStepGroups,
  kSave,
  kLoad,
  kResume,
  kPenalty,
  kInputPenalty,
  kLossBackward,
  kFrozenAtStart,
  kGroups,
  kClient,
  kClipping,
  kBf16,
  kAccumulation,
  kGan,
  kUnusedZero,
  kCount,
};
std::string_view name_of(Ingredient ingredient);
std::optional<Ingredient> ingredient_of(std::string_view name);

/// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  std::uint64_t state_;
};
/// A number that depends on two others only.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

struct Layer {
  Ingredient kind = Ingredient::kLinear;
  int id = 0;     ///< stays when other layers are removed
  int other = 0;  ///< kTied, kReuse: the id of the layer whose weights are used
  int size = 3;   ///< experts, rows, ...
};

struct Event {
  Ingredient kind = Ingredient::kTrain;
  int which = 0;   ///< kGan: 0 the critic, 1 the generator, 2 both by one loss
  int target = 0;  ///< a parameter, a rank, a layer, a parameter group: whatever the kind needs, modulo their number
  int mode = 0;
  double value = 0;
  Ingredient penalty = Ingredient::kCount;  ///< kTrain: kPenalty, kInputPenalty or none
  bool loss_backward = false;               ///< loss.backward() in place of engine.backward(loss)
};

enum class Groups : std::uint8_t { kNone, kGroups, kClient };

struct Program {
  std::uint64_t seed = 0;
  int dim = 5, batch = 2;
  int block = 1;   ///< micro-batches of an event kTrain, over all ranks: every number of ranks divides it
  int blocks = 1;  ///< events kTrain of a window (an optimizer step)
  bool bf16 = false;
  /// AdamW's. So large that a gradient near zero that comes out otherwise by a rounding, in bf16 of 2^-8 of its largest
  /// addend, moves its weight by little.
  double eps() const { return bf16 ? 0.1 : 1e-3; }
  double clipping = 0;
  Groups groups = Groups::kNone;
  int unit_numel = 0;         ///< of all runs: the flat layout, and with it the order of the norm's sum, depends on it
  bool unused_zero = false;   ///< a parameter without gradient has one of zeros; else it is left alone
  int frozen_at_start = -1;   ///< a parameter that does not require grad at initialize()
  std::vector<Layer> layers;  ///< of the model, or of the critic
  std::vector<Layer> generator;
  std::vector<Event> events;

  bool is_gan() const { return !generator.empty(); }
  int window() const { return block * blocks; }
  bool has(Ingredient kind) const;
  /// Whether all runs must agree bit by bit.
  bool one_curve() const { return !has(Ingredient::kPenalty); }
};

/// How zerotorch runs a program, or the part of it before or after the resume.
struct Setting {
  int ranks = 1;
  int stage = 0;
  bool node_shared = false;
  bool tiny_buckets = false;
  bool overlap = false;
  bool progress_thread = false;
  bool step_in_backward = false;
  int persistence = 0;
  bool little_live = false;         ///< stage 3: almost nothing stays gathered, no prefetch
  bool observer = false;            ///< zerotorch.debug_observer
  bool jitter = false;              ///< ranks pause here and there, each at its own places
  bool nvme = false;                ///< masters and states in scratch files
  bool speculative = false;         ///< zerotorch.speculative_update, with nvme
  bool parameters_on_host = false;  ///< of a module on a device: offload_param
  int host_percent = 100;           ///< of them in host memory, while the device has and updates the others
};

struct Run {
  Setting before, after;  ///< the resume, if there is one
};

struct Case {
  Program program;
  std::vector<Run> runs;
};

/// The program of a seed; `only`: of plain layers and this ingredient; never with those in `without`.
Case generate(std::uint64_t seed, std::optional<Ingredient> only = {}, const std::vector<Ingredient>& without = {});
/// Whether the setting may run the program: what the documents refuse is not tried.
bool allowed(const Program& program, const Setting& setting);

/// How long a collective may take, in seconds: a hang is a finding.
inline double collective_timeout_s = 20;
/// The engine's models are on the simulated device (support/simulated_device.h), in an order of its streams that the
/// program's seed and the rank choose; plain libtorch's are on the CPU.
inline bool on_simulated_device = false;
/// There, shards and states are in its memory, too.
inline bool states_on_device = false;
/// There, NCCL moves them, as far as the simulated device has it. Stage 3 then only where all ranks use the same.
inline bool moved_by_nccl = false;

std::string text_of(const Program& program);
std::string text_of(const Setting& setting);
std::string json_of(const Program& program, const Setting& setting);

}  // namespace zero::fuzz_training
