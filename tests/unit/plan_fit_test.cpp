// plan::check_fits(), which stands between a program and a run that cannot fit.
#include <gtest/gtest.h>

#include "zero/errors.h"
#include "zero/lm/models.h"
#include "zero/memory.h"
#include "zero/plan.h"

namespace zero::plan::plan_fit_test {
namespace {

Config stage(int value) {
  return Config::from_text(R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
                               "zero_optimization": {"stage": )" +
                           std::to_string(value) + "}}");
}

/// What a host needs, as the plan says.
std::int64_t need(const GPTOptions& model, const Config& config, const Cluster& cluster) {
  return plan_memory(gpt_shape(model), config, cluster).node_nbytes;
}

TEST(CheckFits, SaysNothingWhereThereIsRoom) {
  const Cluster cluster{.ranks = 2, .node_memory_nbytes = 1'000'000'000'000};
  EXPECT_EQ(check_fits(gpt_shape(gpt_preset("gpt-152m")), stage(0), cluster, false), "");
  const Cluster here{.node_memory_nbytes = available_memory_nbytes()};
  EXPECT_EQ(check_fits(gpt_shape(gpt_preset("gpt-tiny")), stage(0), here, false), "");
}

TEST(CheckFits, WarnsWhereItIsTight) {
  const GPTOptions model = gpt_preset("gpt-152m");
  Cluster cluster{.ranks = 2};
  cluster.node_memory_nbytes = need(model, stage(2), cluster) * 105 / 100;
  const std::string words = check_fits(gpt_shape(model), stage(2), cluster, false);
  EXPECT_TRUE(words.starts_with("the run needs about ")) << words;
}

TEST(CheckFits, RefusesWithNumbersAndTheSmallestChangeUnlessForced) {
  const GPTOptions model = gpt_preset("gpt-152m");
  Cluster cluster{.ranks = 2};
  cluster.node_memory_nbytes = need(model, stage(1), cluster);
  try {
    check_fits(gpt_shape(model), stage(0), cluster, false);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find("GB on this host (2 ranks, stage 0)"), std::string::npos) << words;
    EXPECT_NE(words.find("zero_optimization.stage 1"), std::string::npos) << words;
  }
  EXPECT_TRUE(check_fits(gpt_shape(model), stage(0), cluster, true).starts_with("the run needs "));
}

TEST(CheckFits, ShapeIsThatOfTheModel) {
  for (const auto& name : gpt_presets()) {
    EXPECT_EQ(gpt_shape(gpt_preset(name), name).numel(), gpt_numel(gpt_preset(name))) << name;
  }
}

}  // namespace
}  // namespace zero::plan::plan_fit_test
