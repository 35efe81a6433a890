#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "io/file_system.h"
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

fs::path checkpoints_of(const std::string& folder) { return fs::path(folder) / "checkpoints"; }
/// Says which checkpoint was completed last: that there was one is known although somebody has removed it.
fs::path mark_of(const std::string& folder) { return fs::path(folder) / "last_checkpoint"; }

std::string read_mark(const std::string& folder) {
  auto& files = io::system_files();
  const std::string path = mark_of(folder).string();
  return files.kind(path) == io::FileKind::kFile ? io::read_text(files, path, 4096) : "";
}

/// Of the last whole line that tells a step; 0: none does.
std::int64_t last_step_of(const fs::path& metrics) {
  constexpr std::uint64_t kMost = 64 << 10;
  auto& files = io::system_files();
  if (files.kind(metrics.string()) != io::FileKind::kFile) return 0;
  const auto file = files.open(metrics.string());
  const std::uint64_t nbytes = file->size(), read = std::min(nbytes, kMost);
  std::string end(read, '\0');
  file->read(nbytes - read, std::as_writable_bytes(std::span(end)));
  file->drain();
  while (!end.empty()) {
    const std::size_t begin = end.find_last_of('\n', end.size() - 1);
    const auto json = nlohmann::json::parse(end.substr(begin == std::string::npos ? 0 : begin + 1), nullptr,
                                            /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) return json["step"];
    end.resize(begin == std::string::npos ? 0 : begin);
  }
  return 0;
}

/// Where restart() moves what there was.
fs::path fresh_folder_for_old(const std::string& folder) {
  for (int i = 1;; ++i) {
    const fs::path path = fs::path(folder) / fmt::format("before.{}", i);
    if (!fs::exists(path)) return path;
  }
}

nlohmann::json parse_client_state(const LoadReport& report) {
  const auto state = nlohmann::json::parse(report.client_state, nullptr, /*allow_exceptions=*/false);
  if (state.is_object() && state.contains(kProgram) && state.contains(kMetrics)) return state;
  throw CheckpointError(fmt::format(
      "'{}' was not saved by a training run: it says nothing of metrics; load it with Engine::load_checkpoint",
      report.folder));
}

/// Of the record: where the last whole line ends.
std::int64_t end_of_last_line(const std::string& folder) {
  const std::string text =
      io::read_text(io::system_files(), (fs::path(folder) / "metrics.jsonl").string(), std::uint64_t{1} << 40);
  return static_cast<std::int64_t>(text.rfind('\n') + 1);  // 0 where there is none
}

}  // namespace

FoundRun find_run(const std::string& folder) {
  FoundRun found;
  found.recorded_steps = last_step_of(fs::path(folder) / "metrics.jsonl");
  const std::string checkpoints = checkpoints_of(folder).string();
  const bool is_there = fs::exists(checkpoints);
  if (is_there) found.checkpoints = checkpoint::list(checkpoints);
  const std::string latest = is_there ? checkpoint::latest(checkpoints) : "";
  const std::string mark = read_mark(folder);
  const auto has = [&](const std::string& tag) {
    return std::any_of(found.checkpoints.begin(), found.checkpoints.end(),
                       [&](const auto& one) { return one.tag == tag; });
  };
  std::string problems;
  for (const auto& one : found.checkpoints) {
    if (one.complete) continue;
    found.notices.push_back(fmt::format("checkpoint '{}' is left out: {}", one.tag, one.problem));
    problems += fmt::format("{}'{}': {}", problems.empty() ? "" : "; ", one.tag, one.problem);
  }
  if (!found.checkpoints.empty() && found.notices.size() == found.checkpoints.size()) {
    found.problem = fmt::format(
        "none of the checkpoints in '{}' can be loaded ({}); bring back what is missing or use the zerotorch that "
        "wrote them, or start the run over",
        checkpoints, problems);
  } else if (found.checkpoints.empty() && !mark.empty()) {
    found.problem = fmt::format(
        "the run in '{}' has written checkpoints (the last one was '{}') and '{}' holds none of them any more; bring "
        "one back, or start the run over",
        folder, mark, checkpoints);
  } else if (latest.empty() && is_there && fs::exists(fs::path(checkpoints) / "latest")) {
    found.problem = fmt::format(
        "'{}/latest' is no name of a checkpoint; write the tag of the one to go on from into it, or remove "
        "it",
        checkpoints);
  } else if (!mark.empty() && !has(mark) && latest.empty()) {
    found.problem = fmt::format(
        "the last checkpoint of '{}' was '{}', which is not there; bring it back or write the tag of another one into "
        "'{}/latest', or start the run over",
        folder, mark, checkpoints);
  } else if (!latest.empty() && !has(latest)) {
    found.problem = fmt::format(
        "the latest checkpoint of '{}' is '{}', which is not there; bring it back or write the tag of another one into "
        "'{}/latest', or start the run over",
        folder, latest, checkpoints);
  }
  return found;
}

