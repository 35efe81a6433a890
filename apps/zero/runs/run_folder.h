#pragma once
// The folder a run leaves behind: what it was asked for, what happened at each step, what came out.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "zero/train.h"

namespace zero::app {

/// `parent`/<date-time>-<name>, a path that is not there yet.
std::filesystem::path fresh_path(const std::filesystem::path& parent, const std::string& name);

/// Makes the folder of a new run: `wanted`, or runs/<date-time>-<preset> when that is empty. Returns its
/// absolute path. Throws ConfigError when it already holds a run, IoError when it cannot be made or
/// written to.
std::filesystem::path make_run_folder(const std::string& wanted, const std::string& preset);

/// Whether a run has begun there.
bool holds_run(const std::filesystem::path& folder);

/// The folder of a run that is to go on: `wanted`, or the newest below runs/ when that is empty. Throws
/// ConfigError when there is none.
std::filesystem::path find_run_folder(const std::string& wanted);

// What is in it: config.json, environment.json, plan.json, metrics.jsonl (one object per step and per validation, in
// order), summary.json, sample.txt, checkpoints.

inline constexpr const char* kSummary = "summary.json";

/// A JSON file of a run's folder; an empty object where it is not there or none.
nlohmann::ordered_json read_run_json(const std::filesystem::path& folder, const std::string& name);

/// Removes what describes a run that has written no metrics, so that its folder can be another's. False for others.
bool forget_unless_begun(const std::filesystem::path& folder);

/// The steps of the newest checkpoint that can be loaded; 0: there is none.
std::int64_t saved_steps(const FoundRun& found);

/// Writes a JSON file of a run's folder; a crash leaves the old or the new one. Throws IoError.
void write_run_json(const std::filesystem::path& folder, const std::string& name, const nlohmann::ordered_json& value);

}  // namespace zero::app
