#pragma once
// DebugObserver: watches every operator of the process and notes any that sees a released parameter.
//
// The fallback checks its own hand-over; this watches from outside, through libtorch's RecordFunction, what
// happens inside composite operators, where the fallback no longer looks. RecordFunction swallows
// exceptions, so findings are kept for the engine to throw. Slow: for tests and debugging.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zero::intercept {

class DebugObserver {
 public:
  DebugObserver();
  ~DebugObserver();
  DebugObserver(const DebugObserver&) = delete;
  DebugObserver& operator=(const DebugObserver&) = delete;

  /// "operator: parameter" for every sighting since the last call. Thread-safe.
  std::vector<std::string> take_violations();
  /// Operators seen with a parameter of ours among their arguments. Thread-safe.
  std::int64_t operators_checked() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::uint64_t handle_ = 0;
};

}  // namespace zero::intercept