namespace {

/// Where ranks are on several hosts and see different folders of one name, the first checkpoint would be the first to
/// fail. Rank 0 has made the folder. *Collective.*
void check_all_see(Group group, const std::string& folder) {
  if (group.single_node()) return;
  const std::string name = from_rank_0(group, [&] {
    const fs::path file = fs::path(folder) / fmt::format(".seen_by_all_{:08x}", std::random_device()());
    io::write_text(io::system_files(), file.string(), "");
    return file.filename().string();
  });
  const fs::path file = fs::path(folder) / name;
  std::error_code error;
  constexpr int kAttempts = 20;  // a network's file system may take a moment
  double sees = 0;
  for (int attempt = 0; attempt < kAttempts && sees == 0; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    sees = fs::exists(file, error) ? 1 : 0;
  }
  const std::vector<double> all = gather_values(group, {&sees, 1}, "run folder");
  if (group.rank() == 0) fs::remove(file, error);
  std::vector<std::size_t> blind;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == 0) blind.push_back(rank);
  if (blind.empty()) return;
  throw IoError(fmt::format(
      "the run's folder '{}' is another one on other hosts: rank{} {} do{} not see what rank 0 has written "
      "there. Put it where all hosts see the same (NFS, Lustre, ...); `zero doctor --hosts FILE --run-dir DIR` "
      "tries a folder",
      folder, blind.size() == 1 ? "" : "s", fmt::join(blind, ", "), blind.size() == 1 ? "es" : ""));
}

}  // namespace

TrainingRun::TrainingRun(Engine& engine, RunOptions options)
    : engine_(engine),
      options_(std::move(options)),
      folder_(checkpoints_of(options_.folder).string()),
      steps_(engine.global_steps()),
      skipped_steps_(engine.skipped_steps()),
      saved_at_ns_(base::monotonic_ns()),
      made_at_ns_(saved_at_ns_) {
  if (!std::isfinite(options_.max_minutes) || options_.max_minutes < 0)
    throw ConfigError(fmt::format("RunOptions::max_minutes: got {:g}, want 0 or more", options_.max_minutes));
  from_rank_0(engine.all_ranks(), [&] {
    if (options_.folder.empty()) throw ConfigError("RunOptions::folder: want the folder of the run");
    std::error_code error;
    fs::create_directories(options_.folder, error);
    if (error) throw IoError(fmt::format("{}: cannot make the run's folder: {}", options_.folder, error.message()));
    metrics_ = std::make_unique<MetricsRecord>(options_.folder, options_.tensorboard_folder);
    return std::string();
  });
  check_all_see(engine.all_ranks(), options_.folder);
}

TrainingRun::~TrainingRun() = default;

LoadReport TrainingRun::resume() {
  // Rank 0 looks, or ranks of other hosts might see another state of the folder.
  const auto notices = nlohmann::json::parse(from_rank_0(engine_.all_ranks(), [&] {
    const FoundRun found = find_run(options_.folder);
    if (!found.problem.empty()) throw CheckpointError(found.problem);
    if (found.is_fresh()) return std::string("null");
    return nlohmann::json(found.notices).dump();
  }));
  if (notices.is_null()) {
    from_rank_0(engine_.all_ranks(), [&] {
      metrics_->start_over(fresh_folder_for_old(options_.folder).string());
      return std::string();
    });
    return {};
  }
  LoadReport report = engine_.load_checkpoint(folder_, "", {.fall_back = true});
  for (const std::string notice : notices) {
    tell(notice, /*failed=*/true);
    report.notices.push_back(notice);
  }
  const nlohmann::json state = parse_client_state(report);
  if (metrics_) go_back(metrics_position(state.at(kMetrics)), report);
  report.client_state = state.at(kProgram).dump();
  last_ = last_complete_ = report.folder;
  saved_step_ = steps_ = engine_.global_steps();
  skipped_steps_ = engine_.skipped_steps();
  saved_at_ns_ = base::monotonic_ns();
  return report;
}

