#pragma once
// Rotary position embeddings in config.json.
#include <nlohmann/json.hpp>

#include "models/config_reader.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

/// `rope_scaling` of older files, `rope_parameters` of newer ones.
Rope read_rope(ConfigReader& in, double default_theta);
/// As `rope_scaling` has it.
nlohmann::json rope_json(const Rope& rope);

}  // namespace zero::models
