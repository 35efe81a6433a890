#pragma once
// Ordered reductions of slices on the CPU. All versions give the same bits.
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/backend.h"
#include "zero/dtype.h"

namespace zero::comm {

/// Instruction sets the kernels exist for; the best one is used that the CPU has and ZERO_ISA allows.
enum class KernelIsa : std::uint8_t { kBaseline, kAvx2, kAvx512 };

std::string_view isa_name(KernelIsa isa);
bool isa_supported(KernelIsa isa);
/// What reduce_ordered() uses: the best the CPU has and ZERO_ISA allows. Throws ConfigError for another word
/// in ZERO_ISA than those it knows.
KernelIsa best_isa();

/// out[i] = ((base + in_0[i]) + in_1[i]) + ... for `numel` elements, in the order of `slices`; see
/// Reduction. fp32, bf16 and fp16 inputs are widened exactly and summed in fp32 without fused
/// multiply-adds; an fp32 sum that goes to bf16 or fp16 is rounded once, to nearest even (NaN becomes
/// the quiet NaN, as in PyTorch). fp64 and int64 sum in their own type. kMax and kMin keep NaN. `out`
/// may be the address of one of the slices when both have the same element size. Local; allocates nothing;
/// throws InternalError for a pair of types that is not supported (see reduce_supported).
void reduce_ordered(std::span<const void* const> slices, std::int64_t numel, DType dtype, const Reduction& reduction);

/// The same with a given instruction set, for tests. The CPU must have it.
void reduce_ordered_with(KernelIsa isa, std::span<const void* const> slices, std::int64_t numel, DType dtype,
                         const Reduction& reduction);

/// True for {fp32, bf16, fp16} -> fp32 and for each of fp32, bf16, fp16, fp64, int64 to itself.
bool reduce_supported(DType dtype, DType out_dtype);

}  // namespace zero::comm
