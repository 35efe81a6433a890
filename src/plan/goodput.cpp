// What failures and checkpoints leave of a run's time.
#include <algorithm>
#include <cmath>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

/// Of `interval` seconds of training and the checkpoint after them, the part that is training, in expectation.
///
/// With failures at rate 1/M, `s` seconds without one take (M + C) (e^(s/M) - 1) on average, where each failure costs C
/// more before the next attempt begins. An attempt at s = interval + checkpoint is repeated after the detection and a
/// restart, which itself needs R seconds without a failure: C = D + (M + D) (e^(R/M) - 1). Together that is
/// (M + D) e^(R/M) (e^(s/M) - 1), and without D the formula of Daly (2006).
double part_of_time(const Failures& failures, double mtbf, double interval) {
  const double attempts = std::expm1((interval + failures.checkpoint) / mtbf);
  return interval / ((mtbf + failures.detection) * std::exp(failures.restart / mtbf) * attempts);
}

/// The logarithm of that, but for what does not depend on the interval: no rate of failures is too large for it.
double of_interval(const Failures& failures, double mtbf, double interval) {
  const double attempt = (interval + failures.checkpoint) / mtbf;
  constexpr double kLarge = 30;  // 1 is nothing next to e^30
  return std::log(interval) - (attempt > kLarge ? attempt : std::log(std::expm1(attempt)));
}

/// By golden section: there is one maximum, whose place neither detection nor restart changes.
double best_interval(const Failures& failures, double mtbf) {
  if (failures.checkpoint == 0) return 0;
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double low = 0, high = 2 * std::sqrt(2 * failures.checkpoint * mtbf) + failures.checkpoint;
  constexpr int kMostTrials = 200;
  for (int trial = 0; trial < kMostTrials && high - low > 1e-9 * high; ++trial) {
    const double left = high - ratio * (high - low), right = low + ratio * (high - low);
    if (of_interval(failures, mtbf, left) < of_interval(failures, mtbf, right)) {
      low = left;
    } else {
      high = right;
    }
  }
  return (low + high) / 2;
}

}  // namespace

Goodput goodput(const Failures& failures, int hosts) {
  for (const double seconds :
       {failures.host_mtbf, failures.detection, failures.restart, failures.checkpoint, failures.interval}) {
    if (!(seconds >= 0) || !std::isfinite(seconds)) throw ConfigError("goodput: want times of 0 seconds or more");
  }
  if (hosts < 1) throw ConfigError("goodput: want at least one host");
  Goodput result;
  result.interval = failures.interval;
  if (failures.host_mtbf == 0) return result;
  result.mtbf = failures.host_mtbf / hosts;
  result.best_interval = best_interval(failures, result.mtbf);
  if (failures.interval == 0) result.interval = result.best_interval;
  // Checkpoints that cost nothing are taken all the time.
  constexpr double kNoTime = 1e-9;
  result.of_time = part_of_time(failures, result.mtbf, std::max(result.interval, kNoTime * result.mtbf));
  return result;
}

}  // namespace zero::plan
