#pragma once
// GradientNorm: the 2-norm of all gradients of the model, the same bits on every rank, whatever the number of
// data-parallel ranks: sums of squares by block, added in the order of the flat layout.
#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/gradient_reducer.h"
#include "sharding/sharded_model.h"

namespace zero::sharding {

class GradientNorm {
 public:
  /// `model_parallel`: the ranks that have one copy of the model together, if those are several.
  GradientNorm(const ShardedModel& model, std::optional<Group> model_parallel);

  /// Of what `reducer` has summed, unscaled. What is split over model-parallel ranks counts from each of them, what is
  /// replicated once. `must_agree` is compared between them. Also the barrier after which no data-parallel rank reads
  /// another's old parameters. Allocates nothing after the first call. *Collective.* Throws ModelError on all
  /// model-parallel ranks when replicated parameters have other gradients on one, ConfigError when `must_agree`
  /// differs.
  double of(const GradientReducer& reducer, std::uint64_t must_agree);

  /// After of(): the first parameter with a gradient that is not finite; nothing where only other model-parallel ranks
  /// have one. The same on all data-parallel ranks. *Collective.*
  std::optional<int> first_not_finite(const GradientReducer& reducer) const;

  /// After of(): what each unit adds to the square of this data-parallel copy's norm; 0 of frozen units.
  const std::vector<double>& unit_sumsq() const { return unit_sumsq_; }

  std::int64_t received_nbytes() const { return received_nbytes_; }

 private:
  /// Sums of squares of one model-parallel rank.
  struct Part {
    double split = 0, replicated = 0;
    std::uint64_t must_agree = 0;
  };

  Part sum_blocks(const GradientReducer& reducer);
  double sum_parts(const Part& mine);

  const ShardedModel& model_;
  std::optional<Group> model_parallel_;
  std::vector<double> blocks_;
  std::vector<double> unit_sumsq_;
  std::vector<std::int64_t> counts_, offsets_;  ///< by rank
  std::vector<Part> parts_;                     ///< by model-parallel rank
  std::vector<std::int64_t> part_nbytes_;
  std::int64_t received_nbytes_ = 0;
};

}  // namespace zero::sharding
