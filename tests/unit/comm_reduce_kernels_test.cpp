// Ordered reductions: every instruction set against the plain reference, bit by bit.
#include "comm/reduce_kernels.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "conformance/reference.h"
#include "zero/errors.h"

namespace zero::comm::comm_reduce_kernels_test {
namespace {

using zero::testing::float_to_bf16;
using zero::testing::float_to_fp16;
using zero::testing::fp16_to_float;
using zero::testing::reduce_in_order;
using zero::testing::wild_data;
using Bytes = std::vector<std::byte>;

std::vector<KernelIsa> supported_isas() {
  std::vector<KernelIsa> isas;
  for (const KernelIsa isa : {KernelIsa::kBaseline, KernelIsa::kAvx2, KernelIsa::kAvx512}) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

std::vector<const void*> pointers(const std::vector<Bytes>& inputs) {
  std::vector<const void*> result;
  for (const Bytes& input : inputs) result.push_back(input.data());
  return result;
}

TEST(ReduceKernels, EveryInstructionSetGivesTheReferenceBits) {
  const std::pair<DType, DType> types[] = {{DType::kFloat32, DType::kFloat32}, {DType::kBFloat16, DType::kFloat32},
                                           {DType::kFloat16, DType::kFloat32}, {DType::kBFloat16, DType::kBFloat16},
                                           {DType::kFloat16, DType::kFloat16}, {DType::kFloat64, DType::kFloat64},
                                           {DType::kInt64, DType::kInt64}};
  std::uint64_t salt = 0;
  for (const auto& [dtype, out_dtype] : types) {
    for (const std::int64_t numel : {0, 1, 7, 31, 4096, 4097, 10'001}) {
      for (const std::size_t ranks : {1u, 2u, 3u, 4u, 5u, 9u}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
          for (const ReduceBase base : {ReduceBase::kZero, ReduceBase::kOut, ReduceBase::kFirst}) {
            if (base == ReduceBase::kOut && out_dtype != DType::kFloat32 && dtype != DType::kFloat64 &&
                dtype != DType::kInt64)
              continue;
            if (base == ReduceBase::kZero && element_nbytes(out_dtype) == 2) continue;
            ++salt;
            std::vector<Bytes> inputs;
            for (std::size_t r = 0; r < ranks; ++r)
              inputs.push_back(wild_data(dtype, numel, static_cast<int>(r), salt));
            const Bytes start = wild_data(out_dtype, numel, 9, salt);
            const Bytes zeros(start.size());
            const Bytes* reference_base = base == ReduceBase::kOut    ? &start
                                          : base == ReduceBase::kZero ? &zeros
                                                                      : nullptr;
            const Bytes expected = reduce_in_order(inputs, dtype, out_dtype, op, reference_base, 0, numel);
            for (const KernelIsa isa : supported_isas()) {
              Bytes out = start;
              reduce_ordered_with(isa, pointers(inputs), numel, dtype, {out.data(), out_dtype, op, base});
              ASSERT_EQ(out, expected) << isa_name(isa) << " " << dtype_name(dtype) << " to " << dtype_name(out_dtype)
                                       << " numel " << numel << " ranks " << ranks << " op " << static_cast<int>(op)
                                       << " base " << static_cast<int>(base);
            }
          }
        }
      }
    }
  }
}

TEST(ReduceKernels, ZeroIsaIsTheMostTheyUse) {
  // In children: the choice is made once in a process.
  const auto chosen = [](const char* limit) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("ZERO_ISA", limit, 1);
      try {
        ::_exit(static_cast<int>(best_isa()));
      } catch (const ConfigError& error) {
        ::_exit(std::string_view(error.what()) == "ZERO_ISA: got 'foo', wanted generic, avx2 or avx512" ? 99 : 98);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(chosen("generic"), static_cast<int>(KernelIsa::kBaseline));
  EXPECT_LE(chosen("avx2"), static_cast<int>(KernelIsa::kAvx2));
  EXPECT_EQ(chosen("avx512"), static_cast<int>(supported_isas().back()));
  EXPECT_EQ(chosen(""), static_cast<int>(supported_isas().back()));
  EXPECT_EQ(chosen("foo"), 99);
}

TEST(ReduceKernels, OutMayBeAnyOfTheSlices) {
  constexpr std::int64_t kNumel = 9'999;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (const int ranks : {3, 7}) {
        for (int alias = 0; alias < ranks; ++alias) {
          for (const KernelIsa isa : supported_isas()) {
            std::vector<Bytes> inputs;
            for (int r = 0; r < ranks; ++r) inputs.push_back(wild_data(dtype, kNumel, r, 5));
            const Bytes expected = reduce_in_order(inputs, dtype, dtype, op, nullptr, 0, kNumel);
            reduce_ordered_with(isa, pointers(inputs), kNumel, dtype,
                                {inputs[alias].data(), dtype, op, ReduceBase::kFirst});
            EXPECT_EQ(inputs[alias], expected) << "slice " << alias << " of " << ranks << " " << isa_name(isa);
          }
        }
      }
    }
  }
}

TEST(ReduceKernels, EveryHalfValueIsWidenedExactly) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const void* slices[] = {all.data()};
  for (const KernelIsa isa : supported_isas()) {
    std::vector<float> out(all.size());
    reduce_ordered_with(isa, slices, 65536, DType::kFloat16,
                        {out.data(), DType::kFloat32, ReduceOp::kSum, ReduceBase::kFirst});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float wanted = fp16_to_float(all[i]);
      ASSERT_TRUE(std::isnan(wanted) ? std::isnan(out[i])
                                     : std::bit_cast<std::uint32_t>(out[i]) == std::bit_cast<std::uint32_t>(wanted))
          << i << " " << isa_name(isa);
    }
    std::vector<std::uint16_t> back(all.size());
    reduce_ordered_with(isa, slices, 65536, DType::kFloat16,
                        {back.data(), DType::kFloat16, ReduceOp::kSum, ReduceBase::kFirst});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
      ASSERT_EQ(back[i], nan ? (0x7e00 | (i & 0x8000)) : i) << isa_name(isa);
    }
  }
}

