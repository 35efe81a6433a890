#include "runs/run_folder.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "text/text_format.h"
#include "zero/errors.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
constexpr const char* kMetrics = "metrics.jsonl";

std::string local_date_time() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  ::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts);
  return text;
}

}  // namespace

fs::path fresh_path(const fs::path& parent, const std::string& name) {
  const fs::path base = parent / fmt::format("{}-{}", local_date_time(), name);
  fs::path path = base;
  for (int i = 2; fs::exists(path); ++i) path = fmt::format("{}-{}", base.string(), i);
  return path;
}

namespace {

/// The first of the files that tell a run's folder; empty: it is none.
std::string what_a_run_left(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {kMetrics, "plan.json", "last_checkpoint"})
    // A run that was refused before its first step has left nothing in its metrics.
    if (fs::exists(folder / name, error) && fs::file_size(folder / name, error) > 0) return name;
  return fs::is_directory(folder / "checkpoints", error) && !fs::is_empty(folder / "checkpoints", error) ? "checkpoints"
                                                                                                         : "";
}

}  // namespace

fs::path make_run_folder(const std::string& wanted, const std::string& preset) {
  const fs::path path = fs::absolute(wanted.empty() ? fresh_path("runs", preset) : fs::path(wanted)).lexically_normal();
  if (const std::string there = what_a_run_left(path); !there.empty()) {
    throw ConfigError(
        fmt::format("--run-dir {0}: it already holds a run ({1}); give another folder, or {2} train --resume "
                    "--run-dir {3} "
                    "(goes on) or --restart (starts over, and keeps what is there in before.1)",
                    path.string(), there, program_name(), for_shell(path.string())));
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw IoError(fmt::format("{}: cannot make the run's folder: {}; give a folder that can be written with --run-dir",
                              path.string(), error ? error.message() : "it is a file"));
  }
  replace_text((path / kMetrics).string(), "");
  return path;
}

bool forget_unless_begun(const fs::path& folder) {
  std::error_code error;
  if (fs::file_size(folder / kMetrics, error) > 0 || error) return false;
  for (const char* name : {"plan.json", "environment.json", kMetrics}) fs::remove(folder / name, error);
  fs::remove(folder, error);  // where it is empty
  return true;
}

bool holds_run(const fs::path& folder) { return !what_a_run_left(folder).empty(); }

fs::path find_run_folder(const std::string& wanted) {
  if (!wanted.empty()) {
    if (!what_a_run_left(wanted).empty()) return fs::absolute(wanted).lexically_normal();
    fs::path inside = fs::absolute(wanted).lexically_normal();
    if (inside.filename().empty()) inside = inside.parent_path();
    const fs::path run = inside.parent_path(), run_of_one = run.parent_path();
    if (inside.filename() == "checkpoints" && !what_a_run_left(run).empty()) return run;
    if (run.filename() == "checkpoints" && !what_a_run_left(run_of_one).empty()) {
      throw ConfigError(fmt::format(
          "--resume: '{}' is a checkpoint; a run goes on from its latest, which the file '{}' names: --resume {}",
          wanted, short_path((run / "latest").string()), for_shell(run_of_one.string())));
    }
    throw ConfigError(fmt::format("--resume: '{}' holds no run", wanted));
  }
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    const auto time = fs::last_write_time(entry.path() / kMetrics, error);
    if (!error && (!newest || time > newest->first)) newest.emplace(time, entry.path());
  }
  if (newest) return fs::absolute(newest->second).lexically_normal();
  throw ConfigError("there is no run below runs/; name its folder: --resume DIR (or --restart DIR)");
}

nlohmann::ordered_json read_run_json(const fs::path& folder, const std::string& name) {
  std::ifstream file(folder / name);
  auto json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::ordered_json::object();
}

std::int64_t saved_steps(const FoundRun& found) {
  std::int64_t newest = 0;
  for (const checkpoint::Summary& one : found.checkpoints) {
    if (one.complete && one.latest) return one.global_steps;
    if (one.complete) newest = std::max(newest, one.global_steps);
  }
  return newest;
}

void write_run_json(const fs::path& folder, const std::string& name, const nlohmann::ordered_json& value) {
  // Readers are people and scripts: bytes that are no UTF-8 become U+FFFD.
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  replace_text((folder / name).string(), value.dump(2, ' ', false, replace) + "\n");
}

}  // namespace zero::app
