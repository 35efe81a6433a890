#include "optim/kernels.h"

#include "base/isa_limit.h"

namespace zero::optim {
namespace {

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return base::cpu_has_avx2();
    case Isa::kAvx512:
      return base::cpu_has_avx512();
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
