#include "zero/lm/validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "zero/train.h"

namespace zero {
namespace {

constexpr std::int64_t kBatchSize = 8;

/// Smaller for a split that has no full batch.
std::int64_t batch_size_for(const Corpus& corpus, std::int64_t sequence_length) {
  return std::clamp<std::int64_t>(ValidationBatches::sequences_of(corpus, sequence_length), 1, kBatchSize);
}

}  // namespace

Validation::Validation(const Corpus& corpus, std::int64_t sequence_length, std::int64_t max_batches)
    : sequence_length_(sequence_length),
      batch_size_(batch_size_for(corpus, sequence_length)),
      batches_(corpus, sequence_length, batch_size_, max_batches) {}

double Validation::mean_loss(Group group,
                             const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) const {
  const at::NoGradGuard no_grad;
  const std::int64_t ranks = group.size(), count = batches_.batches();
  const at::Tensor tokens = at::empty({batch_size_, sequence_length_ + 1}, at::kLong);
  if (batches_.corpus().has_context()) return mean_over_targets(group, loss);
  std::vector<double> mine;
  for (std::int64_t first = 0; first < count; first += ranks) {
    // Past the end a rank computes the last batch again: the others may need it to take part.
    batches_.fill(std::min(first + group.rank(), count - 1), tokens.mutable_data_ptr<std::int64_t>());
    mine.push_back(loss(tokens.narrow(1, 0, sequence_length_), tokens.narrow(1, 1, sequence_length_)).item<double>());
  }
  const std::vector<double> all = gather_values(group, mine, "validation loss");
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += all[static_cast<std::size_t>(i % ranks) * mine.size() + i / ranks];
  return sum / static_cast<double>(count);
}

double Validation::mean_over_targets(
    Group group, const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) const {
  const std::int64_t ranks = group.size(), count = batches_.batches();
  const at::Tensor tokens = at::empty({batch_size_, sequence_length_ + 1}, at::kLong);
  const at::Tensor targets = at::empty({batch_size_, sequence_length_}, at::kLong);
  std::vector<double> mine;  // of each batch the number of its targets, and their losses' sum
  for (std::int64_t first = 0; first < count; first += ranks) {
    const std::int64_t counted =
        batches_.fill(std::min(first + group.rank(), count - 1), tokens.mutable_data_ptr<std::int64_t>(),
                      targets.mutable_data_ptr<std::int64_t>());
    const double mean = loss(tokens.narrow(1, 0, sequence_length_), targets).item<double>();
    mine.push_back(static_cast<double>(counted));
    mine.push_back(counted > 0 ? mean * static_cast<double>(counted) : 0);
  }
  const std::vector<double> all = gather_values(group, mine, "validation loss");
  double sum = 0, counted = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i % ranks) * mine.size() + 2 * static_cast<std::size_t>(i / ranks);
    counted += all[at];
    sum += all[at + 1];
  }
  return sum / counted;
}

}  // namespace zero
