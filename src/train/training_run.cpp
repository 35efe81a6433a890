#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "train/agreement.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

// Members of the client state of a checkpoint.
constexpr const char* kProgram = "run";
constexpr const char* kMetrics = "record";

nlohmann::json to_json(const MetricsPosition& position) {
  return {{"metrics_nbytes", position.lines_nbytes},
          {"events_file", position.events_file},
          {"events_nbytes", position.events_nbytes}};
}

MetricsPosition metrics_position(const nlohmann::json& json) {
  return {json.at("metrics_nbytes"), json.at("events_file"), json.at("events_nbytes")};
}

/// What resume() finds in a folder, as JSON: null when there is no checkpoint, else notices of those that cannot be
/// loaded. Throws CheckpointError when none can: starting over would overwrite them.
std::string look_at(const std::string& folder) {
  const auto there = fs::exists(folder) ? checkpoint::list(folder) : std::vector<checkpoint::Summary>();
  if (there.empty()) return "null";
  auto left_out = nlohmann::json::array();
  std::string problems;
  for (const auto& one : there) {
    if (one.complete) continue;
    left_out.push_back(fmt::format("checkpoint '{}' is left out: {}", one.tag, one.problem));
    problems += fmt::format("{}'{}': {}", problems.empty() ? "" : "; ", one.tag, one.problem);
  }
  if (left_out.size() < there.size()) return left_out.dump();
  throw CheckpointError(
      fmt::format("none of the checkpoints in '{}' can be loaded ({}); move that folder away to start over, or "
                  "use the zerotorch that wrote them",
                  folder, problems));
}

nlohmann::json parse_client_state(const LoadReport& report) {
  const auto state = nlohmann::json::parse(report.client_state, nullptr, /*allow_exceptions=*/false);
  if (state.is_object() && state.contains(kProgram) && state.contains(kMetrics)) return state;
  throw CheckpointError(fmt::format(
      "'{}' was not saved by a training run: it says nothing of metrics; load it with Engine::load_checkpoint",
      report.folder));
}

}  // namespace

TrainingRun::TrainingRun(Engine& engine, RunOptions options)
    : engine_(engine),
      options_(std::move(options)),
      folder_((fs::path(options_.folder) / "checkpoints").string()),
      steps_(engine.global_steps()),
      skipped_steps_(engine.skipped_steps()),
      saved_at_ns_(base::monotonic_ns()) {
  if (engine.model_parallel_size() > 1) {
    throw ConfigError(
        "a TrainingRun of an engine with model-parallel ranks is not built; call Engine::save_checkpoint and "
        "load_checkpoint");
  }
  from_rank_0(engine.group(), [&] {
    if (options_.folder.empty()) throw ConfigError("RunOptions::folder: want the folder of the run");
    std::error_code error;
    fs::create_directories(options_.folder, error);
    if (error) throw IoError(fmt::format("{}: cannot make the run's folder: {}", options_.folder, error.message()));
    metrics_ = std::make_unique<MetricsRecord>(options_.folder, options_.tensorboard_folder);
    return std::string();
  });
}

TrainingRun::~TrainingRun() = default;

LoadReport TrainingRun::resume() {
  // Rank 0 looks, or ranks of other hosts might see another state of the folder.
  const auto left_out = nlohmann::json::parse(from_rank_0(engine_.group(), [&] { return look_at(folder_); }));
  if (left_out.is_null()) {
    if (metrics_) metrics_->start_over();
    return {};
  }
  LoadReport report = engine_.load_checkpoint(folder_, "", {.fall_back = true});
  for (const std::string notice : left_out) {
    if (engine_.rank() == 0) tell(notice, /*failed=*/true);
    report.notices.push_back(notice);
  }
  const nlohmann::json state = parse_client_state(report);
  if (metrics_) metrics_->go_back_to(metrics_position(state.at(kMetrics)));
  report.client_state = state.at(kProgram).dump();
  last_ = last_complete_ = report.folder;
  saved_step_ = steps_ = engine_.global_steps();
  skipped_steps_ = engine_.skipped_steps();
  saved_at_ns_ = base::monotonic_ns();
  return report;
}

