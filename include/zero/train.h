#pragma once
// TrainingRun: what a training program does around its steps: process set-up, checkpoints when they are due, resuming,
// stop signals, metrics, and a check that everything fits.
//
//   zero::set_up_process(group, config);
//   auto engine = zero::initialize(model, config, {.group = group});
//   zero::TrainingRun run(engine, {.folder = "runs/mine"});
//   run.resume();
//   while (engine.global_steps() < steps && !run.should_stop()) {
//     auto loss = ...;                   // of micro-batch engine.micro_steps() * engine.world_size() + engine.rank()
//     engine.backward(loss);
//     engine.step();
//     run.after_step(loss.item<double>());
//     run.save_if_due();
//   }
//   run.finish();
//
// docs/training_run.md explains it; examples/training_run.cpp is a whole program.
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/group.h"

namespace zero {

// ---- The process ----

struct ProcessOptions {
  /// Catch SIGINT, SIGTERM and SIGHUP for received_stop_signal(); the second one ends the process at once. Also SIGPIPE
  /// (standard output has no reader), if it would end the process.
  bool watch_stop_signals = true;
  /// Rank 0 announces on standard error, at the first stop signal, that a checkpoint follows.
  bool announce_stop = true;
  /// Suppress the library's log lines below warnings, unless ZERO_LOG_LEVEL sets the level.
  bool quiet = false;
  /// Where the model will be.
  c10::Device device = c10::kCPU;
};

/// Prepares this process as a rank of a run; call before the model is built. Pins it to its share of the host's cores
/// if `zerotorch.bind_cores_to_rank` is set, beside its GPU where the host has several memory nodes. Gives every rank
/// the same number of compute threads (OMP_NUM_THREADS, else the cores of the smallest share), because kernels with
/// different numbers may round differently. Tells glibc to keep freed memory, because fresh pages cost more than a warm
/// copy. Seeds libtorch's generator with `zerotorch.seed` if given. Process-wide. *Collective.* Throws CommError.
void set_up_process(Group group, const Config& config, const ProcessOptions& options = {});

/// The first SIGINT, SIGTERM, SIGHUP or SIGPIPE since set_up_process(), 0 if none. Local, any thread.
int received_stop_signal();
/// Seconds since that signal; 0 if none. Local.
double seconds_since_stop_signal();
/// The name of a signal: "SIGINT", ...
const char* stop_signal_name(int signal);

// ---- Agreement between ranks ----

/// All ranks' `mine`, concatenated in rank order. Same length on every rank. *Collective.*
std::vector<double> gather_values(Group group, std::span<const double> mine, std::string_view label);

/// The mean loss over all ranks' micro-batches, summed in the order of the global micro-batches, so that it does not
/// depend on the number of ranks. Same number of losses on every rank. *Collective.*
double mean_loss(Group group, std::span<const double> losses);

/// The stop signal of the lowest rank that received one, 0 if none did. *Collective.*
int agreed_stop_signal(Group group);

/// Calls `make` on rank 0 and returns its text on every rank. An exception of `make` is rethrown on rank 0 and thrown
/// on the others with the same text: as ConfigError if it is one, else as Error. *Collective.*
std::string from_rank_0(Group group, const std::function<std::string()>& make);

// ---- Metrics ----

/// Replaces a file atomically: a crash leaves the old or the new one. Local. Throws IoError.
void replace_text(const std::string& path, std::string_view text);

/// The position of a MetricsRecord, stored in checkpoints.
struct MetricsPosition {
  std::int64_t lines_nbytes = 0;
  std::string events_file;  ///< its name; empty: none
  std::int64_t events_nbytes = 0;
};

/// The metrics of a run: `metrics.jsonl`, one JSON object per line, and TensorBoard event files. Can be truncated to
/// the position that a checkpoint stores, so that no step is recorded twice. One process at a time, which holds the
/// run's lock meanwhile. A full disk does not stop training: lines wait in memory until there is room. All other
/// members throw IoError.
class MetricsRecord {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Appends to `folder`/metrics.jsonl; the folder must exist. Empty `tensorboard_folder`: no event files; else they
  /// are created with the first event. Throws ConfigError if another process is writing there.
  MetricsRecord(const std::string& folder, const std::string& tensorboard_folder = {});
  ~MetricsRecord();

