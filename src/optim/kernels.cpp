#include "optim/kernels.h"

#include "base/isa_limit.h"

namespace zero::optim {
namespace {

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
#ifdef ZERO_X86_KERNELS
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512cd");
#else
    default:
      return false;
#endif
  }
  return false;
}

const Kernels& choose() {
  const auto limit = base::isa_limit();
  if (limit >= base::IsaLimit::kAvx512 && supported(Isa::kAvx512)) return *kernels_for(Isa::kAvx512);
  if (limit >= base::IsaLimit::kAvx2 && supported(Isa::kAvx2)) return *kernels_for(Isa::kAvx2);
  return generic::kKernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

const Kernels* kernels_for(Isa isa) {
  if (!supported(isa)) return nullptr;
#ifdef ZERO_X86_KERNELS
  if (isa == Isa::kAvx2) return &avx2::kKernels;
  if (isa == Isa::kAvx512) return &avx512::kKernels;
#endif
  return &generic::kKernels;
}

}  // namespace zero::optim