/// Sums of two 16-bit values hit ties, subnormals, overflow and cancellation.
TEST(ReduceKernels, RoundingOfSumsIsToNearestEven) {
  constexpr std::int64_t kNumel = 60'000;
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint16_t> a(kNumel), b(kNumel);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::uint16_t>(zero::testing::mix(i));
      // Near in exponent to a: ties are frequent then.
      b[i] = static_cast<std::uint16_t>(a[i] ^ (zero::testing::mix(i + 1'000'000) & 0x8fff));
    }
    const void* slices[] = {a.data(), b.data()};
    for (const KernelIsa isa : supported_isas()) {
      std::vector<std::uint16_t> out(kNumel);
      reduce_ordered_with(isa, slices, kNumel, dtype, {out.data(), dtype, ReduceOp::kSum, ReduceBase::kFirst});
      for (std::size_t i = 0; i < a.size(); ++i) {
        const bool half = dtype == DType::kFloat16;
        const float sum = half ? fp16_to_float(a[i]) + fp16_to_float(b[i])
                               : zero::testing::bf16_to_float(a[i]) + zero::testing::bf16_to_float(b[i]);
        if (std::isnan(sum)) {
          ASSERT_EQ(out[i] & 0x7fff, half ? 0x7e00 : 0x7fc0);
        } else {
          ASSERT_EQ(out[i], half ? float_to_fp16(sum) : float_to_bf16(sum)) << a[i] << " + " << b[i] << " = " << sum;
        }
      }
    }
  }
}

TEST(ReduceKernels, MaxAndMinKeepNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a{1, nan, 3, -0.0f}, b{2, 2, nan, 5};
  const void* slices[] = {a.data(), b.data()};
  for (const KernelIsa isa : supported_isas()) {
    std::vector<float> out(4);
    reduce_ordered_with(isa, slices, 4, DType::kFloat32,
                        {out.data(), DType::kFloat32, ReduceOp::kMax, ReduceBase::kFirst});
    EXPECT_EQ(out[0], 2);
    EXPECT_TRUE(std::isnan(out[1]));
    EXPECT_TRUE(std::isnan(out[2]));
    EXPECT_EQ(out[3], 5);
  }
}

TEST(ReduceKernels, SumFromZeroTurnsMinusZeroIntoZero) {
  const std::vector<float> a{-0.0f}, b{-0.0f};
  const void* slices[] = {a.data(), b.data()};
  for (const KernelIsa isa : supported_isas()) {
    float out = 1;
    reduce_ordered_with(isa, slices, 1, DType::kFloat32, {&out, DType::kFloat32, ReduceOp::kSum, ReduceBase::kZero});
    EXPECT_FALSE(std::signbit(out));  // as the accumulator of plain additions that started at 0
  }
}

TEST(ReduceKernels, SupportedPairs) {
  EXPECT_TRUE(reduce_supported(DType::kFloat16, DType::kFloat32));
  EXPECT_TRUE(reduce_supported(DType::kBFloat16, DType::kBFloat16));
  EXPECT_FALSE(reduce_supported(DType::kByte, DType::kByte));
  EXPECT_FALSE(reduce_supported(DType::kFloat32, DType::kBFloat16));
  EXPECT_FALSE(reduce_supported(DType::kInt64, DType::kFloat32));
}

}  // namespace
}  // namespace zero::comm::comm_reduce_kernels_test
