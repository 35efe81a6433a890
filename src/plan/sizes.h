#pragma once
// Sizes that the user leaves out, and how large they may be.
#include <cmath>

#include "zero/plan.h"

namespace zero::plan {

inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostSize = std::int64_t{1} << 24;  ///< of a width, a vocabulary, a sequence
inline constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;
inline constexpr int kMostRanks = 1'000'000;

/// Estimates of models that are out of reach are too large for a count.
inline std::int64_t to_nbytes(double nbytes) { return std::llround(nbytes < 9e18 ? nbytes : 9e18); }

/// Every size filled in and checked. Throws ConfigError.
Transformer with_defaults(Transformer shape);

}  // namespace zero::plan
