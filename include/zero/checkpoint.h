#pragma once
// Checkpoints of a physically split model: complete or invisible, loadable at any number of ranks, stage,
// store and precision. Written and read by Engine::save_checkpoint and load_checkpoint; what is here needs
// no ranks and no libtorch. The format is docs/checkpoint_format.md.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

struct SaveOptions {
  /// True: returns when this rank's part is copied to staging memory; a thread writes it. See
  /// Engine::wait_checkpoint.
  bool async = false;
  /// Writes the file `latest`, which load_checkpoint without a tag follows.
  bool save_latest = true;
  /// Removes the oldest checkpoints of the folder once the new one is there and complete; 0 keeps all.
  int keep_last = 0;
  /// A save while another is under way: false waits for it, true throws CheckpointError on all ranks.
  bool refuse_when_busy = false;
};

struct LoadOptions {
  /// Parameters and buffers only; optimizer, schedule and counters stay as they are.
  bool module_only = false;
  bool load_optimizer_states = true;
  /// Also the step counters and the data position.
  bool load_lr_scheduler_states = true;
  /// Names or shapes that do not match are an error; else they are left as they are and reported.
  bool strict = true;
  /// A damaged or incomplete checkpoint falls back to the newest other one that is whole. Only without a tag.
  bool fall_back = false;
  /// Reads and verifies every byte this rank needs before the first value of the engine is changed: a
  /// damaged checkpoint then leaves the engine as it was. Costs a second read.
  bool verify_first = false;
  /// From a parameter's or buffer's name in this model to its name in the checkpoint, where they differ.
  std::map<std::string, std::string> names;
};

struct FullWeightsOptions {
  /// Names or shapes that do not match are an error; else they are left as they are and reported.
  bool strict = true;
  /// From a parameter's or buffer's name in this model to its name in the file, where they differ.
  std::map<std::string, std::string> names;
};

/// What load_checkpoint or load_full_weights did, the same on every rank.
struct LoadReport {
  std::string folder;        ///< the checkpoint's own, or the path of the weights
  std::string tag;           ///< empty for weights
  std::string client_state;  ///< JSON
  std::int64_t global_steps = 0;
  /// Micro-batches of all ranks before the one that comes next: where the data goes on.
  std::int64_t micro_batches = 0;
  std::vector<std::string> missing;     ///< in the model, not in the checkpoint
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the model
  std::vector<std::string> mismatched;  ///< shapes differ; with both
  std::vector<std::string> notices;     ///< what else a user should know: fall-backs, other versions
};

namespace checkpoint {

/// done and total bytes; called from the calling thread now and then.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct TensorSummary {
  std::string name;
  std::string kind;   ///< weight, gradient_sum, buffer, random_state, or the name of an optimizer state
  std::string dtype;  ///< as in safetensors: F32, BF16, ...
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::uint64_t nbytes = 0;
  int pieces = 0;
};

struct Summary {
  std::string tag;
  std::string folder;
  bool complete = false;
  std::string problem;  ///< why not
  bool latest = false;  ///< the one that load_checkpoint without a tag takes
  std::int64_t created_unix_ns = 0;
  std::int64_t global_steps = 0;
  int world_size = 0;
  int files = 0;
  std::uint64_t nbytes = 0;
  std::int64_t parameters = 0;  ///< elements of all weights
};

/// Checkpoints of a folder, oldest first, and incomplete ones with the reason. Reads manifests and file
/// sizes. Throws IoError.
std::vector<Summary> list(const std::string& folder);

struct Description {
  Summary summary;
  std::vector<TensorSummary> tensors;
  std::string state;         ///< JSON: counters, random streams, data position, schedule
  std::string client_state;  ///< JSON
  std::string config;        ///< JSON
  std::string versions;      ///< JSON: of what wrote it
};

/// The tag that `latest` in a folder of checkpoints names, whether that is there or not; empty: there is no such file.
/// Throws IoError.
std::string latest(const std::string& folder);

/// Everything but the data. `path` is a checkpoint's folder, or a folder of checkpoints (then its latest).
/// Throws CheckpointError.
Description inspect(const std::string& path);

struct Problem {
  std::string file;
  std::string text;
};
struct VerifyReport {
  std::string folder;
  std::uint64_t nbytes = 0;  ///< read
  std::vector<Problem> problems;
};
/// Reads every byte and compares every checksum. Throws CheckpointError only when there is no checkpoint.
VerifyReport verify(const std::string& path, const Progress& progress = {});

struct ExportOptions {
  /// "fp32", "bf16", "fp16" or "module" (what the module held when it was saved).
  std::string dtype = "fp32";
  std::uint64_t max_file_nbytes = 5'000'000'000;
  bool include_buffers = true;
};
struct ExportReport {
  std::vector<std::string> files;
  std::int64_t tensors = 0;
  std::uint64_t nbytes = 0;
};
/// Weights as safetensors files that Hugging Face's loaders read: model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. `to` is made; files of those names in
/// it are replaced. Memory: about 100 MB, and one tensor where its order must be turned. Names that
/// share one parameter are all written. Throws CheckpointError, IoError.
ExportReport export_weights(const std::string& path, const std::string& to, const ExportOptions& options = {},
                            const Progress& progress = {});

struct TensorDifference {
  std::string name;
  std::string kind;
  std::string note;            ///< "only in A", "shape [2] and [3]", "dtype F32 and BF16"; empty when comparable
  std::int64_t differing = 0;  ///< elements whose bits differ
  double largest = 0;          ///< absolute difference; NaN when one side has a NaN
};
struct DiffReport {
  std::int64_t compared = 0;
  std::int64_t identical = 0;
  std::vector<TensorDifference> different;
  std::vector<std::string> state;  ///< other differences: counters, world size
};
/// Compares two checkpoints tensor by tensor, whatever their number of files and model-parallel ranks. Memory: a few
/// blocks, and two tensors where their elements lie in different orders.
DiffReport diff(const std::string& a, const std::string& b, const Progress& progress = {});

struct PruneReport {
  std::vector<std::string> removed;     ///< tags
  std::vector<std::string> leftovers;   ///< folders of saves that never completed
  std::vector<std::string> damaged;     ///< of those that stay: a checksum is wrong
  std::vector<std::string> incomplete;  ///< they stay, and are not counted
  std::uint64_t nbytes = 0;
};
/// Keeps the newest `keep_last` complete checkpoints and the latest one, removes the other complete ones and
/// what interrupted saves left. Before anything is removed, one that stays is read whole; where all of these are
/// damaged, the newest one that is not stays too. Throws CheckpointError while a save is under way there.
PruneReport prune(const std::string& folder, int keep_last, bool dry_run = false);

}  // namespace checkpoint
}  // namespace zero
