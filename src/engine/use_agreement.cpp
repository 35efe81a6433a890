#include "engine/use_agreement.h"

namespace zero::engine {

void UseAgreement::agree(Groups& groups, sharding::GradientReducer& reducer, std::size_t parameters) {
  if (!groups.model_parallel) return;
  const auto ranks = static_cast<std::size_t>(groups.model_parallel_size());
  mine_.resize(parameters);
  all_.resize(parameters * ranks);
  counts_.assign(ranks, static_cast<std::int64_t>(parameters));
  for (std::size_t p = 0; p < parameters; ++p) mine_[p] = reducer.used_in_window(static_cast<int>(p));
  Group& copy = *groups.model_parallel;
  copy.all_gather(mine_.data(), all_.data(), counts_, DType::kByte, {.label = "used parameters"}).wait();
  for (std::size_t p = 0; p < parameters; ++p) {
    bool used = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) used |= all_[rank * parameters + p] != 0;
    if (!used || mine_[p]) continue;
    if (reducer.window_is_empty()) reducer.hold_sums();
    reducer.count_as_used(static_cast<int>(p));
  }
}

}  // namespace zero::engine
