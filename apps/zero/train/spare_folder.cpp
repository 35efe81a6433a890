#include "train/spare_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "runs/run_folder.h"
#include "text/text_format.h"
#include "zero/errors.h"
#include "zero/train.h"

namespace zero::app {

void take_spare_folder(TrainPlan& plan, const TrainOptions& options, bool is_where_it_was) {
  namespace fs = std::filesystem;
  const fs::path before = plan.spare_folder;
  if (options.spare_dir.empty() && before.empty()) return;
  const fs::path folder = options.spare_dir.empty() ? before.parent_path() : fs::absolute(options.spare_dir);
  if (is_where_it_was && !before.empty()) {
    plan.spare_folder = (folder / before.filename()).string();
    return;
  }
  fs::path run = plan.run_folder;
  if (run.filename().empty()) run = run.parent_path();  // "runs/x/"
  std::random_device random;
  plan.spare_folder = (folder / fmt::format("{}-{:08x}", run.filename().string(), random())).string();
}

namespace {

/// The last checkpoint of a run whose folder could not take it.
struct CheckpointElsewhere {
  std::filesystem::path folder;  ///< where it is, or was
  bool is_there = false;
  std::int64_t steps = 0;
};

/// `spares`: folders that it may be in by now, besides where the run's summary says.
std::optional<CheckpointElsewhere> checkpoint_elsewhere(const std::filesystem::path& folder,
                                                        const std::vector<std::filesystem::path>& spares,
                                                        const FoundRun& found) {
  namespace fs = std::filesystem;
  const auto has_summary = [](const fs::path& spare) { return fs::exists(spare / kSummary); };
  const auto spare = std::ranges::find_if(spares, has_summary);
  const auto summary = read_run_json(spare == spares.end() ? folder : *spare, kSummary);
  CheckpointElsewhere last{.folder = {}, .steps = summary.value("steps", std::int64_t{0})};
  if (!summary.value("checkpoint_in_spare_folder", false) || last.steps <= saved_steps(found)) return std::nullopt;
  last.folder = summary["checkpoint"].get<std::string>();
  if (last.folder.parent_path() == folder / "checkpoints") return std::nullopt;
  std::vector<fs::path> places = {last.folder};
  for (const fs::path& one : spares) places.push_back(one / "checkpoints" / last.folder.filename());
  const auto place =
      std::ranges::find_if(places, [](const fs::path& one) { return fs::exists(one / "manifest.json"); });
  last.is_there = place != places.end();
  if (last.is_there) last.folder = *place;
  return last;
}

/// What brings it into the run's folder.
std::string how_to_bring_back(const std::filesystem::path& last, const std::string& folder) {
  const std::filesystem::path metrics = last.parent_path() / "metrics.jsonl";
  return fmt::format(
      "--resume: the last checkpoint of this run is in {1}. Bring it back first:\n"
      "  mkdir -p {0}/checkpoints && cp -r {2} {0}/checkpoints/ && cp {3}/latest {0}/checkpoints/{4}",
      for_shell(folder), short_path(last), for_shell(last.string()), for_shell(last.parent_path().string()),
      std::filesystem::exists(metrics) ? fmt::format(" && cp {} {}/", for_shell(metrics.string()), for_shell(folder))
                                       : "");
}

}  // namespace

std::vector<std::filesystem::path> spare_folders(const std::filesystem::path& before, const std::string& given) {
  if (before.empty()) return {};
  if (given.empty()) return {before};
  const std::filesystem::path folder = std::filesystem::absolute(given);
  // By its name: another run's has the same files.
  return {before, folder.filename() == before.filename() ? folder : folder / before.filename()};
}

void check_can_go_on(const std::string& folder, const std::vector<std::filesystem::path>& spares) {
  const FoundRun found = find_run(folder);
  if (const auto last = checkpoint_elsewhere(folder, spares, found)) {
    if (last->is_there) throw CheckpointError(how_to_bring_back(last->folder, folder));
    const std::int64_t saved = saved_steps(found);
    throw CheckpointError(fmt::format(
        "--resume: the last checkpoint of this run, after {}, was written to {}, which is not there. Bring it back, or "
        "say with --spare-dir where it is now.{}",
        counted(last->steps, "step"), last->folder.string(),
        saved > 0 ? fmt::format(" To go on without it, after {}: rm {}", counted(saved, "step"),
                                for_shell(folder + "/" + kSummary))
                  : restart_hint(folder)));
  }
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
        "removed (or are where --spare-dir was; give it again): there is nothing to go on from",
        folder, end);
  }
  constexpr std::string_view kSaidBelow = ", or start the run over";
  if (problem.ends_with(kSaidBelow)) problem.resize(problem.size() - kSaidBelow.size());
  if (!problem.empty()) throw CheckpointError(fmt::format("--resume: {}.{}", problem, restart_hint(folder)));
}

}  // namespace zero::app
