#include "comm/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace zero::comm {
namespace {

#if defined(__x86_64__)

/// Below this memcpy is as good.
constexpr std::size_t kLargeNbytes = 1u << 20;
constexpr std::size_t kLine = 64;

/// "Enhanced REP MOVSB": the CPU moves whole lines and skips reading what is overwritten.
bool cpu_has_fast_string_copy() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & (1u << 9));
}

bool copy_large(std::byte* target, const std::byte* source, std::size_t nbytes) {
  static const bool fast = cpu_has_fast_string_copy();
  if (!fast || nbytes < kLargeNbytes) return false;
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine;
  std::memcpy(target, source, head);
  target += head;
  source += head;
  nbytes -= head;
  asm volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(nbytes) : : "memory");
  return true;
}

#else

bool copy_large(std::byte*, const std::byte*, std::size_t) { return false; }

#endif

}  // namespace

void copy_bytes(void* target, const void* source, std::size_t nbytes) {
  if (nbytes == 0 || copy_large(static_cast<std::byte*>(target), static_cast<const std::byte*>(source), nbytes)) return;
  std::memcpy(target, source, nbytes);
}

}  // namespace zero::comm
