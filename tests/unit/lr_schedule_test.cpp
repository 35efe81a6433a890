// Rates and betas of every schedule are those of DeepSpeed's and PyTorch's own classes, point by point:
// goldens from scripts/make_deepspeed_golden.py.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace zero::optim::lr_schedule_test {
namespace {

using nlohmann::json;

json goldens() {
  std::ifstream in(ZERO_SOURCE_DIR "/tests/data/deepspeed_golden.json");
  return json::parse(in).at("schedules");
}

Config config_of(const json& one) {
  json params = one.at("params");
  const json text = {{"train_batch_size", 1},
                     {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", one.at("lr")}}}}},
                     {"scheduler", {{"type", one.at("type")}, {"params", params}}}};
  return Config::from_text(text.dump());
}

/// DeepSpeed's to the bit. PyTorch's are recurrences, ours closed forms: 40 roundings of the rate.
void expect_close(double got, double wanted, const json& one, std::size_t step) {
  static const std::set<std::string> kDeepSpeed = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                                   "LRRangeTest"};
  const double tolerance = kDeepSpeed.contains(one.at("type")) ? 0 : 1e-18 + 1e-13 * std::abs(wanted);
  EXPECT_NEAR(got, wanted, tolerance) << one.dump().substr(0, 200) << " step " << step;
}

TEST(LrSchedule, HasTheirRatesAndBetas) {
  std::set<std::string> types;
  for (const json& one : goldens()) {
    types.insert(one.at("type"));
    const Config config = config_of(one);
    for (std::size_t step = 0; step < one.at("rates").size(); ++step) {
      const auto at = static_cast<std::int64_t>(step);
      expect_close(learning_rate_at(config.scheduler, one.at("lr"), at), one.at("rates")[step], one, step);
      const auto betas = betas_at(config.scheduler, at).value_or(std::pair(0.9, 0.999));
      expect_close(betas.first, one.at("betas")[step][0], one, step);
      expect_close(betas.second, one.at("betas")[step][1], one, step);
    }
  }
  EXPECT_EQ(types.size(), 10u) << "every type has a golden";
}

TEST(LrSchedule, WithoutOneTheRateIsTheOptimizers) {
  EXPECT_EQ(learning_rate_at({}, 0.5, 3), 0.5);
  EXPECT_FALSE(betas_at({}, 3).has_value());
}

TEST(LrSchedule, NothingBreaksFarBeyondTheEnd) {
  for (const json& one : goldens()) {
    const Config config = config_of(one);
    for (const std::int64_t step : {100, 10'000, 1'000'000'000}) {
      const double rate = learning_rate_at(config.scheduler, 1e-3, step);
      EXPECT_TRUE(rate >= 0 && rate < 1e9) << one.dump().substr(0, 200) << " " << step << " " << rate;
    }
  }
}

}  // namespace
}  // namespace zero::optim::lr_schedule_test
