#pragma once
// How much the gradients of micro-batches differ from their mean: squared norms of each one's gradient, as backward
// brings it, beside that of the average (McCandlish and others, "An Empirical Model of Large-Batch Training", 2018,
// appendix A).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "zero/group.h"
#include "zero/report.h"

namespace zero::engine {

class GradientNoiseMeter {
 public:
  explicit GradientNoiseMeter(std::size_t parameters) : squares_(parameters, 0.0), gradients_(parameters, 0) {}

  /// A gradient of a parameter in this micro-batch, before it is added to others.
  void add(int parameter, const at::Tensor& gradient);
  /// Throws ModelError where this micro-batch has had a backward: squares of parts of its gradient are not that of the
  /// whole.
  void check_first_backward() const;
  void begin_backward() { in_backward_.clear(); }
  /// The backward has failed, and what it added is taken back.
  void undo_backward();
  /// Throws ModelError where a parameter had several gradients, in backwards that nobody announced.
  void end_micro_batch();
  /// What was added since the last update was dropped.
  void forget();
  /// Ends the window of an update whose averaged gradient has the norm `norm`; `averaging` makes one of a sum. Nullopt
  /// where it had one micro-batch only, or the norm is not finite. Sums in the order of the global micro-batches.
  /// *Collective.*
  std::optional<GradientNoise> end_window(Group group, double norm, double averaging);

 private:
  std::vector<double> squares_;                              ///< by parameter, of this micro-batch
  std::vector<int> gradients_;                               ///< so many
  std::vector<std::pair<std::size_t, double>> in_backward_;  ///< parameter and square of each
  std::vector<double> micro_batches_;                        ///< of this window, on this rank
};

}  // namespace zero::engine
