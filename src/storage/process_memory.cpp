// The public face of what the system says of memory.
#include "base/process_memory.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "comm/memory.h"
#include "storage/cpu_allocator.h"
#include "zero/memory.h"

namespace zero {

ProcessMemory process_memory() {
  return {base::resident_nbytes(), base::proportional_nbytes(), base::peak_proportional_nbytes()};
}

std::int64_t resident_nbytes() { return base::resident_nbytes(); }

void reset_peak_memory() {
  storage::reset_activation_peak();
  base::reset_peak();
}

std::int64_t available_memory_nbytes() {
  const std::uint64_t available = comm::available_memory_nbytes();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (available > kMost) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(available));
}

}  // namespace zero
