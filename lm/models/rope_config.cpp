#include "models/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "zero/errors.h"

namespace zero::models {
namespace {

constexpr std::pair<Rope::Type, std::string_view> kRopeTypes[] = {
    {Rope::Type::kDefault, "default"}, {Rope::Type::kLinear, "linear"},     {Rope::Type::kDynamic, "dynamic"},
    {Rope::Type::kYarn, "yarn"},       {Rope::Type::kLongRope, "longrope"}, {Rope::Type::kLlama3, "llama3"},
};

}  // namespace

Rope read_rope(ConfigReader& in, double default_theta) {
  Rope rope;
  rope.theta = in.get("rope_theta", default_theta);
  in.require("partial_rotary_factor", 1.0);
  in.require("rope_interleaved", false);
  const auto original = in.get<std::int64_t>("original_max_position_embeddings", 0);
  const bool is_new = in.has("rope_parameters") && !in.at("rope_parameters").empty();
  const bool is_old = in.has("rope_scaling") && !in.at("rope_scaling").empty();
  if (is_new && is_old && in.at("rope_parameters") != in.at("rope_scaling"))
    in.refuse("rope_scaling", "rope_parameters says something else; remove one of them");
  if (!is_new && !is_old) return rope;
  const char* const key = is_new ? "rope_parameters" : "rope_scaling";
  ConfigReader part(in.at(key), fmt::format("{}: {}", in.where(), key));
  rope.theta = part.get("rope_theta", rope.theta);
  const auto old_name = part.get<std::string>("type", "default");
  const auto name = part.get<std::string>("rope_type", old_name);
  const auto* const known =
      std::ranges::find(kRopeTypes, std::string_view(name), [](const auto& t) { return t.second; });
  if (known == std::end(kRopeTypes)) {
    part.refuse(part.has("rope_type") ? "rope_type" : "type",
                "not built; there are default, linear, dynamic, yarn, longrope and llama3");
  }
  rope.type = known->first;
  part.require("partial_rotary_factor", 1.0);
  const auto inside = part.get<std::int64_t>("original_max_position_embeddings", 0);
  rope.original_max_positions = original > 0 ? original : inside;  // as transformers
  if (rope.type == Rope::Type::kDefault) {
    part.pass_over("factor");
    part.check_all_known();
    return rope;
  }
  if (rope.type != Rope::Type::kLongRope && !part.has("factor")) {
    throw ConfigError(fmt::format("{}: 'factor' is missing", part.where()));
  }
  rope.factor = part.get("factor", rope.type == Rope::Type::kLongRope ? 0.0 : 1.0);
  rope.attention_factor = part.find<double>("attention_factor");
  rope.beta_fast = part.get("beta_fast", rope.beta_fast);
  rope.beta_slow = part.get("beta_slow", rope.beta_slow);
  rope.mscale = part.find<double>("mscale");
  rope.mscale_all_dim = part.find<double>("mscale_all_dim");
  // As transformers, which takes these for numbers that are not given, and null for false.
  if (rope.beta_fast == 0) rope.beta_fast = Rope().beta_fast;
  if (rope.beta_slow == 0) rope.beta_slow = Rope().beta_slow;
  rope.truncate = part.get("truncate", !in.at(key).contains("truncate"));
  rope.low_freq_factor = part.get("low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = part.get("high_freq_factor", rope.high_freq_factor);
  rope.long_factor = part.get("long_factor", rope.long_factor);
  rope.short_factor = part.get("short_factor", rope.short_factor);
  part.check_all_known();
  return rope;
}

nlohmann::json rope_json(const Rope& rope) {
  const auto* const name = std::ranges::find(kRopeTypes, rope.type, [](const auto& t) { return t.first; });
  nlohmann::json out = {{"rope_type", name->second}};
  if (rope.type != Rope::Type::kLongRope || rope.factor > 0) out["factor"] = rope.factor;
  if (rope.original_max_positions > 0) out["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.attention_factor) out["attention_factor"] = *rope.attention_factor;
  if (rope.type == Rope::Type::kYarn) {
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    if (rope.mscale) out["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) out["mscale_all_dim"] = *rope.mscale_all_dim;
    if (!rope.truncate) out["truncate"] = false;
  }
  if (rope.type == Rope::Type::kLlama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == Rope::Type::kLongRope) {
    out["long_factor"] = rope.long_factor;
    out["short_factor"] = rope.short_factor;
  }
  return out;
}

}  // namespace zero::models
