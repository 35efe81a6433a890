#pragma once
// Validation loss: always the same sequences, shared out over the ranks.
#include <filesystem>
#include <functional>

#include <ATen/core/Tensor.h>

#include "zero/group.h"
#include "zero/lm/data.h"

namespace zero {

class Validation {
 public:
  /// Batches of 8 sequences, at most `max_batches` (0: all) of them. Throws ConfigError when the split is too
  /// small.
  Validation(const Corpus& corpus, std::int64_t sequence_length, std::int64_t max_batches);

  /// Mean loss in nats per target. `loss` maps tokens and targets [B, T] to a scalar mean; it is called without
  /// gradients, equally often on every rank, as it may be collective. The sum is taken in the order of the
  /// batches, so it does not depend on the number of ranks. *Collective.*
  double mean_loss(Group group, const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) const;

  std::int64_t batches() const { return batches_.batches(); }

 private:
  /// Where batches have different numbers of targets.
  double mean_over_targets(Group group,
                           const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) const;

  std::int64_t sequence_length_;
  std::int64_t batch_size_;
  ValidationBatches batches_;
};

}  // namespace zero
