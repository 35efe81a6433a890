#pragma once
// A run: what a training program does around its steps. Process set-up, checkpoints when they are due, going on from
// one, stop signals, metrics, and whether it all fits.
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
  /// SIGINT, SIGTERM and SIGHUP are kept for received_stop_signal(); the second one ends the process at once. So is
  /// SIGPIPE (nobody reads what is printed) where it would end the process.
  bool watch_stop_signals = true;
  /// Rank 0 says on standard error, at the first stop signal, that a checkpoint follows.
  bool announce_stop = true;
  /// Log lines of the library below warnings are left out, unless ZERO_LOG_LEVEL says otherwise.
  bool quiet = false;
};

/// Prepares this process for a rank of a run; call before the model is built. Pins it to its share of the host's cores
/// where `zerotorch.bind_cores_to_rank` says so; gives every rank the same number of compute threads (OMP_NUM_THREADS,
/// else the cores of the smallest share), or kernels of two ranks may round differently; tells glibc to keep freed
/// memory, as fresh pages cost more than a warm copy; seeds libtorch's generator with `zerotorch.seed` where that is
/// given. Process-wide. *Collective.* Throws CommError.
void set_up_process(Group group, const Config& config, const ProcessOptions& options = {});

/// The first SIGINT, SIGTERM, SIGHUP or SIGPIPE that arrived since set_up_process(), 0 for none. Local, any thread.
int received_stop_signal();
/// Seconds since it arrived; 0 when none did. Local.
double seconds_since_stop_signal();
/// "SIGINT" and so on.
const char* stop_signal_name(int signal);

// ---- What ranks tell each other ----

/// Every rank's `mine`, one after the other, in rank order. The same length on every rank. *Collective.*
std::vector<double> gather_values(Group group, std::span<const double> mine, std::string_view label);

/// The mean over all ranks of the losses of their micro-batches, summed in the order of the global micro-batches, so
/// that it does not depend on the number of ranks. As many on every rank. *Collective.*
double mean_loss(Group group, std::span<const double> losses);

/// The stop signal of the lowest rank that got one, 0 for none. *Collective.*
int agreed_stop_signal(Group group);

/// Calls `make` on rank 0 and returns its text on every rank. What it throws on rank 0 is thrown there, and on the
/// others with the same text: as ConfigError when it is one, else as Error. *Collective.*
std::string from_rank_0(Group group, const std::function<std::string()>& make);

// ---- Metrics ----

/// Writes a file anew; a crash leaves the old or the new one. Local. Throws IoError.
void replace_text(const std::string& path, std::string_view text);

/// Where a record stands, for a checkpoint.
struct MetricsPosition {
  std::int64_t lines_nbytes = 0;
  std::string events_file;  ///< its name; empty: none
  std::int64_t events_nbytes = 0;
};

/// The metrics of a run: `metrics.jsonl`, a JSON object per line, and event files for TensorBoard. Can be cut back to
/// what a checkpoint knows, so that no step is in there twice. One process at a time, which holds the run's lock
/// meanwhile. A disk that is full stops no training: lines wait in memory until there is room. All other members throw
/// IoError.
class MetricsRecord {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  /// Goes on at the end of `folder`/metrics.jsonl; the folder must be there. `tensorboard_folder` empty: no event
  /// files; they begin with the first event. Throws ConfigError when another process is writing there.
  MetricsRecord(const std::string& folder, const std::string& tensorboard_folder = {});
  ~MetricsRecord();

  /// `json` is a JSON object without line ends; handed to the system when this returns, unless the disk does not take
  /// it: that is said once, in the log, and it is tried again with the next line.
  void add_line(std::string_view json);
  /// One point per name at `step`. When the disk does not take it that is said, and none are written any more.
  void add_events(std::int64_t step, const Scalars& scalars);

