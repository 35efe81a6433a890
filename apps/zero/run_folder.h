#pragma once
// The folder a run leaves behind: what it was asked for, what happened at each step, what came out.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/append_file.h"
#include "io/file_system.h"

namespace zero::app {

/// `parent`/<date-time>-<name>, a path that is not there yet.
std::filesystem::path fresh_path(const std::filesystem::path& parent, const std::string& name);

/// Makes the folder of a new run: `wanted`, or runs/<date-time>-<preset> when that is empty. Returns its
/// absolute path. Throws ConfigError when it already holds a run, IoError when it cannot be made or
/// written to.
std::filesystem::path make_run_folder(const std::string& wanted, const std::string& preset);

/// The folder of a run that is to go on: `wanted`, or the newest below runs/ when that is empty. Throws
/// ConfigError when there is none.
std::filesystem::path find_run_folder(const std::string& wanted);

/// Writes into a run's folder; one process per run has one of these, and holds the run's lock meanwhile.
/// Files: config.json, environment.json, metrics.jsonl (one object per step and per validation, in order),
/// summary.json, sample.txt. All writes throw IoError.
class RunFolder {
 public:
  /// Throws ConfigError when another process is writing there.
  explicit RunFolder(std::filesystem::path path);

  /// One line of metrics.jsonl; handed to the system when this returns.
  void append_metric(const nlohmann::ordered_json& metric);
  /// Makes the metrics so far durable and returns their bytes.
  std::int64_t sync_metrics();
  /// Forgets what came after the first `nbytes` of the metrics. Throws IoError when there are fewer.
  void cut_metrics(std::int64_t nbytes);

  void write_json(const std::string& name, const nlohmann::ordered_json& value) const;
  void write_text(const std::string& name, const std::string& text) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<io::Lock> lock_;
  base::AppendFile metrics_;
};

/// Writes a JSON file of a run's folder without being its writer; a crash leaves the old or the new one.
void write_run_json(const std::filesystem::path& folder, const std::string& name,
                    const nlohmann::ordered_json& value);

}  // namespace zero::app
