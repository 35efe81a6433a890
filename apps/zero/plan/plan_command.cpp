#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.h"
#include "plan/plan_result.h"
#include "text/console.h"

namespace zero::app {
namespace {

constexpr int kDoesNotFit = 3;

int run(const PlanOptions& options) {
  const Console console(true);
  const PlanResult result = make_plans(read_plan_options(options));
  console.print(options.json ? plan_json(result).dump(2) + "\n" : plan_text(result));
  return result.fits ? 0 : kDoesNotFit;
}

/// A stage that is asked for alone is planned as it is, or refused as by the engine; of several, each goes without what
/// it cannot have.
Config config_at(const PlanRequest& request, int stage) {
  if (request.stages.size() > 1) return plan::at_stage(request.config, stage);
  Config config = request.config;
  config.zero_optimization.stage = stage;
  return config;
}

void simulate(PlanResult& result, const PlanRequest& request) {
  for (std::size_t i = 0; i < request.stages.size(); ++i) {
    const Config config = config_at(request, request.stages[i]);
    result.steps.push_back(plan::simulate_step(request.model, config, request.cluster, result.plans[i]));
    if (result.steps.back().seconds == 0) result.steps.clear();
    if (result.steps.empty()) break;  // of machines that are not known
  }
  if (request.cluster.failures.host_mtbf > 0)
    result.goodput = plan::goodput(request.cluster.failures, result.plans.front().nodes);
}

}  // namespace

PlanResult make_plans(PlanRequest request) {
  PlanResult result;
  for (std::size_t i = 0; i < request.stages.size(); ++i) {
    result.plans.push_back(plan::plan_memory(request.model, config_at(request, request.stages[i]), request.cluster));
    const bool fits = plan::fits(result.plans.back(), request.cluster);
    const bool asked = request.asked_stage ? request.stages[i] == *request.asked_stage : !result.fits;
    if (!asked) continue;
    result.judged = i;
    result.fits = fits;
  }
  simulate(result, request);
  if (!result.fits) {
    const int judged = request.stages[result.judged];
    plan::Changes allowed;
    allowed.store = !request.cluster.gpus;
    const Config config = config_at(request, judged);
    result.suggestion = plan::suggest(request.model, config, request.cluster, allowed);
    result.in_place = plan::suggest_in_place(request.model, config, request.cluster, allowed);
    // What fits without all that is in the first place.
    if (result.suggestion && result.in_place && result.suggestion->changes == result.in_place->changes)
      result.in_place.reset();
  }
  result.request = std::move(request);
  return result;
}

void add_plan_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "how much memory and traffic a run takes, before it");
  add_plan_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace zero::app