  /// Makes all of it durable and says where it ends.
  MetricsPosition sync();
  /// Forgets what came after `position`. Before the first event.
  void go_back_to(const MetricsPosition& position);
  /// Begins anew; what there was is moved into `kept`, event files only where their folder is below the run's. Before
  /// the first event.
  void start_over(const std::string& kept);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- The run ----

/// What lies in the folder of a run.
struct FoundRun {
  std::int64_t recorded_steps = 0;  ///< the largest `step` of metrics.jsonl
  std::vector<checkpoint::Summary> checkpoints;
  /// What is missing that a run which goes on needs, and what can be done; empty: nothing.
  std::string problem;
  /// Checkpoints that are there and cannot be loaded, a line each, where others can.
  std::vector<std::string> notices;
  /// No checkpoint was ever completed here.
  bool is_fresh() const { return checkpoints.empty() && problem.empty(); }
};
/// Looks without changing anything. Local. Throws IoError.
FoundRun find_run(const std::string& folder);

struct RunOptions {
  /// The run's folder, the same for every rank, made when it is not there: `checkpoints` and `metrics.jsonl`.
  std::string folder;
  /// For event files; empty: none.
  std::string tensorboard_folder = {};
  /// after_step() writes a line of step, loss and gradient norm to metrics(); false: the program writes its own.
  bool step_metrics = true;
  /// JSON that goes into every checkpoint and comes back from resume(). Called on rank 0.
  std::function<std::string()> state = {};
  /// A loss that is not a number ends the run (TrainingRun::diverged). False: it goes on, and saves.
  bool stop_when_diverged = true;
  /// Told on rank 0 what became of checkpoints; not given: log lines.
  std::function<void(const std::string&)> notice = {};
};

/// What all ranks know after a step.
struct StepOutcome {
  std::int64_t step = 0;  ///< counted from 1
  double loss = 0;        ///< mean over the global batch
  bool skipped = false;   ///< the gradient was not finite, the parameters were not changed
};

/// The run of an engine. `zerotorch.checkpoint` of the engine's configuration (`every_steps`, `every_minutes`,
/// `keep_last`, `async`) says when checkpoints are due and how they are written. Every rank makes the same calls in the
/// same order, from the thread that uses the engine.
class TrainingRun {
 public:
  /// `engine` must outlive this and stay where it is. *Collective.* Throws ConfigError on every rank when another
  /// process is writing this run, Error or IoError when the folder cannot be made.
  TrainingRun(Engine& engine, RunOptions options);
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Call first: brings engine and metrics back to the newest checkpoint of the folder, or to the newest whole one
  /// where that is damaged. `client_state` of the report is what RunOptions::state gave, and `folder` is empty when
  /// no checkpoint was ever completed: then metrics begin anew. Where checkpoints were and cannot be loaded it throws
  /// CheckpointError and leaves everything as it is; restart() then starts over. *Collective.* Throws CheckpointError,
  /// IoError.
  LoadReport resume();

  /// Call first, in place of resume(): the run begins anew. Checkpoints and metrics that the folder has are moved into
  /// a new one in it, `before.1`, `before.2`, ..., whose path is returned; empty: there were none. *Collective.* Throws
  /// IoError.
  std::string restart();

  /// After every Engine::step(), with the loss of this rank's micro-batch. At the end of an optimizer step the ranks
  /// agree on the loss, on whether one of them got a stop signal, and on whether a checkpoint is due; nothing is
  /// returned inside an accumulation window. *Collective.*
  std::optional<StepOutcome> after_step(double loss);

  /// Writes a checkpoint when one is due and the last loss is a number: after after_step(), and after what
  /// the program does at that step (validation) and wants in it. One that fails is told of, and training goes
  /// on. *Collective.*
  void save_if_due();
  /// The same whether due or not; nothing when this step has one. *Collective.*
  void save();

  /// True on every rank once one got a stop signal, as agreed in after_step() or agree_on_stop(), or the run has
  /// diverged. Local.
  bool should_stop() const { return stop_signal_ != 0 || diverged_; }
  int stop_signal() const { return stop_signal_; }
  /// The loss of a step that was taken was not a number, or those of 8 steps in a row that were skipped, or of the last
  /// ones of the run: the parameters are none either, or soon. No checkpoint is written from then on, which would push
  /// out good ones. With RunOptions::stop_when_diverged. Local.
  bool diverged() const { return diverged_; }
  /// Asks the ranks now, for what lasts longer than a step. As should_stop(). *Collective.*
  bool agree_on_stop();

  /// The last checkpoint, complete when this returns; none before the first step, when this step has one, or when the
  /// run has diverged. *Collective.* Throws CheckpointError.
  void finish();
  /// As finish(), into another folder of checkpoints, where that of the run has no room. *Collective.* Throws
  /// CheckpointError.
  void finish_in(const std::string& folder);

  /// Folder of the last checkpoint, perhaps still under way; empty: none. Local.
  const std::string& last_checkpoint() const { return last_; }
  /// Null on ranks other than 0.
  MetricsRecord* metrics() { return metrics_.get(); }

 private:
  bool due_by_time() const;
  bool due_by_steps() const;
  void look_at_loss(const StepOutcome& outcome);
  bool may_be_lost() const;
  void go_back(MetricsPosition position, LoadReport& report);
  std::string client_state(bool whole_record);
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
  bool diverged_ = false;
  int skipped_without_loss_ = 0;  ///< in a row
  std::string last_, last_complete_;
  MetricsPosition position_;  ///< of the record, as known last
  std::int64_t saved_step_ = 0;
  std::int64_t saved_at_ns_;
};

}  // namespace zero
