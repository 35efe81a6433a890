#pragma once
// What a comparison found: tables for people, compare.json for programs.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/train_plan.h"

namespace zero::app {

struct Comparison {
  TrainPlan plan;  ///< of the first mode; the others differ in stage and store
  std::int64_t warmup = 0;
  std::int64_t rounds = 1;
  /// Results of cases, or {"mode", "error"}, with "rounds": each {"seconds", "others_cpu_share"}.
  std::vector<nlohmann::ordered_json> modes;
};

/// Takes the result of another round: its times beside those there are, and the largest peak. The losses must be the
/// same; else an error says in which step they are not.
void add_round(nlohmann::ordered_json& result, const nlohmann::ordered_json& another);

/// "stage3-copying" -> "ZeRO-3 copying": at most 14 characters.
std::string mode_title(const std::string& mode);

/// The line that is printed when a mode is over.
std::string describe_mode(const Comparison& comparison, const nlohmann::ordered_json& result);

/// Memory by kind, step time and traffic of every mode, and the losses.
std::string describe_comparison(const Comparison& comparison);

/// True when all stages have the same losses in all steps, to the last bit.
bool same_losses(const Comparison& comparison);

nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace zero::app
