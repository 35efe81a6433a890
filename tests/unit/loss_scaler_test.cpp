// The loss scale follows DeepSpeed's: goldens of its own scaler for the same overflows, from
// scripts/make_deepspeed_golden.py.
#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace zero::optim::loss_scaler_test {
namespace {

using Decision = LossScaler::Decision;

nlohmann::json goldens() {
  std::ifstream in(ZERO_SOURCE_DIR "/tests/data/deepspeed_golden.json");
  return nlohmann::json::parse(in).at("loss_scaler");
}

LossScalerOptions options_of(const nlohmann::json& one) {
  return {.skips_non_finite = true,
          .scale = one.at("init_scale"),
          .dynamic = true,
          .window = one.at("scale_window"),
          .hysteresis = one.at("delayed_shift"),
          .consecutive_hysteresis = one.at("consecutive_hysteresis"),
          .min_scale = one.at("min_scale")};
}

TEST(LossScaler, HasDeepSpeedsScalesForTheSameOverflows) {
  int compared = 0;
  for (const auto& one : goldens()) {
    LossScaler scaler(options_of(one));
    const auto& overflows = one.at("overflows");
    const auto& scales = one.at("scales");
    for (std::size_t i = 0; i < overflows.size(); ++i) {
      const Decision decision = scaler.update(overflows[i] == 0);
      if (i == scales.size()) {  // where DeepSpeed ends the run
        EXPECT_EQ(decision, Decision::kSkipAtMinimum) << one.dump();
        break;
      }
      EXPECT_EQ(decision, overflows[i] == 0 ? Decision::kTake : Decision::kSkip) << i << " of " << one.dump();
      ASSERT_EQ(scaler.scale(), scales[i].get<double>()) << i << " of " << one.dump();
      ++compared;
    }
  }
  EXPECT_GT(compared, 2000);
}

TEST(LossScaler, GoesOnFromItsStateAnywhere) {
  for (const auto& one : goldens()) {
    LossScaler whole(options_of(one));
    for (std::size_t i = 0; i < one.at("scales").size(); ++i) {
      LossScaler resumed(options_of(one));
      resumed.set_state(whole.state());
      whole.update(one.at("overflows")[i] == 0);
      resumed.update(one.at("overflows")[i] == 0);
      ASSERT_EQ(whole.state(), resumed.state()) << i;
    }
  }
}

TEST(LossScaler, AFixedScaleSkipsAndStays) {
  LossScaler scaler({.skips_non_finite = true, .scale = 128, .window = 1, .hysteresis = 1});
  EXPECT_EQ(scaler.update(false), Decision::kSkip);
  EXPECT_EQ(scaler.update(true), Decision::kTake);
  EXPECT_EQ(scaler.update(true), Decision::kTake);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.skipped_steps(), 1);
  LossScaler other({.dynamic = true});
  other.set_state({.scale = 4, .skipped_steps = 7});
  scaler.go_on_from(other);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.skipped_steps(), 7);
}

TEST(LossScaler, TakesEverythingWhereNothingIsToBeSkipped) {
  LossScaler scaler;
  EXPECT_EQ(scaler.update(false), Decision::kTake);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(scaler.skipped_steps(), 0);
}

}  // namespace
}  // namespace zero::optim::loss_scaler_test
