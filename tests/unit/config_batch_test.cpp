// The batch triad, every combination of what is given.
#include <gtest/gtest.h>

#include "zero/config.h"
#include "zero/errors.h"

namespace zero::config_batch_test {
namespace {

Config config_with(std::int64_t train, std::int64_t micro, std::int64_t steps) {
  Config config;
  config.train_batch_size = train;
  config.train_micro_batch_size_per_gpu = micro;
  config.gradient_accumulation_steps = steps;
  return config;
}

void expect_resolved(Config config, int ranks, std::int64_t train, std::int64_t micro, std::int64_t steps) {
  config.resolve_batch(ranks);
  EXPECT_EQ(config.train_batch_size, train);
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, micro);
  EXPECT_EQ(config.gradient_accumulation_steps, steps);
  const Config once = config;
  config.resolve_batch(ranks);
  EXPECT_EQ(config.to_json(), once.to_json()) << "idempotent";
}

std::string error_of(Config config, int ranks) {
  try {
    config.resolve_batch(ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(ConfigBatch, FillsInWhatIsMissing) {
  expect_resolved(config_with(32, 0, 0), 2, 32, 16, 1);
  expect_resolved(config_with(32, 4, 0), 2, 32, 4, 4);
  expect_resolved(config_with(32, 0, 4), 2, 32, 4, 4);
  expect_resolved(config_with(0, 4, 4), 2, 32, 4, 4);
  expect_resolved(config_with(0, 4, 0), 2, 8, 4, 1);
  expect_resolved(config_with(32, 4, 4), 2, 32, 4, 4);
  expect_resolved(config_with(1, 0, 0), 1, 1, 1, 1);
}

TEST(ConfigBatch, AgreesWithTheFormulaForAllSmallNumbers) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int train = 0; train <= 24; ++train) {
      for (int micro = 0; micro <= 6; ++micro) {
        for (int steps = 0; steps <= 4; ++steps) {
          Config config = config_with(train, micro, steps);
          const int used_steps = steps == 0 && (train == 0 || micro == 0) ? 1 : steps;
          bool solvable = train > 0 || micro > 0;
          if (train > 0 && micro > 0 && used_steps > 0) solvable = train == micro * used_steps * ranks;
          if (train > 0 && micro > 0 && used_steps == 0) solvable = train % (micro * ranks) == 0;
          if (train > 0 && micro == 0) solvable = train % (used_steps * ranks) == 0;
          if (!solvable) {
            EXPECT_THROW(config.resolve_batch(ranks), ConfigError) << train << ' ' << micro << ' ' << steps;
            continue;
          }
          config.resolve_batch(ranks);
          EXPECT_EQ(config.train_batch_size,
                    config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps * ranks);
          EXPECT_GT(config.train_batch_size, 0);
        }
      }
    }
  }
}

TEST(ConfigBatch, ErrorsCarryAllNumbersAndARemedy) {
  EXPECT_EQ(error_of(config_with(0, 0, 4), 2),
            "train_batch_size (not given) must be train_micro_batch_size_per_gpu (not given) * "
            "gradient_accumulation_steps (4) * ranks (2): give train_batch_size or train_micro_batch_size_per_gpu");
  EXPECT_EQ(error_of(config_with(32, 4, 3), 2),
            "train_batch_size (32) must be train_micro_batch_size_per_gpu (4) * gradient_accumulation_steps (3) * "
            "ranks (2): the product is 24; remove one of the three, or set train_batch_size to 24");
  EXPECT_EQ(error_of(config_with(32, 0, 0), 3),
            "train_batch_size (32) must be train_micro_batch_size_per_gpu (not given) * "
            "gradient_accumulation_steps (not given) * ranks (3): 32 does not divide by 1 * 3, so "
            "train_micro_batch_size_per_gpu has no value; the nearest train_batch_size that does is 33");
  EXPECT_NE(error_of(config_with(2, 0, 0), 8).find("nearest train_batch_size that does is 8"), std::string::npos);
  EXPECT_NE(error_of(config_with(0, INT64_MAX, 2), 2).find("too large"), std::string::npos);
  EXPECT_NE(error_of(config_with(8, INT64_MAX, 0), 2).find("too large"), std::string::npos);
  EXPECT_NE(error_of(config_with(8, 0, 0), 0).find("at least one rank"), std::string::npos);
}

}  // namespace
}  // namespace zero::config_batch_test