  /// Writes `json`, a JSON object without line ends, to the system before it returns. If the disk does not take it,
  /// logs that once and retries with the next line.
  void add_line(std::string_view json);
  /// Writes one point per name at `step`. If the disk does not take it, logs that and writes no more events.
  void add_events(std::int64_t step, const Scalars& scalars);

  /// Makes the record durable and returns its position.
  MetricsPosition sync();
  /// Writes a copy of all lines, with those that the disk has not taken, to the file `path`, and returns the position
  /// in it. For a disk with room where the record's has none.
  MetricsPosition copy_to(const std::string& path);
  /// Truncates the record to `position`. Call before the first event.
  void go_back_to(const MetricsPosition& position);
  /// Starts an empty record and moves the old one into the folder `kept`; event files only if their folder is below the
  /// run's. Call before the first event.
  void start_over(const std::string& kept);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- The run ----

/// The contents of a run's folder.
struct FoundRun {
  std::int64_t recorded_steps = 0;  ///< the largest `step` of metrics.jsonl
  std::vector<checkpoint::Summary> checkpoints;
  /// What is missing to resume the run, and the remedy; empty: nothing.
  std::string problem;
  /// Checkpoints that cannot be loaded while others can, one line each.
  std::vector<std::string> notices;
  /// True if no checkpoint was ever completed here.
  bool is_fresh() const { return checkpoints.empty() && problem.empty(); }
};
/// Inspects a run's folder without changing anything. Local. Throws IoError.
FoundRun find_run(const std::string& folder);

/// What a run has to say.
struct RunNotice {
  std::string text;
  bool is_problem = false;  ///< a checkpoint is missing or was left out, metrics were lost, the run has diverged
};

struct RunOptions {
  /// The run's folder, the same for every rank, created if missing: holds `checkpoints` and `metrics.jsonl`.
  std::string folder;
  /// Folder of event files; empty: none are written.
  std::string tensorboard_folder = {};
  /// True: after_step() writes a line of step, loss and gradient norm to metrics(). False: the program writes its own.
  bool step_metrics = true;
  /// Returns JSON that is stored in every checkpoint and returned by resume(). Called on rank 0.
  std::function<std::string()> state = {};
  /// True: a loss or an applied gradient that is not finite ends the run (TrainingRun::diverged). False: the run
  /// continues and saves.
  bool stop_when_diverged = true;
  /// The run stops after the first step that ends later than this many minutes after the TrainingRun was made, by rank
  /// 0's clock: for queues with a time limit. 0: never.
  double max_minutes = 0;
  /// Told on rank 0 what became of checkpoints; not given: log lines.
  std::function<void(const RunNotice&)> notice = {};
};

/// What all ranks know after a step.
struct StepOutcome {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the global batch
  bool skipped = false;   ///< the gradient was not finite, the parameters were not changed
};

/// The run of an engine. `zerotorch.checkpoint` in the engine's configuration (`every_steps`, `every_minutes`,
/// `keep_last`, `async`) determines when checkpoints are due and how they are written. Every rank makes the same calls
/// in the same order, from the thread that uses the engine.
class TrainingRun {
 public:
  /// `engine` must outlive this object and must not be moved. *Collective.* Throws ConfigError on every rank if another
  /// process is writing this run, Error or IoError if the folder cannot be created or is another one on other hosts.
  TrainingRun(Engine& engine, RunOptions options);
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Call first. Restores engine and metrics from the newest checkpoint of the folder, or, if that is damaged, from the
  /// newest intact one. In the report, `client_state` is the JSON of RunOptions::state. If no checkpoint was ever
  /// completed, `folder` is empty and metrics start anew. If there are checkpoints but none can be loaded, throws
  /// CheckpointError and changes nothing; restart() then starts over. *Collective.* Throws CheckpointError, IoError.
  LoadReport resume();

