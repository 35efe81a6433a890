#pragma once
// Products of bf16 and fp16 tensors on the CPU. Few processors have instructions for them (bf16: AVX512_BF16, AMX;
// fp16: AVX512_FP16, AMX-FP16); on all others libtorch multiplies 16-bit matrices 10 to 40 times slower than fp32 ones.
// There zerotorch registers kernels of its own with libtorch's dispatcher: operands are widened to fp32, which is
// exact, products are summed in fp32, and every result is rounded once. An engine does so by itself
// (zerotorch.cpu_products); this header is for programs that compute without one.
#include <cstdint>
#include <memory>

#include "zero/dtype.h"

namespace zero {

class Group;

enum class CpuProducts : std::uint8_t {
  kAuto,    ///< kNative where the processor has instructions for the dtype, else kFp32
  kNative,  ///< libtorch's own kernels
  kFp32,    ///< in fp32
};

/// Speed of square matrix products, in floating-point operations per second with the threads of the caller.
struct ProductSpeed {
  double native = 0;   ///< by libtorch's own kernels
  double in_fp32 = 0;  ///< by zerotorch's; 0 for kFloat32
};

/// Measures products of matrices of `edge` x `edge` elements in the layouts of a forward and a backward pass. Takes
/// about 10 ms with the default, 64 times as long with 512 where a dtype has no instructions. `dtype`: kFloat32,
/// kBFloat16 or kFloat16. *Local.* Throws ConfigError for another dtype.
ProductSpeed measure_cpu_products(DType dtype, int edge = 128);

/// While it lives, products of `dtype` (kBFloat16 or kFloat16) on the CPU of this process are computed one way: mm,
/// addmm, bmm, baddbmm and addmv (to which linear, matmul and einsum come down), fused attention, convolutions, LSTMs,
/// and their gradients. For all threads, and for tensors of every module. Several may live at a time if they
/// agree.
class CpuProductsScope {
 public:
  /// *Local.* kAuto follows a scope or engine that is open, else it is faster_cpu_products(). Throws
  /// ConfigError for another dtype, and while another scope or engine of this process computes products of `dtype` the
  /// other way.
  CpuProductsScope(CpuProducts wanted, DType dtype);
  ~CpuProductsScope();
  CpuProductsScope(CpuProductsScope&&) noexcept;
  CpuProductsScope& operator=(CpuProductsScope&&) noexcept;

  /// kNative or kFp32.
  CpuProducts chosen() const;
  DType dtype() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A scope that is one way on all ranks of `group`: kAuto is what it is for rank 0, whose processor decides for all, as
/// their products are parts of one sum. *Collective.* Throws as CpuProductsScope().
CpuProductsScope cpu_products_of_all(CpuProducts wanted, DType dtype, Group& group);

/// What kAuto takes for `dtype`: by the processor's instructions and oneDNN's ONEDNN_MAX_CPU_ISA, found at the first
/// call; on other processors than x86-64 by a measurement. *Local*, any thread.
CpuProducts faster_cpu_products(DType dtype);

}  // namespace zero
