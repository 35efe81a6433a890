#pragma once
// Files of checkpoints are read and written through a ring of buffers: some are with the disk while others are filled.
#include <cstddef>

namespace zero::checkpoint {

inline constexpr std::size_t kSlotNbytes = 8 << 20;
inline constexpr std::size_t kSlots = 4;

}  // namespace zero::checkpoint