  /// Call first, instead of resume(): starts the run over. Moves existing checkpoints and metrics into a new subfolder
  /// (`before.1`, `before.2`, ...) and returns its path; empty if there were none. *Collective.* Throws IoError.
  std::string restart();

  /// Call after every Engine::step(), with the loss of this rank's micro-batch. At the end of an optimizer step the
  /// ranks agree on the loss, on whether a rank received a stop signal, and on whether a checkpoint is due. Returns
  /// nullopt inside an accumulation window. *Collective.*
  std::optional<StepOutcome> after_step(double loss);

  /// As save(), if a checkpoint is due. Call it after after_step(), and after anything the program does at that step
  /// (validation) that the checkpoint should contain. A failed save is reported, and training continues. *Collective.*
  void save_if_due();
  /// Saves whether due or not, unless this step already has a checkpoint or, with RunOptions::stop_when_diverged, the
  /// last loss is not a number. *Collective.*
  void save();

  /// True on every rank once a rank has received a stop signal, as agreed in after_step() or agree_on_stop(), the run
  /// has diverged, or its time is up. Local.
  bool should_stop() const { return stop_signal_ != 0 || diverged_ || time_is_up_; }
  int stop_signal() const { return stop_signal_; }
  /// True once the loss or the norm of the gradient was not a number in a step that was taken, or the loss in 8 skipped
  /// steps in a row or in the last skipped ones before finish(): the parameters are not numbers either, or soon will
  /// not be. No checkpoint is written from then on, as it would push out good ones. Only with
  /// RunOptions::stop_when_diverged. Local.
  bool diverged() const { return diverged_; }
  /// True once RunOptions::max_minutes have passed, as agreed in after_step(). Local.
  bool time_is_up() const { return time_is_up_; }
  /// Agrees on stop signals now, for work that takes longer than a step. Returns should_stop(). *Collective.*
  bool agree_on_stop();

  /// Writes the last checkpoint and waits until it is complete. Writes none before the first step, if this step has
  /// one, or if the run has diverged. *Collective.* Throws CheckpointError.
  void finish();
  /// As finish(), but writes into another folder of checkpoints, and a whole `metrics.jsonl` there: for when the run's
  /// folder has no room. *Collective.* Throws CheckpointError.
  void finish_in(const std::string& folder);

  /// Folder of the last checkpoint, perhaps still under way; empty: none. Local.
  const std::string& last_checkpoint() const { return last_; }
  /// Null on ranks other than 0.
  MetricsRecord* metrics() { return metrics_.get(); }

 private:
  bool is_over(double minutes, std::int64_t since_ns) const;
  bool due_by_steps() const;
  void look_at_loss(const StepOutcome& outcome);
  bool may_be_lost() const;
  void go_back(MetricsPosition position, LoadReport& report);
  std::string client_state(const std::string& folder);
  void start_save(const std::string& folder, bool async);
  void completed();
  void wait();
  void record(const StepOutcome& outcome);
  void tell(const std::string& text, bool failed);

  Engine& engine_;
  RunOptions options_;
  std::string folder_;  ///< of the checkpoints
  std::unique_ptr<MetricsRecord> metrics_;
  std::vector<double> losses_;  ///< of the running step, by micro-batch
  std::int64_t steps_ = 0, skipped_steps_ = 0;
  bool due_ = false;
  int stop_signal_ = 0;
  bool diverged_ = false, time_is_up_ = false;
  int skipped_without_loss_ = 0;  ///< in a row
  std::string last_, last_complete_;
  MetricsPosition position_;  ///< of the record, as known last
  std::int64_t saved_step_ = 0;
  std::int64_t saved_at_ns_;
  std::int64_t made_at_ns_;
};

}  // namespace zero
