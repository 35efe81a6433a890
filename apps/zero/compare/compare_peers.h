#pragma once
// The same model, weights, tokens and hyper-parameters under DDP, FSDP2 and DeepSpeed, from Python.
#include <filesystem>
#include <vector>

#include "compare/compare_options.h"
#include "compare/compare_report.h"
#include "zero/config.h"

namespace zero::app {

/// Writes what benchmarks/peers.py needs into `folder` (tokens, hyper-parameters; the weights are there),
/// runs it, and returns its lines; each has {"mode", "settings"} and a result or an "error". `exit_code`: of
/// the program. Throws ConfigError when no Python has what it takes, IoError.
std::vector<nlohmann::ordered_json> run_peers(const CompareOptions& options, const Comparison& comparison,
                                              const std::filesystem::path& folder, int& exit_code);

/// Throws ConfigError for what would only show after all modes have run.
void check_peers(const CompareOptions& options, const Config& config, const std::vector<std::string>& modes);

/// The Python that can run the peers. Throws ConfigError that says how to make one.
std::string peers_python(const CompareOptions& options);

}  // namespace zero::app
