#include "sharding/timeline.h"

#include <utility>

#include "base/clock.h"
#include "base/trace.h"

namespace zero::sharding {
namespace {

std::string_view name_of(double StepBreakdown::*part) {
  constexpr std::pair<double StepBreakdown::*, std::string_view> kNames[] = {
      {&StepBreakdown::gradient_copy, "gradient_copy"},
      {&StepBreakdown::reduce, "reduce"},
      {&StepBreakdown::gather, "gather"},
      {&StepBreakdown::wait, "wait"},
      {&StepBreakdown::norm, "norm"},
      {&StepBreakdown::update, "update"},
      {&StepBreakdown::publish, "publish"},
      {&StepBreakdown::islands, "islands"},
  };
  for (const auto& [named, name] : kNames) {
    if (named == part) return name;
  }
  return "?";
}

}  // namespace

Stopwatch::Stopwatch(Timeline& timeline, double StepBreakdown::*part, std::string_view what)
    : timeline_(timeline), part_(part), what_(what), begin_ns_(base::monotonic_ns()) {}

Stopwatch::~Stopwatch() {
  const std::int64_t end_ns = base::monotonic_ns();
  timeline_.times.*part_ += static_cast<double>(end_ns - begin_ns_) / base::kNanosPerSecond;
  if (timeline_.trace) timeline_.trace->add_span(name_of(part_), what_, begin_ns_, end_ns);
}

}  // namespace zero::sharding
