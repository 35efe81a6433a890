#include "sharding/gradient_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "zero/errors.h"

namespace zero::sharding {

GradientNorm::GradientNorm(const ShardedModel& model, std::optional<Group> model_parallel)
    : model_(model), model_parallel_(std::move(model_parallel)) {
  if (!model_parallel_) return;
  parts_.resize(static_cast<std::size_t>(model_parallel_->size()));
  part_nbytes_.assign(parts_.size(), sizeof(Part));
}

double GradientNorm::of(const GradientReducer& reducer, std::uint64_t must_agree) {
  Part mine = sum_blocks(reducer);
  mine.must_agree = must_agree;
  return std::sqrt(model_parallel_ ? sum_parts(mine) : mine.split + mine.replicated);
}

std::optional<int> GradientNorm::first_not_finite(const GradientReducer& reducer) const {
  const auto none = static_cast<std::int64_t>(model_.parameters.size());
  std::int64_t first = reducer.first_not_finite().value_or(static_cast<int>(none));
  Group group = model_.data_ranks;
  group.all_reduce(&first, 1, DType::kInt64, ReduceOp::kMin, {.label = "gradients that are not finite"}).wait();
  return first == none ? std::nullopt : std::optional(static_cast<int>(first));
}

GradientNorm::Part GradientNorm::sum_blocks(const GradientReducer& reducer) {
  Group group = model_.data_ranks;
  counts_.assign(static_cast<std::size_t>(group.size()), 0);
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (!model_.units[u].trainable) continue;
    for (int rank = 0; rank < group.size(); ++rank) counts_[rank] += reducer.shard_blocks(static_cast<int>(u), rank);
  }
  std::int64_t total = 0;
  offsets_.clear();
  for (const auto count : counts_) {
    offsets_.push_back(total);
    total += count;
  }
  blocks_.resize(static_cast<std::size_t>(total));
  group
      .all_gather(reducer.shard_block_sumsq().data(), blocks_.data(), counts_, DType::kFloat64,
                  {.label = "gradient norm"})
      .wait();
  received_nbytes_ += (total - counts_[group.rank()]) * static_cast<std::int64_t>(sizeof(double));
  // In the order of the flat layout, which does not depend on the number of ranks.
  auto& next = offsets_;
  Part part;
  unit_sumsq_.assign(model_.units.size(), 0.0);
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    if (!model_.units[u].trainable) continue;
    double& sum = model_.units[u].replicated ? part.replicated : part.split;
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::int64_t blocks = reducer.shard_blocks(static_cast<int>(u), rank);
      for (std::int64_t i = 0; i < blocks; ++i) {
        const double block = blocks_[next[rank]++];
        sum += block;
        unit_sumsq_[u] += block;
      }
    }
  }
  return part;
}

double GradientNorm::sum_parts(const Part& mine) {
  model_parallel_->all_gather(&mine, parts_.data(), part_nbytes_, DType::kByte, {.label = "gradient norm"}).wait();
  received_nbytes_ += static_cast<std::int64_t>((parts_.size() - 1) * sizeof(Part));
  constexpr double kRounding = 1e-4;  // of sums whose order libtorch's kernels choose
  const double replicated = parts_.front().replicated;
  double sum = replicated;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    sum += parts_[rank].split;
    if (parts_[rank].must_agree != parts_.front().must_agree) {
      throw ConfigError(fmt::format(
          "step(): model-parallel ranks 0 and {} would update differently: other learning rates, hyper-parameters, "
          "step groups, frozen parameters, or other values that were written into a parameter that is not split; do "
          "these alike on every rank",
          rank));
    }
    const double difference = std::abs(parts_[rank].replicated - replicated);
    if (difference > kRounding * std::max(parts_[rank].replicated, replicated)) {
      throw ModelError(fmt::format(
          "step(): the parameters that InitializeOptions::placement does not split have gradients of norm {:g} on "
          "model-parallel rank 0 and of norm {:g} on rank {}: sum their gradients, or those of the activations that "
          "reach them, over InitializeOptions::model_parallel in backward",
          std::sqrt(replicated), std::sqrt(parts_[rank].replicated), rank));
    }
  }
  return sum;
}

}  // namespace zero::sharding
