#pragma once
// Windows of attention in config.json.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/config_reader.h"
#include "zero/lm/causal_lm.h"

namespace zero::models {

/// By layer, of families that say for each which kind of attention it has.
std::vector<std::int64_t> read_windows(ConfigReader& in, std::int64_t layers);
/// `sliding_window` of all layers: null is none, and what is not there is `otherwise`.
std::int64_t read_window(ConfigReader& in, std::int64_t otherwise);
void write_window(std::int64_t window, nlohmann::json& out);
/// use_sliding_window and sliding_window.
void write_window_use(const CausalLMConfig& config, nlohmann::json& out);
void write_layer_types(const CausalLMConfig& config, nlohmann::json& out);

}  // namespace zero::models
