#include "zero/lm/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "zero/errors.h"
#include "zero/train.h"

namespace zero {
namespace {

/// Windows that are computed together.
struct Batch {
  std::int64_t first = 0;  ///< token
  std::int64_t count = 0, length = 0;
  std::int64_t targets() const { return count * length; }
};

std::vector<Batch> batches_of(std::int64_t size, std::int64_t sequence_length) {
  constexpr std::int64_t kTokens = 2048;  // of a batch, about
  const std::int64_t at_once = std::max<std::int64_t>(1, kTokens / sequence_length);
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first + 1 < size;) {
    const std::int64_t left = size - 1 - first, windows = std::min(at_once, left / sequence_length);
    batches.push_back(windows > 0 ? Batch{first, windows, sequence_length} : Batch{first, 1, left});
    first += batches.back().targets();
  }
  return batches;
}

/// The sum over its targets; 0 where there is none.
double loss_of(const Batch& batch, std::int64_t counted, const Corpus& corpus,
               const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss) {
  const at::Tensor tokens = at::empty({batch.count, batch.length}, at::kLong), targets = at::empty_like(tokens);
  const auto wide = static_cast<std::size_t>(batch.length);
  for (std::int64_t i = 0; i < batch.count; ++i) {
    const std::int64_t first = batch.first + i * batch.length;
    corpus.copy(first, {tokens.mutable_data_ptr<std::int64_t>() + i * batch.length, wide});
    corpus.copy_targets(first + 1, {targets.mutable_data_ptr<std::int64_t>() + i * batch.length, wide});
  }
  const double mean = loss(tokens, targets).item<double>();
  return counted > 0 ? mean * static_cast<double>(counted) : 0;
}

}  // namespace

EvaluationResult evaluate(const Corpus& corpus, std::int64_t sequence_length, Group group,
                          const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& loss,
                          const std::function<void(double)>& progress) {
  if (corpus.size() < 2) throw ConfigError(fmt::format("{}: too short: nothing to predict", corpus.name()));
  const at::NoGradGuard no_grad;
  const std::vector<Batch> batches = batches_of(corpus.size(), sequence_length);
  const auto ranks = static_cast<std::size_t>(group.size()), rank = static_cast<std::size_t>(group.rank());
  EvaluationResult result;
  double sum = 0;
  std::int64_t done = 0;
  for (std::size_t first = 0; first < batches.size(); first += ranks) {
    // Past the end a rank computes the last batch again: the others may need it to take part.
    const Batch& here = batches[std::min(first + rank, batches.size() - 1)];
    const double mine = loss_of(here, corpus.count_targets(here.first + 1, here.targets()), corpus, loss);
    const std::vector<double> all = gather_values(group, {&mine, 1}, "loss");
    for (std::size_t i = first; i < std::min(first + ranks, batches.size()); ++i) {
      sum += all[i - first];
      result.targets += corpus.count_targets(batches[i].first + 1, batches[i].targets());
      done += batches[i].targets();
    }
    result.stop_signal = agreed_stop_signal(group);
    if (result.stop_signal != 0) break;
    progress(static_cast<double>(done) / static_cast<double>(corpus.size() - 1));
  }
  if (result.targets == 0 && result.stop_signal == 0)
    throw ConfigError(fmt::format("{}: nothing to predict: all of its tokens are context", corpus.name()));
  result.loss = sum / static_cast<double>(result.targets);
  return result;
}

}  // namespace zero
