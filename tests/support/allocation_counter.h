#pragma once
// Counts what a thread takes from the heap. For executables that link allocation_counter.cpp, which stands in
// front of the C library's malloc for this process.
#include <cstdint>

namespace zero::testing {

/// Calls of malloc, calloc, realloc and aligned allocations (operator new included) of the calling thread so
/// far.
std::int64_t allocations_of_this_thread();

}  // namespace zero::testing
