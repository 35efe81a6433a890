#pragma once
// The CPU passes over flat shards. Each exists for plain x86-64/any CPU, AVX2 and AVX-512, compiled from one
// source without contraction of multiply and add, and gives the same bits in all three: elementwise IEEE
// operations in a fixed order, sums in fixed lanes. Chosen once at run time.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "optim/rule.h"
#include "zero/dtype.h"

namespace zero::optim {

/// Sums of squares are made per block of this many elements.
inline constexpr std::int64_t kSumBlockNumel = 1024;

/// One ordered reduction onto the owner's shard: accumulator = ((base + slice_0) + slice_1) + ... in fp32.
struct ReduceArgs {
  void* accumulator = nullptr;  ///< [numel] of `accumulator_dtype`
  /// In rank order, [numel] each, of `dtype`. None: what the accumulator holds is the one slice, to be added to 0.
  std::span<const void* const> slices;
  DType dtype = DType::kFloat32;  ///< kFloat16, kBFloat16 or kFloat32
  std::int64_t numel = 0;         ///< multiple of kSumBlockNumel
  bool first = false;             ///< base is 0 instead of the accumulator's value
  double* block_sumsq = nullptr;  ///< [numel / kSumBlockNumel], sums of squares of the result; or null
  /// Or kFloat16, kBFloat16: rounded to nearest even after every slice, so that it does not matter which of
  /// them came in an earlier call.
  DType accumulator_dtype = DType::kFloat32;
};

struct Kernels {
  const char* isa;
  void (*reduce)(const ReduceArgs&);
  /// Updates in fp32, by algorithm; states in the order of the functor's arguments (optim/element_rules.inc), null
  /// where the hyper-parameters leave one out. Of algorithms with two passes it is the first, which only reads weights.
  std::array<void (*)(const UpdateArgs&, const Hyper&), kAlgorithms> updates;
  void (*take_direction)(const UpdateArgs&, const Hyper&);
  /// Sums of squares per block of [numel] fp32 elements.
  void (*block_sumsq)(const float* values, std::int64_t numel, double* out);
  /// bf16 parameters from their masters.
  void (*round_master)(const float* master, std::uint16_t* low, std::int64_t numel);
  /// fp16 parameters from their masters, to nearest even.
  void (*round_to_half)(const float* master, void* low, std::int64_t numel);
  /// Masters as parameters and remainders, and back.
  void (*split_master)(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel);
  void (*join_master)(const std::uint16_t* low, const std::uint16_t* remainder, float* master, std::int64_t numel);
  /// States of [numel] elements, whole blocks of their format, to and from fp32, each rounded to nearest.
  void (*widen_state)(StateFormat format, const void* in, float* out, std::int64_t numel);
  void (*narrow_state)(StateFormat format, const float* in, void* out, std::int64_t numel);
  /// bf16 from fp32; UpdateArgs::Narrow says how, `key` is of seed and step.
  void (*round_stochastically)(const float* in, std::uint16_t* out, std::int64_t numel, std::uint64_t first_element,
                               std::uint64_t key);
  /// memcpy that does not read the destination into the cache; for data that another rank reads next.
  void (*copy)(void* out, const void* in, std::size_t nbytes);

  auto update_of(Algorithm algorithm) const { return updates[static_cast<std::size_t>(algorithm)]; }
};

enum class Isa : std::uint8_t { kGeneric, kAvx2, kAvx512 };

/// The best set this CPU runs (ZERO_ISA=generic|avx2|avx512 lowers it).
const Kernels& kernels();
/// A given set, for tests; null when this CPU cannot run it.
const Kernels* kernels_for(Isa isa);

namespace generic {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

}  // namespace zero::optim