/// The record as the checkpoint knows it. One that has lost lines goes on where it ends.
void TrainingRun::go_back(MetricsPosition position, LoadReport& report) {
  const std::int64_t there = metrics_->sync().lines_nbytes;
  if (there < position.lines_nbytes) {
    const std::int64_t wanted = std::exchange(position.lines_nbytes, end_of_last_line(options_.folder));
    report.notices.push_back(
        fmt::format("metrics.jsonl has {} of the {} bytes that it had at this checkpoint; it goes on "
                    "from where it ends{}",
                    there, wanted, position.lines_nbytes < there ? ", without its last line, which has no end" : ""));
    tell(report.notices.back(), /*failed=*/true);
  }
  metrics_->go_back_to(position);
  position_ = position;
}

std::string TrainingRun::restart() {
  return from_rank_0(engine_.all_ranks(), [&] {
    const fs::path kept = fresh_folder_for_old(options_.folder);
    metrics_->start_over(kept.string());
    if (fs::exists(folder_)) {
      fs::create_directories(kept);
      fs::rename(folder_, kept / "checkpoints");
    }
    if (const fs::path mark = mark_of(options_.folder); fs::exists(mark)) {
      fs::create_directories(kept);
      fs::rename(mark, kept / mark.filename());
    }
    return fs::exists(kept) ? kept.string() : std::string();
  });
}

std::optional<StepOutcome> TrainingRun::after_step(double loss) {
  losses_.push_back(loss);
  if (engine_.global_steps() == steps_) return std::nullopt;
  const train::Agreement agreed =
      train::agree(engine_.all_ranks(), std::exchange(losses_, {}),
                   {.stop_signal = received_stop_signal(),
                    .is_due = is_over(engine_.config().zerotorch.checkpoint.every_minutes, saved_at_ns_),
                    .time_is_up = is_over(options_.max_minutes, made_at_ns_)},
                   {engine_.rank(), engine_.model_parallel_rank()});
  steps_ = engine_.global_steps();
  due_ = agreed.is_due || due_by_steps();
  time_is_up_ = time_is_up_ || agreed.time_is_up;
  if (stop_signal_ == 0) stop_signal_ = agreed.stop_signal;
  const bool skipped = engine_.skipped_steps() > std::exchange(skipped_steps_, engine_.skipped_steps());
  const StepOutcome outcome{steps_, agreed.loss, skipped};
  if (metrics_ && options_.step_metrics) record(outcome);
  look_at_loss(outcome);
  return outcome;
}

void TrainingRun::look_at_loss(const StepOutcome& outcome) {
  // A batch that is not usable is skipped, and the next one may be.
  constexpr int kMostSkipped = 8;
  // What was updated by a gradient that is no number is none, however good the loss was before.
  const bool is_number = std::isfinite(outcome.loss) && (outcome.skipped || std::isfinite(engine_.grad_norm()));
  skipped_without_loss_ = is_number || !outcome.skipped ? 0 : skipped_without_loss_ + 1;
  if (is_number || (outcome.skipped && skipped_without_loss_ < kMostSkipped)) return;
  if (diverged_ || !options_.stop_when_diverged) return;
  diverged_ = true;
  const bool by_loss = !std::isfinite(outcome.loss);
  tell(fmt::format("{} is {}: the run has diverged and stops; {}. A smaller learning rate, a longer warm-up or "
                   "gradient clipping may help",
                   by_loss ? "the loss" : "the norm of the gradient", by_loss ? outcome.loss : engine_.grad_norm(),
                   last_.empty() ? "there is no checkpoint" : "its last checkpoint is of before"),
       /*failed=*/true);
}

void TrainingRun::record(const StepOutcome& outcome) {
  nlohmann::ordered_json line = {{"step", outcome.step}, {"loss", outcome.loss}, {"grad_norm", engine_.grad_norm()}};
  if (outcome.skipped) line["skipped"] = true;
  metrics_->add_line(line.dump());
  metrics_->add_events(outcome.step, {{"train/loss", outcome.loss}, {"train/grad_norm", engine_.grad_norm()}});
}

bool TrainingRun::agree_on_stop() {
  if (stop_signal_ == 0) stop_signal_ = agreed_stop_signal(engine_.all_ranks());
  return should_stop();
}

