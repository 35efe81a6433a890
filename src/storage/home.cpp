#include "storage/home.h"

#include "storage/cpu_allocator.h"

namespace zero::storage {

bool Home::reuses_blocks() const { return device_.is_cpu() && keeps_blocks(); }

}  // namespace zero::storage
