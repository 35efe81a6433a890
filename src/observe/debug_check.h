#pragma once
// DebugCheck: what "zerotorch.debug_observer" asks for: at every operator, that no released parameter is read.
#include "intercept/debug_observer.h"
#include "observe/step_observer.h"

namespace zero::observe {

class DebugCheck final : public StepObserver {
 public:
  /// Throws InternalError with what was seen since the last step.
  void begin_step() override;

 private:
  intercept::DebugObserver observer_;
};

}  // namespace zero::observe
