#pragma once
// How much the gradients of micro-batches differ from their mean: squared norms of each one's gradient, as backward
// brings it, beside that of the average (McCandlish and others, "An Empirical Model of Large-Batch Training", 2018,
// appendix A).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "observe/step_observer.h"
#include "zero/group.h"
#include "zero/report.h"

namespace zero::observe {

class GradientNoiseMeter final : public StepObserver {
 public:
  explicit GradientNoiseMeter(std::size_t parameters) : squares_(parameters, 0.0), gradients_(parameters, 0) {}

  /// Between an update and the next backward.
  void measure(bool on) { measures_ = on; }
  /// Of the last update; nullopt where it was not measured, or had one micro-batch, or its norm is not finite.
  const std::optional<GradientNoise>& of_last_update() const { return last_; }

  /// Throws ModelError where this micro-batch has had a backward: squares of parts of its gradient are not that of the
  /// whole.
  void before_backward() override;
  void begin_backward(bool) override { in_backward_.clear(); }
  void gradient(int parameter, const at::Tensor& gradient) override;
  void undo_backward() override;
  /// Throws ModelError where a parameter had several gradients, in backwards that nobody announced.
  void end_micro_batch() override;
  /// Sums in the order of the global micro-batches. *Collective* while it measures.
  void end_accumulation(const Accumulation& accumulation) override;
  void drop_gradients() override;

 private:
  std::optional<GradientNoise> end_window(Group& group, double norm, double averaging);

  bool measures_ = true;
  std::optional<GradientNoise> last_;
  std::vector<double> squares_;                              ///< by parameter, of this micro-batch
  std::vector<int> gradients_;                               ///< so many
  std::vector<std::pair<std::size_t, double>> in_backward_;  ///< parameter and square of each
  std::vector<double> micro_batches_;                        ///< of this window, on this rank
};

}  // namespace zero::observe
