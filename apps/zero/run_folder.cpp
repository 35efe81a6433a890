#include "run_folder.h"

#include <fmt/format.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "zero/errors.h"

namespace zero::app {
namespace {

namespace fs = std::filesystem;
constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kLock = ".lock";

std::string local_date_time() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  ::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts);
  return text;
}

void write_text_file(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
}

/// Readers are people and scripts: bytes that are no UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

fs::path fresh_path(const fs::path& parent, const std::string& name) {
  const fs::path base = parent / fmt::format("{}-{}", local_date_time(), name);
  fs::path path = base;
  for (int i = 2; fs::exists(path); ++i) path = fmt::format("{}-{}", base.string(), i);
  return path;
}

fs::path make_run_folder(const std::string& wanted, const std::string& preset) {
  const fs::path path =
      fs::absolute(wanted.empty() ? fresh_path("runs", preset) : fs::path(wanted)).lexically_normal();
  if (fs::exists(path / kMetrics)) {
    throw ConfigError(
        fmt::format("--run-dir {}: it already holds a run ({}); give another folder or remove it",
                    path.string(), kMetrics));
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw IoError(
        fmt::format("{}: cannot make the run's folder: {}; give a folder that can be written with --run-dir",
                    path.string(), error ? error.message() : "it is a file"));
  }
  write_text_file(path / kMetrics, "");
  return path;
}

fs::path find_run_folder(const std::string& wanted) {
  if (!wanted.empty()) {
    if (fs::exists(fs::path(wanted) / kMetrics)) return fs::absolute(wanted).lexically_normal();
    throw ConfigError(fmt::format("--resume: '{}' holds no run ({} is not there)", wanted, kMetrics));
  }
  std::optional<std::pair<fs::file_time_type, fs::path>> newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("runs", error)) {
    const auto time = fs::last_write_time(entry.path() / kMetrics, error);
    if (!error && (!newest || time > newest->first)) newest.emplace(time, entry.path());
  }
  if (newest) return fs::absolute(newest->second).lexically_normal();
  throw ConfigError("--resume: there is no run below runs/; name its folder: --resume --run-dir DIR");
}

RunFolder::RunFolder(fs::path path)
    : path_(std::move(path)),
      lock_(io::system_files().try_lock((path_ / kLock).string())),
      metrics_(path_ / kMetrics) {
  if (!lock_) {
    throw ConfigError(
        fmt::format("{}: another process is writing this run; wait for it or stop it first", path_.string()));
  }
}

void RunFolder::append_metric(const nlohmann::ordered_json& metric) {
  metrics_.append(dump(metric, -1) + "\n");
}

std::int64_t RunFolder::sync_metrics() { return metrics_.sync(); }

void RunFolder::cut_metrics(std::int64_t nbytes) { metrics_.cut(nbytes); }

void RunFolder::write_json(const std::string& name, const nlohmann::ordered_json& value) const {
  write_run_json(path_, name, value);
}

void RunFolder::write_text(const std::string& name, const std::string& text) const {
  write_text_file(path_ / name, text);
}

void write_run_json(const fs::path& folder, const std::string& name, const nlohmann::ordered_json& value) {
  io::replace_text(io::system_files(), (folder / name).string(), dump(value, 2) + "\n");
}

}  // namespace zero::app
