#pragma once
// What `zero plan` has found, as text and as JSON.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan_options.h"

namespace zero::app {

struct PlanResult {
  PlanRequest request;
  std::vector<plan::Plan> plans;  ///< by request.stages
  /// Of these, where the machines come from a file that has the speeds; else empty.
  std::vector<plan::StepSimulation> steps;
  std::optional<plan::Goodput> goodput;  ///< where that file has failures
  std::size_t judged = 0;                ///< index of the plan that the verdict is about
  bool fits = false;
  std::optional<plan::Suggestion> suggestion;  ///< only where it does not fit
  std::optional<plan::Suggestion> in_place;    ///< where that takes a disk, the GPUs' hosts or more of these
};

/// Plans every stage and judges the one asked for.
PlanResult make_plans(PlanRequest request);

std::string plan_text(const PlanResult& result);
/// Keys: docs/plan.md.
nlohmann::ordered_json plan_json(const PlanResult& result);

}  // namespace zero::app
