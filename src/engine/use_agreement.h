#pragma once
// Which parameters were used, over model-parallel ranks.
#include <cstdint>
#include <vector>

#include "engine/groups.h"
#include "sharding/gradient_reducer.h"

namespace zero::engine {

class UseAgreement {
 public:
  /// A parameter of which one model-parallel rank has used its part was used: its other parts have gradients of zero.
  /// *Collective* over model-parallel ranks.
  void agree(Groups& groups, sharding::GradientReducer& reducer, std::size_t parameters);

 private:
  std::vector<std::uint8_t> mine_, all_;  ///< by parameter; by rank and parameter
  std::vector<std::int64_t> counts_;      ///< by rank
};

}  // namespace zero::engine
