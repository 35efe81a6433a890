#pragma once
// Config -> JSON values, before they are text.
#include <nlohmann/json.hpp>

#include "zero/config.h"

namespace zero::config {

/// DeepSpeed's keys with the fields' values, NaN and infinities included. `whole`: the optimizer's too when it
/// was not given.
nlohmann::ordered_json to_json_tree(const Config& config, bool whole);

}  // namespace zero::config
