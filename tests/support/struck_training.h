#pragma once
// A training run in which rank 1 meets its fate in the middle of a step; for tests of how the others end.
#include <functional>
#include <string>

#include "zero/group.h"

namespace zero::testing {

enum class Place { kForward, kBackward, kStep };

/// Trains a deep model at stage 3 with the given store; in the sixth step rank 1 calls `strike` at `place`,
/// once. `progress_thread` as in the JSON. *Collective.*
void train_until_struck(Group group, const std::string& store, Place place, const std::function<void()>& strike,
                        const std::string& progress_thread = "auto");

}  // namespace zero::testing
