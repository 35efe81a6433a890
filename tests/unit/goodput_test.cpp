// What failures leave of a run: the expectation against Young, Daly and runs that are drawn.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan::goodput_test {
namespace {

TEST(Goodput, IsOneWithoutFailures) {
  EXPECT_EQ(goodput({}, 100).of_time, 1);
  EXPECT_EQ(goodput({.checkpoint = 10, .interval = 100}, 1).of_time, 1);  // of an unknown rate nothing is known
}

TEST(Goodput, TheBestIntervalIsYoungsAndDalys) {
  for (const double checkpoint : {1.0, 30.0, 300.0}) {
    for (const double mtbf : {3e4, 1e6}) {
      const Goodput result = goodput({.host_mtbf = mtbf * 16, .restart = 60, .checkpoint = checkpoint}, 16);
      EXPECT_DOUBLE_EQ(result.mtbf, mtbf);
      const double young = std::sqrt(2 * checkpoint * mtbf), part = checkpoint / (2 * mtbf);
      const double daly = young * (1 + std::sqrt(part) / 3 + part / 9) - checkpoint;
      EXPECT_NEAR(result.best_interval / daly, 1, 1e-3);
      EXPECT_NEAR(result.best_interval / young, 1, 0.08);
      // Other intervals are worse.
      for (const double factor : {0.5, 0.9, 1.1, 2.0}) {
        const Failures other{
            .host_mtbf = mtbf * 16, .restart = 60, .checkpoint = checkpoint, .interval = factor * result.best_interval};
        EXPECT_LT(goodput(other, 16).of_time, result.of_time);
      }
    }
  }
}

TEST(Goodput, FirstOrderLoss) {
  // Few failures: checkpoints, half an interval for each failure, its detection and restart.
  const Failures failures{.host_mtbf = 1e7, .detection = 10, .restart = 90, .checkpoint = 5, .interval = 2000};
  const double lost = 5.0 / 2000 + (1000 + 10 + 90) / 1e7;
  EXPECT_NEAR(1 - goodput(failures, 1).of_time, lost, 1e-4);
}

/// Runs segment by segment, with failures whose times are drawn.
double drawn(const Failures& failures, double mtbf, int segments) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> next_failure(1 / mtbf);
  const double segment = failures.interval + failures.checkpoint;
  double spent = 0;
  for (int i = 0; i < segments; ++i) {
    for (double until = next_failure(random); until < segment; until = next_failure(random)) {
      spent += until + failures.detection;
      for (until = next_failure(random); until < failures.restart; until = next_failure(random))
        spent += until + failures.detection;
      spent += failures.restart;
    }
    spent += segment;
  }
  return failures.interval * segments / spent;
}

TEST(Goodput, IsThatOfDrawnRuns) {
  for (const double interval : {300.0, 1500.0}) {
    const Failures failures{
        .host_mtbf = 64 * 4000.0, .detection = 20, .restart = 400, .checkpoint = 60, .interval = interval};
    EXPECT_NEAR(goodput(failures, 64).of_time, drawn(failures, 4000, 200'000), 2e-3) << interval;
  }
}

TEST(Goodput, RefusesWhatIsNoTime) {
  EXPECT_THROW(goodput({.host_mtbf = -1}, 1), ConfigError);
  EXPECT_THROW(goodput({.host_mtbf = 1, .restart = std::nan("")}, 1), ConfigError);
  EXPECT_THROW(goodput({.host_mtbf = 1}, 0), ConfigError);
}

}  // namespace
}  // namespace zero::plan::goodput_test
