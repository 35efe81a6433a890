#include "run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "text_format.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

constexpr const char* kRun = "run";
constexpr const char* kRecord = "record";

nlohmann::json to_json(const RecordPosition& position) {
  return {{"metrics_nbytes", position.metrics_nbytes},
          {"events_file", position.events_file},
          {"events_nbytes", position.events_nbytes}};
}

RecordPosition record_position(const nlohmann::json& json) {
  return {json.at("metrics_nbytes"), json.at("events_file"), json.at("events_nbytes")};
}

bool has_checkpoint(const std::string& folder) {
  if (!std::filesystem::exists(folder)) return false;
  const auto there = checkpoint::list(folder);
  return std::any_of(there.begin(), there.end(), [](const auto& one) { return one.complete; });
}

}  // namespace

RunCheckpoints::RunCheckpoints(const TrainPlan& plan, Engine& engine, const Console& console,
                               Progress& progress, Recorder* recorder)
    : plan_(plan),
      engine_(engine),
      console_(console),
      progress_(progress),
      recorder_(recorder),
      folder_((std::filesystem::path(plan.run_folder) / "checkpoints").string()) {}

std::string RunCheckpoints::tag_of(std::int64_t steps_done) const {
  return fmt::format("global_step{}", steps_done);
}

nlohmann::json RunCheckpoints::load() {
  // The same answer on every rank: the folder is there before any rank starts, or not at all.
  if (!has_checkpoint(folder_)) {
    console_.print("resume     no checkpoint yet: from the beginning\n\n");
    if (recorder_) recorder_->start_over();
    return nlohmann::json::object();
  }
  LoadOptions options;
  options.fall_back = true;
  const LoadReport report = engine_.load_checkpoint(folder_, "", options);
  const auto state = nlohmann::json::parse(report.client_state, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object() || !state.contains(kRun) || !state.contains(kRecord)) {
    throw CheckpointError(fmt::format("'{}' was not written by zero train", report.folder));
  }
  if (recorder_) recorder_->go_back_to(record_position(state.at(kRecord)));
  last_ = report.folder;
  saved_step_ = report.global_steps;
  saved_at_ = std::chrono::steady_clock::now();
  console_.print(
      fmt::format("resume     from {} after {} steps\n\n", short_path(report.folder), report.global_steps));
  return state.at(kRun);
}

bool RunCheckpoints::due_by_time() const {
  const double minutes = engine_.config().zerotorch.checkpoint.every_minutes;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - saved_at_;
  return minutes > 0 && passed.count() >= 60 * minutes;
}

bool RunCheckpoints::due_by_steps(std::int64_t steps_done) const {
  const std::int64_t every = engine_.config().zerotorch.checkpoint.every_steps;
  return every > 0 && steps_done % every == 0;
}

void RunCheckpoints::start_save(std::int64_t steps_done, const nlohmann::json& state, bool async) {
  SaveOptions options;
  options.async = async;
  options.keep_last = static_cast<int>(engine_.config().zerotorch.checkpoint.keep_last);
  nlohmann::json client = {{kRun, state}};
  // Durable before the checkpoint that refers to them is.
  if (recorder_) client[kRecord] = to_json(recorder_->sync());
  saved_at_ = std::chrono::steady_clock::now();
  engine_.save_checkpoint(folder_, tag_of(steps_done), client.dump(), options);
  saved_step_ = steps_done;
  last_ = (std::filesystem::path(folder_) / tag_of(steps_done)).string();
}

void RunCheckpoints::note(std::int64_t steps_done, const std::string& text) {
  if (!console_.enabled()) return;
  progress_.note(
      fmt::format("step {:>{}}/{}  {}", steps_done, std::to_string(plan_.steps).size(), plan_.steps, text));
}

void RunCheckpoints::save(std::int64_t steps_done, const nlohmann::json& state) {
  if (saved_step_ == steps_done) return;
  const bool async = engine_.config().zerotorch.checkpoint.async;
  wait(steps_done);
  try {
    start_save(steps_done, state, async);
    note(steps_done, fmt::format("checkpoint {}", async ? "under way" : "written"));
  } catch (const CheckpointError& error) {
    note(steps_done, fmt::format("no checkpoint: {}", error.what()));
  }
}

void RunCheckpoints::save_last(std::int64_t steps_done, const nlohmann::json& state) {
  if (console_.enabled()) progress_.busy("writing a checkpoint ...");
  wait(steps_done);
  if (saved_step_ != steps_done) start_save(steps_done, state, /*async=*/false);
}

/// An earlier save that failed is no reason to leave out the next one.
void RunCheckpoints::wait(std::int64_t steps_done) {
  try {
    engine_.wait_checkpoint();
    last_complete_ = last_;
  } catch (const CheckpointError& error) {
    last_ = last_complete_;
    saved_step_ = -1;
    note(steps_done, fmt::format("no checkpoint: {}", error.what()));
  }
}

}  // namespace zero::app