std::optional<StepOutcome> TrainingRun::after_step(double loss) {
  losses_.push_back(loss);
  if (engine_.global_steps() == steps_) return std::nullopt;
  const train::Agreement agreed =
      train::agree(engine_.group(), std::exchange(losses_, {}), received_stop_signal(), due_by_time());
  steps_ = engine_.global_steps();
  due_ = agreed.due || due_by_steps();
  if (stop_signal_ == 0) stop_signal_ = agreed.stop_signal;
  const bool skipped = engine_.skipped_steps() > std::exchange(skipped_steps_, engine_.skipped_steps());
  const StepOutcome outcome{steps_, agreed.loss, skipped};
  if (metrics_ && options_.step_metrics) record(outcome);
  return outcome;
}

void TrainingRun::record(const StepOutcome& outcome) {
  nlohmann::ordered_json line = {
      {"step", outcome.step}, {"loss", outcome.loss}, {"grad_norm", engine_.grad_norm()}};
  if (outcome.skipped) line["skipped"] = true;
  metrics_->add_line(line.dump());
  metrics_->add_events(outcome.step, {{"train/loss", outcome.loss}, {"train/grad_norm", engine_.grad_norm()}});
}

bool TrainingRun::agree_on_stop() {
  if (stop_signal_ == 0) stop_signal_ = agreed_stop_signal(engine_.group());
  return should_stop();
}

bool TrainingRun::due_by_time() const {
  const double minutes = engine_.config().zerotorch.checkpoint.every_minutes;
  const auto passed = static_cast<double>(base::monotonic_ns() - saved_at_ns_);
  return minutes > 0 && passed >= 60 * minutes * static_cast<double>(base::kNanosPerSecond);
}

bool TrainingRun::due_by_steps() const {
  const std::int64_t every = engine_.config().zerotorch.checkpoint.every_steps;
  return every > 0 && steps_ % every == 0;
}

/// On rank 0.
std::string TrainingRun::client_state() {
  nlohmann::json client = nlohmann::json::object();
  client[kProgram] = nlohmann::json::object();
  if (options_.state) {
    client[kProgram] = nlohmann::json::parse(options_.state(), nullptr, /*allow_exceptions=*/false);
    if (client[kProgram].is_discarded()) throw ConfigError("RunOptions::state: want JSON, got something else");
  }
  // Durable before the checkpoint that refers to them is.
  client[kMetrics] = to_json(metrics_->sync());
  return client.dump();
}

void TrainingRun::start_save(bool async) {
  const std::string tag = fmt::format("global_step{}", engine_.global_steps());
  const SaveOptions options{.async = async,
                            .keep_last = static_cast<int>(engine_.config().zerotorch.checkpoint.keep_last)};
  saved_at_ns_ = base::monotonic_ns();
  const std::string state = from_rank_0(engine_.group(), [&] { return client_state(); });
  engine_.save_checkpoint(folder_, tag, state, options);
  saved_step_ = engine_.global_steps();
  last_ = (fs::path(folder_) / tag).string();
}

void TrainingRun::save_if_due() {
  if (std::exchange(due_, false)) save();
}

void TrainingRun::save() {
  if (saved_step_ == engine_.global_steps()) return;
  const bool async = engine_.config().zerotorch.checkpoint.async;
  wait();
  try {
    start_save(async);
    tell(fmt::format("checkpoint {}", async ? "under way" : "written"), /*failed=*/false);
  } catch (const CheckpointError& error) {
    tell(fmt::format("no checkpoint: {}", error.what()), /*failed=*/true);
  }
}

void TrainingRun::finish() {
  wait();
  if (engine_.global_steps() > 0 && saved_step_ != engine_.global_steps()) start_save(/*async=*/false);
}

/// An earlier save that failed is no reason to leave out the next one.
void TrainingRun::wait() {
  try {
    engine_.wait_checkpoint();
    last_complete_ = last_;
  } catch (const CheckpointError& error) {
    last_ = last_complete_;
    saved_step_ = -1;
    tell(fmt::format("no checkpoint: {}", error.what()), /*failed=*/true);
  }
}

void TrainingRun::tell(const std::string& text, bool failed) {
  if (engine_.rank() != 0) return;
  if (options_.notice) {
    options_.notice(text);
  } else if (failed) {
    base::log_warning("step {}: {}", engine_.global_steps(), text);
  } else {
    base::log_info("step {}: {}", engine_.global_steps(), text);
  }
}

}  // namespace zero
