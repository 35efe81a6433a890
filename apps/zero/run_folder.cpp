#include "run_folder.h"

#include <fmt/format.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

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

fs::path free_default(const std::string& preset) {
  const fs::path base = fs::path("runs") / fmt::format("{}-{}", local_date_time(), preset);
  fs::path path = base;
  for (int i = 2; fs::exists(path); ++i) path = fmt::format("{}-{}", base.string(), i);
  return path;
}

std::ofstream open_for_writing(const fs::path& path) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  if (!file) throw IoError(fmt::format("{}: cannot write: {}", path.string(), std::strerror(errno)));
  return file;
}

/// Readers are people and scripts: bytes that are no UTF-8 become U+FFFD.
std::string dump(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

fs::path make_run_folder(const std::string& wanted, const std::string& preset) {
  const fs::path path =
      fs::absolute(wanted.empty() ? free_default(preset) : fs::path(wanted)).lexically_normal();
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
  open_for_writing(path / kMetrics);
  return path;
}

RunFolder::RunFolder(fs::path path) : path_(std::move(path)), metrics_(open_for_writing(path_ / kMetrics)) {}

void RunFolder::append_metric(const nlohmann::ordered_json& metric) {
  metrics_ << dump(metric, -1) << std::endl;
  if (!metrics_)
    throw IoError(fmt::format("{}: cannot write; is the disk full?", (path_ / kMetrics).string()));
}

void RunFolder::write_json(const std::string& name, const nlohmann::ordered_json& value) const {
  write_text(name, dump(value, 2) + "\n");
}

void RunFolder::write_text(const std::string& name, const std::string& text) const {
  std::ofstream file = open_for_writing(path_ / name);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("{}: cannot write; is the disk full?", (path_ / name).string()));
}

}  // namespace zero::app
