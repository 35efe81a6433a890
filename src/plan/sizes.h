#pragma once
// Sizes that the user leaves out.
#include "zero/plan.h"

namespace zero::plan {

inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 24;  ///< of a width, a vocabulary, a sequence
inline constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;
inline constexpr int kMostRanks = 1'000'000;

/// Every size filled in and checked. Throws ConfigError.
Transformer with_defaults(Transformer shape);

}  // namespace zero::plan
