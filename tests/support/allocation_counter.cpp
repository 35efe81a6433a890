#include "support/allocation_counter.h"

#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t nbytes);
void* __libc_calloc(std::size_t count, std::size_t nbytes);
void* __libc_realloc(void* pointer, std::size_t nbytes);
void* __libc_memalign(std::size_t alignment, std::size_t nbytes);
}

namespace {
thread_local std::int64_t t_allocations = 0;
}

extern "C" {
void* malloc(std::size_t nbytes) {
  ++t_allocations;
  return __libc_malloc(nbytes);
}
void* calloc(std::size_t count, std::size_t nbytes) {
  ++t_allocations;
  return __libc_calloc(count, nbytes);
}
void* realloc(void* pointer, std::size_t nbytes) {
  ++t_allocations;
  return __libc_realloc(pointer, nbytes);
}
void* memalign(std::size_t alignment, std::size_t nbytes) {
  ++t_allocations;
  return __libc_memalign(alignment, nbytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t nbytes) { return memalign(alignment, nbytes); }
int posix_memalign(void** pointer, std::size_t alignment, std::size_t nbytes) {
  void* const found = memalign(alignment, nbytes);
  if (!found) return ENOMEM;
  *pointer = found;
  return 0;
}
}

namespace zero::testing {
std::int64_t allocations_of_this_thread() { return t_allocations; }
}  // namespace zero::testing
