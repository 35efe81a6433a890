#include "layout/tensor_rounds.h"

#include <numeric>

namespace zero::layout {

TensorRounds plan_rounds(std::span<const TensorPlace> tensors, const std::vector<std::vector<std::int64_t>>& cuts) {
  TensorRounds plan;
  if (tensors.empty()) return plan;
  const std::size_t world = cuts.front().size() - 1;
  const auto part = [&](std::size_t tensor, std::size_t rank) {
    const auto& its = cuts[static_cast<std::size_t>(tensors[tensor].unit)];
    return intersect(tensors[tensor].range, {its[rank], its[rank + 1]}).numel();
  };
  std::vector<std::size_t> round_of(world, 0);  // the next one in which a rank has nothing yet
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::size_t owner = 0;
    for (std::size_t rank = 1; rank < world; ++rank) {
      if (part(t, rank) > part(t, owner)) owner = rank;
    }
    plan.owner.push_back(static_cast<int>(owner));
    if (part(t, owner) == tensors[t].range.numel()) {
      plan.local.push_back(static_cast<int>(t));
      continue;
    }
    const std::size_t round = round_of[owner]++;
    if (round == plan.rounds.size()) {
      const std::vector<std::int64_t> nothing(world, 0);
      plan.rounds.push_back({std::vector<int>(world, -1), nothing, nothing});
    }
    plan.rounds[round].tensor_of[owner] = static_cast<int>(t);
    plan.largest_numel = std::max(plan.largest_numel, tensors[t].range.numel());
  }
  for (TensorRound& round : plan.rounds) {
    for (std::size_t owner = 0; owner < world; ++owner) {
      if (round.tensor_of[owner] < 0) continue;
      for (std::size_t rank = 0; rank < world; ++rank) {
        if (rank == owner) continue;
        const std::int64_t numel = part(static_cast<std::size_t>(round.tensor_of[owner]), rank);
        round.to_owner[owner] = std::max(round.to_owner[owner], numel);
        round.from_owner[rank] = std::max(round.from_owner[rank], numel);
      }
    }
    for (const auto* counts : {&round.to_owner, &round.from_owner}) {
      plan.send_numel = std::max(plan.send_numel, std::accumulate(counts->begin(), counts->end(), std::int64_t{0}));
    }
  }
  return plan;
}

}  // namespace zero::layout
