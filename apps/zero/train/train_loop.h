#pragma once
// The steps of a run, with validation in between.
#include <chrono>
#include <functional>
#include <optional>

#include "host/rank_totals.h"
#include "model/language_model.h"
#include "text/progress.h"
#include "train/report_tables.h"
#include "train/train_plan.h"
#include "zero/engine.h"
#include "zero/lm/validation.h"
#include "zero/train.h"

namespace zero::app {

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  /// Seconds since the start or the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(lap_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point lap_ = start_;
};

/// Of the sample at the end; `zero generate` has any.
inline constexpr double kSampleTemperature = 0.8;
inline constexpr std::int64_t kSampleTopK = 40;

struct Sample {
  std::string prompt, text;
};

class TrainLoop {
 public:
  /// Everything referred to must outlive the loop. *Collective.* Throws ConfigError when the text is too small or
  /// another process is writing this run.
  TrainLoop(const TrainPlan& plan, LanguageModel& model, Engine& engine, const Console& console, Progress& progress);

  /// Validates, trains all steps with validations and checkpoints in between, validates, writes the last
  /// checkpoint. A plan that resumes goes on from the newest one; `begins` is called on rank 0 when that is
  /// loaded. Ends early, with a checkpoint, when any rank got a stop signal. *Collective.*
  void run(const std::function<void()>& begins);

  /// Continues the plan's prompt, or where tokens are not bytes the beginning of the validation split; no text when a
  /// stop signal came first. Every rank generates the same, since a forward may be collective. *Collective.*
  Sample sample();

  /// What is known of the run so far.
  RunResult result() const;
  /// Of this rank.
  const StepTotals& totals() const { return totals_; }

 private:
  struct Stopped {};
  StepOutcome train_step();
  /// Forward and backward of the next micro-batch; its loss.
  /// Targets in the optimizer step of this rank's micro-batch `micro_step`, by micro-batch on average: every target of
  /// the step counts the same.
  double targets_of_a_micro_batch(std::int64_t micro_step);
  double micro_batch();
  /// Throws Stopped on all ranks when one of them is to stop. *Collective.*
  void check_stop();
  void one_step();
  RunOptions run_options();
  void report(const StepOutcome& outcome, double lr, double seconds);
  /// The batch size, in sequences, at which noise and signal of gradients are as large; nullopt: not known (yet).
  std::optional<double> noise_scale();
  /// Throws ConfigError where it means nothing.
  void measure_noise();
  /// A line about the step that is done.
  void note(const std::string& text);
  /// What must be heard also by who wants to hear nothing.
  void say_of_loading(const std::string& text);
  void warn(const std::string& text);
  LoadReport load();
  void resume();
  void restart();
  void train();
  /// The last checkpoint; where the run's folder cannot take it, once there is room.
  /// What could not be done is in the result. *Collective.*
  void save_last();
  bool save_when_there_is_room(const std::string& problem);
  /// What a run needs to go on besides the engine's part.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);
  void validate();
  /// Keeps account of the best validation. *Collective.*
  void look_at_validation(double nats);
  /// The checkpoint of the best validation in place of the one before. *Collective.*
  void save_best();
  bool validation_due() const;
  double seconds_left() const;

  const TrainPlan& plan_;
  LanguageModel& model_;
  Engine& engine_;
  Console console_;
  Progress& progress_;
  bool is_loading_ = false;  ///< a checkpoint, before the first step
  SequenceSampler sampler_;
  Validation validation_;
  at::Tensor tokens_;               ///< [micro-batch, seq + 1]
  at::Tensor targets_;              ///< [micro-batch, seq], where tokens have context; else undefined
  std::int64_t counted_from_ = -1;  ///< first micro-batch of the step whose targets were counted last
  double counted_targets_ = 0;      ///< there, as targets_of_a_micro_batch()
  StepTotals totals_;
  RunResult result_;
  RecentMean loss_, step_seconds_;
  RecentMean noise_{0.99}, signal_{0.99};  ///< GradientNoise's
  double validation_seconds_ = 0;
  TrainingRun run_;
};

}  // namespace zero::app