/// `minutes` 0: never.
bool TrainingRun::is_over(double minutes, std::int64_t since_ns) const {
  const auto passed = static_cast<double>(base::monotonic_ns() - since_ns);
  return minutes > 0 && passed >= 60 * minutes * static_cast<double>(base::kNanosPerSecond);
}

bool TrainingRun::due_by_steps() const {
  const std::int64_t every = engine_.config().zerotorch.checkpoint.every_steps;
  return every > 0 && steps_ % every == 0;
}

/// The last losses were no numbers: what the parameters are worth is not known yet.
bool TrainingRun::may_be_lost() const {
  return diverged_ || (options_.stop_when_diverged && skipped_without_loss_ > 0);
}

/// On rank 0. `folder`: of checkpoints, maybe not the run's; then the record goes there, too.
std::string TrainingRun::client_state(const std::string& folder) {
  nlohmann::json client = nlohmann::json::object();
  client[kProgram] = nlohmann::json::object();
  if (options_.state) {
    client[kProgram] = nlohmann::json::parse(options_.state(), nullptr, /*allow_exceptions=*/false);
    if (client[kProgram].is_discarded()) throw ConfigError("RunOptions::state: want JSON, got something else");
  }
  // Durable before the checkpoint that refers to them is.
  if (folder == folder_) {
    position_ = metrics_->sync();
  } else {
    fs::create_directories(folder);
    position_ = metrics_->copy_to((fs::path(folder) / "metrics.jsonl").string());
  }
  client[kMetrics] = to_json(position_);
  return client.dump();
}

void TrainingRun::start_save(const std::string& folder, bool async) {
  const std::string tag = fmt::format("global_step{}", engine_.global_steps());
  const SaveOptions options{.async = async,
                            .keep_last = static_cast<int>(engine_.config().zerotorch.checkpoint.keep_last)};
  saved_at_ns_ = base::monotonic_ns();
  std::string state;
  try {
    state = from_rank_0(engine_.all_ranks(), [&] { return client_state(folder); });
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.what());  // on every rank
  }
  engine_.save_checkpoint(folder, tag, state, options);
  saved_step_ = engine_.global_steps();
  last_ = (fs::path(folder) / tag).string();
  if (!async) completed();
}

void TrainingRun::save_if_due() {
  if (std::exchange(due_, false)) save();
}

void TrainingRun::save() {
  if (saved_step_ == engine_.global_steps() || may_be_lost()) return;
  const bool async = engine_.config().zerotorch.checkpoint.async;
  wait();
  try {
    start_save(folder_, async);
    tell(fmt::format("checkpoint {}", async ? "under way" : "written"), /*failed=*/false);
  } catch (const CheckpointError& error) {
    tell(fmt::format("no checkpoint: {}", error.what()), /*failed=*/true);
  }
}

void TrainingRun::finish() { finish_in(folder_); }

void TrainingRun::finish_in(const std::string& folder) {
  wait();
  if (may_be_lost()) diverged_ = true;
  if (engine_.global_steps() == 0 || saved_step_ == engine_.global_steps() || diverged_) return;
  start_save(folder, /*async=*/false);
}

/// The checkpoint `last_` is whole.
void TrainingRun::completed() {
  if (std::exchange(last_complete_, last_) == last_ || !metrics_ || !last_.starts_with(folder_)) return;
  try {
    replace_text(mark_of(options_.folder).string(), fs::path(last_).filename().string());
  } catch (const IoError& error) {  // it only says what the folder of checkpoints says, too
    base::log_warning("{}", error.what());
  }
}

/// An earlier save that failed is no reason to leave out the next one.
void TrainingRun::wait() {
  try {
    engine_.wait_checkpoint();
    completed();
  } catch (const CheckpointError& error) {
    last_ = last_complete_;
    saved_step_ = -1;
    tell(fmt::format("no checkpoint: {}", error.what()), /*failed=*/true);
  }
}

void TrainingRun::tell(const std::string& text, bool failed) {
  if (engine_.all_ranks().rank() != 0) return;
  if (options_.notice) {
    options_.notice({text, failed});
  } else if (failed) {
    base::log_warning("step {}: {}", engine_.global_steps(), text);
  } else {
    base::log_info("step {}: {}", engine_.global_steps(), text);
  }
}

}  // namespace zero
