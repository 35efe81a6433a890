#pragma once
// Where the time of a rank goes.
#include <cstdint>
#include <string_view>

#include "zero/report.h"

namespace zero::base {
class Trace;
}

namespace zero::sharding {

struct Timeline {
  StepBreakdown times;           ///< running: since the last boundary
  base::Trace* trace = nullptr;  ///< where one is taken: gets every piece
};

/// Adds the seconds of a scope to a part of the times. `what` it is spent on outlives the scope.
class Stopwatch {
 public:
  Stopwatch(Timeline& timeline, double StepBreakdown::*part, std::string_view what = {});
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Timeline& timeline_;
  double StepBreakdown::*const part_;
  const std::string_view what_;
  const std::int64_t begin_ns_;
};

}  // namespace zero::sharding
