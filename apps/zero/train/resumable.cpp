// Whether a run can go on.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "runs/run_folder.h"
#include "train/train_plan.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {

void check_can_go_on(const std::string& folder) {
  const FoundRun found = find_run(folder);
  std::string problem = found.problem;
  if (problem.empty() && found.is_fresh()) {
    if (read_run_json(folder, kSummary).value("diverged", false)) {
      throw CheckpointError(
          fmt::format("--resume: the run in '{}' diverged at step {}, before its first checkpoint: there is nothing to "
                      "go on from, and the same would happen again. Start a new one, with a smaller --lr",
                      folder, found.recorded_steps));
    }
    const std::string end = found.recorded_steps > 0 ? fmt::format("at step {}, ", found.recorded_steps) : "";
    problem = fmt::format(
        "the run in '{}' has no checkpoint; it ended {}before its first one, or they were "
        "removed: there is nothing to go on from",
        folder, end);
  }
  constexpr std::string_view kSaidBelow = ", or start the run over";
  if (problem.ends_with(kSaidBelow)) problem.resize(problem.size() - kSaidBelow.size());
  if (!problem.empty()) throw CheckpointError(fmt::format("--resume: {}.{}", problem, restart_hint(folder)));
}

}  // namespace zero::app
