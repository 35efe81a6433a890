// Compile with -ffp-contract=off; -O3 (or the pragma below) makes the loops vectors. Each loop is
// written once, inlined into one function per instruction set, and chosen at run time. Explicit dispatch
// instead of target_clones: ifunc resolvers run before a sanitizer's run-time is ready.
#include "comm/reduce_kernels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/isa_limit.h"
#include "base/small_floats.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#pragma GCC optimize("fp-contract=off")
#endif

namespace zero::comm {
namespace {

#define ZERO_INLINE [[gnu::always_inline]] inline

using base::BFloat16;
using base::Float16;
using base::narrow;
using base::widen;

/// Elements whose partial sums stay in the first-level cache (16 KiB of fp32).
constexpr std::int64_t kBlockNumel = 4096;

template <ReduceOp kOp, class T>
ZERO_INLINE T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<T>) {  // wraps instead of being undefined
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  } else if constexpr (kOp == ReduceOp::kMax) {
    return (b > a) | (b != b) ? b : a;
  } else {
    return (b < a) | (b != b) ? b : a;
  }
}

struct Arguments {
  const void* const* slices;
  std::size_t count;
  std::int64_t numel;
  void* out;
  ReduceBase base;
};

/// Two slices: the sum needs no place of its own, and memory is read all the time.
template <class In, class Out, ReduceOp kOp, ReduceBase kBase>
ZERO_INLINE void reduce_two(const Arguments& arguments) {
  using Acc = decltype(widen(In{}));
  auto* const out = static_cast<Out*>(arguments.out);
  const auto* const a = static_cast<const In*>(arguments.slices[0]);
  const auto* const b = static_cast<const In*>(arguments.slices[1]);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < arguments.numel; ++i) {
    Acc sum = widen(a[i]);
    if constexpr (kBase == ReduceBase::kZero) sum = combine<kOp>(Acc(0), sum);
    if constexpr (kBase == ReduceBase::kOut) sum = combine<kOp>(Acc(widen(out[i])), sum);
    narrow(combine<kOp>(sum, Acc(widen(b[i]))), out[i]);
  }
}

template <class In, class Out, ReduceOp kOp>
ZERO_INLINE void reduce(const Arguments& arguments) {
  if (arguments.count == 2) {
    switch (arguments.base) {
      case ReduceBase::kFirst:
        return reduce_two<In, Out, kOp, ReduceBase::kFirst>(arguments);
      case ReduceBase::kZero:
        return reduce_two<In, Out, kOp, ReduceBase::kZero>(arguments);
      case ReduceBase::kOut:
        return reduce_two<In, Out, kOp, ReduceBase::kOut>(arguments);
    }
  }
  using Acc = decltype(widen(In{}));
  alignas(64) Acc acc[kBlockNumel];
  auto* const out_all = static_cast<Out*>(arguments.out);
  const std::size_t last = arguments.count - 1;
  for (std::int64_t begin = 0; begin < arguments.numel; begin += kBlockNumel) {
    const std::int64_t numel = arguments.numel - begin < kBlockNumel ? arguments.numel - begin : kBlockNumel;
    Out* const out = out_all + begin;
    const auto slice = [&](std::size_t r) { return static_cast<const In*>(arguments.slices[r]) + begin; };
    const In* const first = slice(0);
    // `ivdep`: out may be the very address of a slice, never a shifted one.
    if (arguments.base == ReduceBase::kFirst) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) acc[i] = widen(first[i]);
    } else if (arguments.base == ReduceBase::kZero) {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) acc[i] = combine<kOp>(Acc(0), Acc(widen(first[i])));
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) acc[i] = combine<kOp>(Acc(widen(out[i])), Acc(widen(first[i])));
    }
    for (std::size_t r = 1; r < last; ++r) {
      const In* const in = slice(r);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) acc[i] = combine<kOp>(acc[i], Acc(widen(in[i])));
    }
    if (last > 0) {
      const In* const in = slice(last);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) narrow(combine<kOp>(acc[i], Acc(widen(in[i]))), out[i]);
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < numel; ++i) narrow(acc[i], out[i]);
    }
  }
}

template <class In, class Out>
ZERO_INLINE void reduce_op(const Arguments& arguments, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce<In, Out, ReduceOp::kSum>(arguments);
    case ReduceOp::kMax:
      return reduce<In, Out, ReduceOp::kMax>(arguments);
    case ReduceOp::kMin:
      return reduce<In, Out, ReduceOp::kMin>(arguments);
  }
}

ZERO_INLINE void reduce_types(const Arguments& arguments, DType dtype, DType out_dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_op<float, float>(arguments, op);
    case DType::kFloat64:
      return reduce_op<double, double>(arguments, op);
    case DType::kInt64:
      return reduce_op<std::int64_t, std::int64_t>(arguments, op);
    case DType::kBFloat16:
      if (out_dtype == DType::kFloat32) return reduce_op<BFloat16, float>(arguments, op);
      return reduce_op<BFloat16, BFloat16>(arguments, op);
    case DType::kFloat16:
      if (out_dtype == DType::kFloat32) return reduce_op<Float16, float>(arguments, op);
      return reduce_op<Float16, Float16>(arguments, op);
    case DType::kByte:
      return;
  }
}

using Kernel = void (*)(const Arguments&, DType, DType, ReduceOp);

void reduce_baseline(const Arguments& arguments, DType dtype, DType out_dtype, ReduceOp op) {
  reduce_types(arguments, dtype, out_dtype, op);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void reduce_avx2(const Arguments& arguments, DType dtype, DType out_dtype, ReduceOp op) {
  reduce_types(arguments, dtype, out_dtype, op);
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void reduce_avx512(
    const Arguments& arguments, DType dtype, DType out_dtype, ReduceOp op) {
  reduce_types(arguments, dtype, out_dtype, op);
}
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2"); }
bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
constexpr Kernel reduce_avx2 = reduce_baseline;
constexpr Kernel reduce_avx512 = reduce_baseline;
bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }
#endif

Kernel kernel_for(KernelIsa isa) {
  switch (isa) {
    case KernelIsa::kAvx512:
      return reduce_avx512;
    case KernelIsa::kAvx2:
      return reduce_avx2;
    case KernelIsa::kBaseline:
      return reduce_baseline;
  }
  return reduce_baseline;
}

}  // namespace

KernelIsa best_isa() {
  static const KernelIsa best = [] {
    const auto limit = base::isa_limit();
    if (limit >= base::IsaLimit::kAvx512 && cpu_has_avx512()) return KernelIsa::kAvx512;
    if (limit >= base::IsaLimit::kAvx2 && cpu_has_avx2()) return KernelIsa::kAvx2;
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
      return cpu_has_avx2();
    case KernelIsa::kAvx512:
      return cpu_has_avx512();
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
  const Arguments arguments{slices.data(), slices.size(), numel, reduction.out, reduction.base};
  kernel_for(isa)(arguments, dtype, reduction.out_dtype, reduction.op);
}

void reduce_ordered(std::span<const void* const> slices, std::int64_t numel, DType dtype, const Reduction& reduction) {
  reduce_ordered_with(best_isa(), slices, numel, dtype, reduction);
}

}  // namespace zero::comm
