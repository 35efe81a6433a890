#include "models/window_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace zero::models {

std::vector<std::int64_t> read_windows(ConfigReader& in, std::int64_t layers) {
  const bool uses = in.get("use_sliding_window", false);
  const auto window = in.get<std::int64_t>("sliding_window", in.is_null("sliding_window") ? 0 : 4096);
  const auto from = in.get<std::int64_t>("max_window_layers", 28);
  const auto types = in.get("layer_types", std::vector<std::string>());
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != layers) {
    in.refuse("layer_types", fmt::format("want one for each of {} layers", layers));
  }
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string type = !types.empty()                    ? types[static_cast<std::size_t>(i)]
                             : uses && window > 0 && i >= from ? "sliding_attention"
                                                               : "full_attention";
    if (type != "sliding_attention" && type != "full_attention")
      in.refuse("layer_types", "only full_attention and sliding_attention are built");
    if (type == "sliding_attention" && (!uses || window == 0))
      in.refuse("layer_types", "sliding_attention, where use_sliding_window is not true or there is no sliding_window");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  if (std::ranges::all_of(windows, [&](std::int64_t w) { return w == windows.front(); })) windows.resize(1);
  return windows;
}

std::int64_t read_window(ConfigReader& in, std::int64_t otherwise) {
  return in.get<std::int64_t>("sliding_window", in.is_null("sliding_window") ? 0 : otherwise);
}

void write_window(std::int64_t window, nlohmann::json& out) {
  out["sliding_window"] = window > 0 ? nlohmann::json(window) : nlohmann::json();
}

void write_window_use(const CausalLMConfig& config, nlohmann::json& out) {
  const auto widest = std::ranges::max(config.windows);
  out["use_sliding_window"] = widest > 0;
  write_window(widest, out);
}

void write_layer_types(const CausalLMConfig& config, nlohmann::json& out) {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t i = 0; i < config.layers; ++i)
    types.push_back(config.window_of(i) > 0 ? "sliding_attention" : "full_attention");
  out["layer_types"] = types;
}

}  // namespace zero::models
