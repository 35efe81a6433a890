#include "base/isa_limit.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "zero/errors.h"

namespace zero::base {

IsaLimit isa_limit() {
  const char* text = std::getenv("ZERO_ISA");
  const std::string_view wanted = text != nullptr ? text : "";
  if (wanted.empty() || wanted == "avx512") return IsaLimit::kAvx512;
  if (wanted == "avx2") return IsaLimit::kAvx2;
  if (wanted == "generic") return IsaLimit::kGeneric;
  throw ConfigError(fmt::format("ZERO_ISA: got '{}', wanted generic, avx2 or avx512", wanted));
}

#ifdef ZERO_X86_KERNELS
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}
#else
bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }
#endif

}  // namespace zero::base
