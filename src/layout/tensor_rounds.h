#pragma once
// Whole tensors out of shards, and back: which rank brings which tensor together, and what moves for it. Pure
// integer maths.
//
// A tensor is brought together by the rank that holds most of it. A round is at most one tensor of each rank,
// so that all work at the same time: first every rank sends its parts to the owners, then the owners send the
// results back. Slices of an exchange have the same length from every sender, so they are as long as the
// longest part.
#include <cstdint>
#include <span>
#include <vector>

#include "layout/shard.h"

namespace zero::layout {

/// Where a tensor lies in its unit.
struct TensorPlace {
  int unit = 0;
  Range range;
};

struct TensorRound {
  std::vector<int> tensor_of;            ///< [N] by rank: index of what it brings together, -1: nothing
  std::vector<std::int64_t> to_owner;    ///< [N] elements that a rank sends to rank r
  std::vector<std::int64_t> from_owner;  ///< [N] elements that an owner sends to rank r
};

struct TensorRounds {
  std::vector<int> owner;           ///< by tensor
  std::vector<TensorRound> rounds;  ///< of tensors that lie on several ranks
  std::vector<int> local;           ///< tensors that lie on their owner alone
  std::int64_t largest_numel = 0;   ///< of a tensor of the rounds
  std::int64_t send_numel = 0;      ///< most elements that a rank sends at once
};

/// `cuts[u]`: [N+1] the shards of unit u.
TensorRounds plan_rounds(std::span<const TensorPlace> tensors, const std::vector<std::vector<std::int64_t>>& cuts);

}  // namespace zero::layout
