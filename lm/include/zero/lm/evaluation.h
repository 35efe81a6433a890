#pragma once
// The loss of a model on all of a text.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "zero/group.h"
#include "zero/lm/data.h"

namespace zero {

struct EvaluationResult {
  double loss = 0;           ///< nats a token
  std::int64_t targets = 0;  ///< tokens that were predicted: all but the first, and those that are context
  int stop_signal = 0;       ///< that has ended it early; 0: none
};

/// Mean loss over every token but the first, in windows of `sequence_length` tokens that do not see each other; the
/// last one may be shorter. `loss` maps tokens and targets [B, T] to a scalar mean, without gradients. The sum is taken
/// in the order of the text, so it does not depend on the number of ranks. `progress` is told the share that is done.
/// *Collective.* Throws ConfigError for a text of less than two tokens.
EvaluationResult evaluate(const Corpus& corpus, std::int64_t sequence_length, Group group,
                          const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss,
                          const std::function<void(double)>& progress);

}  // namespace zero
