#include "intercept/random_fills.h"

#include <algorithm>
#include <array>

namespace zero::intercept {
namespace {

thread_local int g_depth = 0;

}  // namespace

SkipRandomFills::SkipRandomFills() { ++g_depth; }
SkipRandomFills::~SkipRandomFills() { --g_depth; }

bool skips_random_fills() { return g_depth > 0; }

bool is_random_fill(std::string_view schema_name) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "aten::normal_", "aten::uniform_",    "aten::random_",    "aten::bernoulli_",
      "aten::cauchy_", "aten::log_normal_", "aten::geometric_", "aten::exponential_"};
  return std::ranges::find(kNames, schema_name) != kNames.end();
}

}  // namespace zero::intercept
