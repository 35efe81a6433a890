#pragma once
// Checkpoints of a sharded model: complete or invisible, and loadable with any number of ranks, stage, store and
// precision. Engine::save_checkpoint and load_checkpoint write and read them; the functions here need neither ranks nor
// libtorch. docs/checkpoint_format.md describes the format.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

struct SaveOptions {
  /// True: returns when this rank's part is in staging memory; a thread writes it. See Engine::wait_checkpoint.
  bool async = false;
  /// Writes the file `latest`, which load_checkpoint reads when it gets no tag.
  bool save_latest = true;
  /// Number of newest checkpoints to keep in the folder; older ones are removed once the new one is complete. 0 keeps
  /// all.
  int keep_last = 0;
  /// If a save is already under way: false waits for it, true throws CheckpointError on all ranks.
  bool refuse_when_busy = false;
};

struct LoadOptions {
  /// Parameters and buffers only; optimizer, schedule, counters and loss scale stay as they are.
  bool module_only = false;
  bool load_optimizer_states = true;
  /// False: the learning-rate schedule, and rates that were set in its place, stay as they are in this engine. Step
  /// counters, loss scale and data position are loaded in either case.
  bool load_lr_scheduler_states = true;
  /// True: names or shapes that do not match are an error. False: those tensors keep their values and are reported.
  bool strict = true;
  /// If the checkpoint is damaged or incomplete, loads the newest other one that is intact. Only without a tag.
  bool fall_back = false;
  /// Reads and verifies every byte this rank needs before changing anything in the engine: a damaged checkpoint then
  /// leaves the engine unchanged. Costs a second read.
  bool verify_first = false;
  /// Maps names of parameters and buffers in this model to their names in the checkpoint, where they differ.
  std::map<std::string, std::string> names;
};

struct FullWeightsOptions {
  /// True: names or shapes that do not match are an error, and so is a tied parameter with other values under another
  /// of its names. False: those tensors keep their values and are reported; of a tied parameter's names the first
  /// counts.
  bool strict = true;
  /// Maps names of parameters and buffers in this model to their names in the file, where they differ.
  std::map<std::string, std::string> names;
  /// Where names of the model begin with it, the file's may lack it: Hugging Face's prefix of base models, for example
  /// "transformer.".
  std::string prefix = {};
  /// More names that the file may have for a parameter, and the parameter's: "lm_head.weight" of a head that is tied.
  /// Under several names it must have the same values.
  std::map<std::string, std::string> aliases = {};
  /// Names in the file that the model has no use for; patterns as ParameterGroup::names.
  std::vector<std::string> ignored = {};
  /// Names of the model that the file may lack: these keep their values. Patterns, too.
  std::vector<std::string> optional = {};
};

/// What load_checkpoint or load_full_weights did, the same on every rank.
struct LoadReport {
  std::string folder;        ///< the checkpoint's folder, or the path of the weights
  std::string tag;           ///< empty for weights
  std::string client_state;  ///< JSON
  std::int64_t global_steps = 0;
  /// Micro-batches of all ranks so far: the index at which the data continues.
  std::int64_t micro_batches = 0;
  std::vector<std::string> missing;     ///< in the model, not in the checkpoint
  std::vector<std::string> unexpected;  ///< in the checkpoint, not in the model
  std::vector<std::string> mismatched;  ///< shapes differ; lists both
  std::vector<std::string> notices;     ///< other facts for the user: fall-backs, other versions
};

namespace checkpoint {

/// Receives done and total bytes; called from the calling thread now and then.
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
  std::string problem;  ///< why it is not complete
  bool latest = false;  ///< the one that load_checkpoint takes without a tag
  std::int64_t created_unix_ns = 0;
  std::int64_t global_steps = 0;
  int world_size = 0;
  int files = 0;
  std::uint64_t nbytes = 0;
  std::int64_t parameters = 0;  ///< elements of all weights
};

/// Lists the checkpoints of a folder, oldest first, and incomplete ones with the reason. Reads only manifests and file
/// sizes. Throws IoError.
std::vector<Summary> list(const std::string& folder);

struct Description {
  Summary summary;
  std::vector<TensorSummary> tensors;
  std::string state;         ///< JSON: counters, random streams, data position, schedule
  std::string client_state;  ///< JSON
  std::string config;        ///< JSON
  std::string versions;      ///< JSON: versions of the software that wrote it
};

/// The tag in the file `latest` of a folder of checkpoints, even if that checkpoint does not exist; empty if there is
/// no such file. Throws IoError.
std::string latest(const std::string& folder);

/// Describes a checkpoint without reading its tensor data. `path` is a checkpoint's folder, or a folder of checkpoints
/// (then its latest). Throws CheckpointError.
Description inspect(const std::string& path);

struct Problem {
  std::string file;
  std::string text;
};
struct VerifyReport {
  std::string folder;
  std::uint64_t nbytes = 0;  ///< bytes read
  std::vector<Problem> problems;
};
/// Reads every byte and compares every checksum; reports damage as problems. Throws CheckpointError only if there is no
/// checkpoint.
VerifyReport verify(const std::string& path, const Progress& progress = {});

struct ExportOptions {
  /// "fp32", "bf16", "fp16" or "module" (the module's dtype when it was saved).
  std::string dtype = "fp32";
  std::uint64_t max_file_nbytes = 5'000'000'000;
  bool include_buffers = true;
  /// If there are any: only the tensors of these names are written, each under the name that is given for it.
  std::map<std::string, std::string> names = {};
  std::string stem = "model";  ///< of the files' names
};
struct ExportReport {
  std::vector<std::string> files;
  std::int64_t tensors = 0;
  std::uint64_t nbytes = 0;
  std::string notice = {};  ///< what a person should know of these weights; usually empty
};
/// Writes the weights as safetensors files that Hugging Face's loaders read: model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json. Creates the folder `to`; replaces files of those
/// names in it. Memory: about 100 MB, plus one tensor if its elements must be reordered. A parameter with several names
/// is written under each. Throws CheckpointError, IoError.
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
/// blocks, plus two tensors if their elements lie in different orders.
DiffReport diff(const std::string& a, const std::string& b, const Progress& progress = {});

struct PruneReport {
  std::vector<std::string> removed;     ///< tags
  std::vector<std::string> leftovers;   ///< folders of saves that never completed
  std::vector<std::string> damaged;     ///< kept, but a checksum is wrong
  std::vector<std::string> incomplete;  ///< kept, and not counted
  std::uint64_t nbytes = 0;
};
/// Keeps the newest `keep_last` complete checkpoints and the latest one; removes other complete ones and leftovers of
/// interrupted saves. Before removing anything, verifies that one of those it keeps is intact; if all of them are
/// damaged, it also keeps the newest other one that is intact. Throws CheckpointError while a save is under way there.
PruneReport prune(const std::string& folder, int keep_last, bool dry_run = false);

}  // namespace checkpoint
}  // namespace zero
