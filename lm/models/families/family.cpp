#include "models/families/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "models/families/gpt2.h"
#include "models/families/llama.h"
#include "models/families/mistral.h"
#include "models/families/mixtral.h"
#include "models/families/qwen2.h"
#include "models/families/qwen3.h"
#include "models/families/qwen3_moe.h"
#include "zero/errors.h"

namespace zero::models {
namespace {

using Family = CausalLMConfig::Family;
using Row = std::pair<Family, const ModelFamily*>;

const std::vector<Row>& families() {
  static const std::vector<Row> rows = {
      {Family::kGpt2, &gpt2_family()},          {Family::kLlama, &llama_family()},
      {Family::kMistral, &mistral_family()},    {Family::kQwen2, &qwen2_family()},
      {Family::kQwen3, &qwen3_family()},        {Family::kMixtral, &mixtral_family()},
      {Family::kQwen3Moe, &qwen3_moe_family()},
  };
  return rows;
}

}  // namespace

const ModelFamily& family_of(Family family) { return *std::ranges::find(families(), family, &Row::first)->second; }

Family read_family(ConfigReader& in) {
  const auto name = in.get<std::string>("model_type", "");
  std::vector<std::string_view> known;
  for (const auto& [family, row] : families()) {
    if (name == row->traits().model_type) return family;
    known.push_back(row->traits().model_type);
  }
  throw ConfigError(fmt::format("{}: model_type is '{}', which is not built; there are {}", in.where(), name,
                                fmt::join(known, ", ")));
}

std::string_view family_name(Family family) { return family_of(family).traits().model_type; }

}  // namespace zero::models
