// Each loop is written once and inlined into one function per instruction set.
#include "kernel_probes.h"

#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace bench {
namespace {

#define ZERO_INLINE [[gnu::always_inline]] inline

using zero::DType;
using zero::optim::UpdateArgs;
using U16 = std::uint16_t;
using U32 [[gnu::may_alias]] = std::uint32_t;

/// Zero, but the compiler does not know.
volatile std::uint32_t always_zero = 0;
volatile std::uint32_t read_result = 0;

enum class Weights { kMaster, kMasterAndLow, kSplit };

template <Weights kWeights>
ZERO_INLINE void adam(const UpdateArgs& args) {
  const std::uint32_t mask = always_zero;
  auto* __restrict master = reinterpret_cast<U32*>(args.master);
  auto* __restrict exp_avg = static_cast<U32*>(args.states[0]);
  auto* __restrict exp_avg_sq = static_cast<U32*>(args.states[1]);
  const auto* __restrict gradient = reinterpret_cast<const U32*>(args.gradient);
  U16* __restrict low = static_cast<U16*>(args.low);
  U16* __restrict remainder = args.remainder;
  for (std::int64_t i = 0; i < args.numel; ++i) {
    const std::uint32_t g = gradient[i] & mask;
    exp_avg[i] = exp_avg[i] ^ g;
    exp_avg_sq[i] = exp_avg_sq[i] ^ g;
    if constexpr (kWeights == Weights::kSplit) {
      low[i] = static_cast<U16>(low[i] ^ g);
      remainder[i] = static_cast<U16>(remainder[i] ^ g);
    } else {
      const std::uint32_t w = master[i] ^ g;
      master[i] = w;
      if constexpr (kWeights == Weights::kMasterAndLow) low[i] = static_cast<U16>(w >> 16);
    }
  }
}

template <class T, bool kFour>
ZERO_INLINE void reduce_typed(float* accumulator, const void* const* slices, std::int64_t numel, bool first) {
  const std::uint32_t mask = always_zero;
  auto* __restrict out = reinterpret_cast<U32*>(accumulator);
  const T* __restrict a = static_cast<const T*>(slices[0]);
  const T* __restrict b = static_cast<const T*>(slices[1]);
  const T* __restrict c = static_cast<const T*>(slices[kFour ? 2 : 0]);
  const T* __restrict d = static_cast<const T*>(slices[kFour ? 3 : 0]);
  const auto of_all = [&](std::int64_t i) {
    const std::uint32_t two = static_cast<std::uint32_t>(a[i]) ^ b[i];
    return kFour ? two ^ c[i] ^ d[i] : two;
  };
  if (first) {
    for (std::int64_t i = 0; i < numel; ++i) out[i] = of_all(i);
  } else {
    for (std::int64_t i = 0; i < numel; ++i) out[i] = out[i] ^ (of_all(i) & mask);
  }
}

template <bool kFour>
ZERO_INLINE void reduce_some(float* accumulator, const void* const* slices, DType dtype, std::int64_t numel,
                             bool first) {
  dtype == DType::kFloat32 ? reduce_typed<U32, kFour>(accumulator, slices, numel, first)
                           : reduce_typed<U16, kFour>(accumulator, slices, numel, first);
}

ZERO_INLINE void reduce(float* accumulator, std::span<const void* const> slices, DType dtype, std::int64_t numel,
                        bool first) {
  slices.size() == 4 ? reduce_some<true>(accumulator, slices.data(), dtype, numel, first)
                     : reduce_some<false>(accumulator, slices.data(), dtype, numel, first);
}

ZERO_INLINE void sum_onto(void* onto, const void* other, std::size_t nbytes) {
  const std::uint32_t mask = always_zero;
  auto* __restrict out = static_cast<U32*>(onto);
  const auto* __restrict in = static_cast<const U32*>(other);
  for (std::size_t i = 0; i < nbytes / 4; ++i) out[i] = out[i] ^ (in[i] & mask);
}

ZERO_INLINE void read(const void* data, std::size_t nbytes) {
  typedef std::uint32_t Line [[gnu::vector_size(64), gnu::may_alias]];
  const auto* in = static_cast<const Line*>(data);
  Line a = {}, b = {}, c = {}, d = {};  // one would wait for itself
  for (std::size_t i = 0; i + 4 <= nbytes / sizeof(Line); i += 4) {
    a ^= in[i];
    b ^= in[i + 1];
    c ^= in[i + 2];
    d ^= in[i + 3];
  }
  a ^= b ^ c ^ d;
  std::uint32_t all = 0;
  for (int i = 0; i < 16; ++i) all ^= a[i];
  read_result = all;
}

ZERO_INLINE void streams(std::span<void* const> written, std::span<const std::size_t> nbytes, const void* gradient,
                         std::size_t gradient_nbytes, std::int64_t blocks) {
  const std::uint32_t mask = always_zero;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const auto* __restrict g = reinterpret_cast<const U32*>(static_cast<const char*>(gradient) +
                                                            static_cast<std::size_t>(block) * gradient_nbytes);
    for (std::size_t s = 0; s < written.size(); ++s) {
      auto* __restrict out =
          reinterpret_cast<U32*>(static_cast<char*>(written[s]) + static_cast<std::size_t>(block) * nbytes[s]);
      for (std::size_t i = 0; i < nbytes[s] / 4; ++i) out[i] = out[i] ^ (g[i] & mask);
    }
  }
}

#define ZERO_PROBES(ISA, TARGET)                                                                                       \
  TARGET void adam_master_##ISA(const UpdateArgs& args) { adam<Weights::kMaster>(args); }                              \
  TARGET void adam_master_and_low_##ISA(const UpdateArgs& args) { adam<Weights::kMasterAndLow>(args); }                \
  TARGET void adam_split_##ISA(const UpdateArgs& args) { adam<Weights::kSplit>(args); }                                \
  TARGET void reduce_##ISA(float* accumulator, std::span<const void* const> slices, DType dtype, std::int64_t numel,   \
                           bool first) {                                                                               \
    reduce(accumulator, slices, dtype, numel, first);                                                                  \
  }                                                                                                                    \
  TARGET void sum_onto_##ISA(void* onto, const void* other, std::size_t nbytes) { sum_onto(onto, other, nbytes); }     \
  TARGET void read_##ISA(const void* data, std::size_t nbytes) { read(data, nbytes); }                                 \
  TARGET void streams_##ISA(std::span<void* const> written, std::span<const std::size_t> nbytes, const void* gradient, \
                            std::size_t gradient_nbytes, std::int64_t blocks) {                                        \
    streams(written, nbytes, gradient, gradient_nbytes, blocks);                                                       \
  }                                                                                                                    \
  constexpr Probes k_##ISA = {                                                                                         \
      &adam_master_##ISA, &adam_master_and_low_##ISA, &adam_split_##ISA, &reduce_##ISA, &sum_onto_##ISA, &read_##ISA,  \
      &streams_##ISA};

ZERO_PROBES(generic, )
#if defined(__x86_64__)
ZERO_PROBES(avx2, [[gnu::target("avx2")]])
ZERO_PROBES(avx512, [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]])
#endif

}  // namespace

const Probes& probes_for(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "avx512") return k_avx512;
  if (isa == "avx2") return k_avx2;
#endif
  return k_generic;
}

}  // namespace bench
