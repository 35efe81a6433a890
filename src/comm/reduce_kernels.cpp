#include "comm/reduce_kernels.h"

#include "base/check.h"
#include "base/isa_limit.h"
#include "comm/reduce_loops.h"

namespace zero::comm {
namespace {

#ifdef ZERO_X86_KERNELS
constexpr ReduceLoops *kAvx2 = avx2::reduce, *kAvx512 = avx512::reduce;
#else
constexpr ReduceLoops *kAvx2 = generic::reduce, *kAvx512 = generic::reduce;
#endif

ReduceLoops* loops_for(KernelIsa isa) {
  switch (isa) {
    case KernelIsa::kAvx512:
      return kAvx512;
    case KernelIsa::kAvx2:
      return kAvx2;
    case KernelIsa::kBaseline:
      return generic::reduce;
  }
  return generic::reduce;
}

}  // namespace

KernelIsa best_isa() {
  static const KernelIsa best = [] {
    const auto limit = base::isa_limit();
    if (limit >= base::IsaLimit::kAvx512 && base::cpu_has_avx512()) return KernelIsa::kAvx512;
    if (limit >= base::IsaLimit::kAvx2 && base::cpu_has_avx2()) return KernelIsa::kAvx2;
    return KernelIsa::kBaseline;
  }();
  return best;
}

std::string_view isa_name(KernelIsa isa) {
  switch (isa) {
    case KernelIsa::kBaseline:
      return "baseline";
    case KernelIsa::kAvx2:
      return "avx2";
    case KernelIsa::kAvx512:
      return "avx512";
  }
  return "?";
}

bool isa_supported(KernelIsa isa) {
  switch (isa) {
    case KernelIsa::kBaseline:
      return true;
    case KernelIsa::kAvx2:
      return base::cpu_has_avx2();
    case KernelIsa::kAvx512:
      return base::cpu_has_avx512();
  }
  return false;
}

bool reduce_supported(DType dtype, DType out_dtype) {
  if (dtype == DType::kByte || out_dtype == DType::kByte) return false;
  return dtype == out_dtype ||
         (out_dtype == DType::kFloat32 && (dtype == DType::kBFloat16 || dtype == DType::kFloat16));
}

void reduce_ordered_with(KernelIsa isa, std::span<const void* const> slices, std::int64_t numel, DType dtype,
                         const Reduction& reduction) {
  ZERO_CHECK(reduce_supported(dtype, reduction.out_dtype), "reduction of {} to {}", dtype_name(dtype),
             dtype_name(reduction.out_dtype));
  ZERO_CHECK(isa_supported(isa), "this CPU has no {}", isa_name(isa));
  if (numel == 0) return;
  const SlicesToReduce all{slices.data(), slices.size(), numel, reduction.out, reduction.base};
  loops_for(isa)(all, dtype, reduction.out_dtype, reduction.op);
}

void reduce_ordered(std::span<const void* const> slices, std::int64_t numel, DType dtype, const Reduction& reduction) {
  reduce_ordered_with(best_isa(), slices, numel, dtype, reduction);
}

}  // namespace zero::comm
