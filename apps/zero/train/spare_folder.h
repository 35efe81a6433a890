#pragma once
// --spare-dir: where the last checkpoint of a run goes if the run's own folder cannot take it, and how it comes back.
#include <filesystem>
#include <string>
#include <vector>

#include "train/train_options.h"
#include "train/train_plan.h"

namespace zero::app {

/// Gives the plan a folder for the last checkpoint of this run, and no other one's: not of one that was here before and
/// has moved, was copied or started over. `is_where_it_was`: it goes on, in the same folder. Nothing where no spare
/// folder was ever wanted.
void take_spare_folder(TrainPlan& plan, const TrainOptions& options, bool is_where_it_was);

/// Where the last checkpoint may be: `before` was the run's spare folder, `given` is what --spare-dir says now, that of
/// the run or of several.
std::vector<std::filesystem::path> spare_folders(const std::filesystem::path& before, const std::string& given);

/// Throws CheckpointError, with what to do, for a run that cannot go on as it is: its last checkpoint is elsewhere (see
/// `spares`) or gone, or it never had one. Changes nothing.
void check_can_go_on(const std::string& folder, const std::vector<std::filesystem::path>& spares);

}  // namespace zero::app
