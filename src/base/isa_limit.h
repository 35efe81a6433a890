#pragma once
// ZERO_ISA: the most that any kernel of the library may use.
#include <cstdint>

namespace zero::base {

enum class IsaLimit : std::uint8_t { kGeneric, kAvx2, kAvx512 };

/// What ZERO_ISA says; avx512 without it. Throws ConfigError for another word than generic, avx2 and avx512.
IsaLimit isa_limit();

/// What loops are compiled for that are compiled per instruction set (src/CMakeLists.txt): whether this CPU has all.
bool cpu_has_avx2();
bool cpu_has_avx512();

}  // namespace zero::base
