#pragma once
// The checkpoints of a run: when they are due, what they hold besides the engine's, and going on from one.
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "progress.h"
#include "recorder.h"
#include "train_plan.h"
#include "zero/engine.h"

namespace zero::app {

class RunCheckpoints {
 public:
  /// All of it must outlive this; `recorder` is null on ranks other than 0.
  RunCheckpoints(const TrainPlan& plan, Engine& engine, const Console& console, Progress& progress,
                 Recorder* recorder);

  /// Brings engine and record back to the newest checkpoint, or a damaged one's predecessor, and returns what
  /// save() was given with it; an empty object when the run has none yet. *Collective.* Throws
  /// CheckpointError, IoError.
  nlohmann::json load();

  /// By time: whether this rank's clock says so.
  bool due_by_time() const;
  bool due_by_steps(std::int64_t steps_done) const;

  /// A periodic one; one that fails is reported and training goes on. *Collective.*
  void save(std::int64_t steps_done, const nlohmann::json& state);
  /// The last one, complete when this returns; none when the last step has one. *Collective.* Throws
  /// CheckpointError.
  void save_last(std::int64_t steps_done, const nlohmann::json& state);

  /// Folder of the last checkpoint, perhaps still under way; empty: none.
  const std::string& last() const { return last_; }

 private:
  std::string tag_of(std::int64_t steps_done) const;
  void start_save(std::int64_t steps_done, const nlohmann::json& state, bool async);
  void wait(std::int64_t steps_done);
  void note(std::int64_t steps_done, const std::string& text);

  const TrainPlan& plan_;
  Engine& engine_;
  const Console& console_;
  Progress& progress_;
  Recorder* recorder_;
  std::string folder_;
  std::string last_, last_complete_;
  std::int64_t saved_step_ = 0;
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
};

}  // namespace zero::app
