#pragma once
// The folder a run leaves behind: what it was asked for, what happened at each step, what came out.
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace zero::app {

/// Makes the folder of a new run: `wanted`, or runs/<date-time>-<preset> when that is empty. Returns its
/// absolute path. Throws ConfigError when it already holds a run, IoError when it cannot be made or
/// written to.
std::filesystem::path make_run_folder(const std::string& wanted, const std::string& preset);

/// Writes into a run's folder; one process per run has one of these. Files: config.json, environment.json,
/// metrics.jsonl (one object per step and per validation, in order), summary.json, sample.txt. All writes
/// throw IoError.
class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path);

  /// One line of metrics.jsonl; on disk when this returns.
  void append_metric(const nlohmann::ordered_json& metric);
  void write_json(const std::string& name, const nlohmann::ordered_json& value) const;
  void write_text(const std::string& name, const std::string& text) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace zero::app
