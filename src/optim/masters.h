#pragma once
// How a rank keeps the master weights of what it updates, with the same bits in each way. No libtorch.
#include <cstdint>

#include "zero/dtype.h"

namespace zero::optim {

enum class Masters : std::uint8_t {
  kParameters,  ///< the parameters themselves, of the masters' dtype: 0 bytes
  kRemainders,  ///< 16 bits beside bf16 parameters, for masters in fp32: 2 bytes
  kOwn,         ///< a state of their own: 4 or 2 bytes
};

/// `writes`: the rank writes all parameters that it updates, and nobody else does. `splits`: the device's kernels can
/// split a master in a parameter and a remainder.
constexpr Masters choose_masters(DType param, DType master, bool writes, bool splits) {
  if (!writes) return Masters::kOwn;
  if (param == master) return Masters::kParameters;
  return param == DType::kBFloat16 && splits ? Masters::kRemainders : Masters::kOwn;
}

/// Bytes of an element.
constexpr std::int64_t master_nbytes(Masters masters, DType master) {
  if (masters == Masters::kParameters) return 0;
  return masters == Masters::kRemainders ? 2 : static_cast<std::int64_t>(element_nbytes(master));
}

}  // namespace zero::optim
