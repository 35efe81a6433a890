#pragma once
// Copies of gathered slices.
#include <cstddef>

namespace zero::comm {

/// As memcpy, but large blocks do not first read the lines they overwrite: on the machines measured up to
/// twice as fast beyond the cache. Local, thread-safe.
void copy_bytes(void* target, const void* source, std::size_t nbytes);

}  // namespace zero::comm
