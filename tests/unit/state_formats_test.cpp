// What states, masters and gradient sums of fewer than 32 bits do: the same bits on every instruction set,
// the error that is stated, and updates as a plain loop over widened values has them.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/small_floats.h"
#include "optim/passes.h"
#include "optim/staged_update.h"

namespace zero::optim::state_formats_test {
namespace {

constexpr auto kSigned = StateFormat::kDynamic8, kUnsigned = StateFormat::kDynamic8Unsigned;
constexpr auto k4 = StateFormat::kLinear4;
constexpr std::int64_t kBlock = kQuantizedBlockNumel;

using Floats = std::vector<float>;
using Bytes = std::vector<unsigned char>;

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (const Kernels* const set = kernels_for(isa)) all.push_back(set);
  }
  return all;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Bytes narrowed(const Kernels& set, StateFormat format, const Floats& values) {
  const auto numel = static_cast<std::int64_t>(values.size());
  Bytes kept(static_cast<std::size_t>(nbytes_of(format, numel)));
  set.narrow_state(format, values.data(), kept.data(), numel);
  return kept;
}

Floats widened(const Kernels& set, StateFormat format, const Bytes& kept) {
  const auto numel = static_cast<std::int64_t>(kept.size()) / block_nbytes(format) * block_numel(format);
  Floats values(static_cast<std::size_t>(numel));
  set.widen_state(format, kept.data(), values.data(), numel);
  return values;
}

/// Values over `decades` decades, of both signs if so wanted, with zeros among them.
Floats values_over(double decades, std::int64_t numel, unsigned seed, bool is_signed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> exponent(-decades, 0), one(0, 1);
  Floats values;
  for (std::int64_t i = 0; i < numel; ++i) {
    double value = one(generator) < 0.05 ? 0 : std::pow(10.0, exponent(generator));
    if (is_signed && one(generator) < 0.5) value = -value;
    values.push_back(static_cast<float>(3.7 * value));
  }
  return values;
}

/// The fractions as the header describes them, found by no more than its words.
std::vector<double> fractions(bool is_signed) {
  std::vector<double> all = {0};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int k = 1; k <= count; ++k) all.push_back(std::pow(10.0, decade - 6) * (0.1 + 0.9 * k / count));
  }
  return all;
}

TEST(StateFormats, EveryInstructionSetHasTheSameBytes) {
  for (const StateFormat format : {StateFormat::kBFloat16, StateFormat::kFloat16, kSigned, kUnsigned, k4}) {
    for (const double decades : {0.5, 3.0, 9.0}) {
      const Floats values = values_over(decades, 40 * kBlock, 5, format != kUnsigned);
      const Bytes want = narrowed(generic::kKernels, format, values);
      for (const Kernels* set : all_kernels()) {
        EXPECT_EQ(narrowed(*set, format, values), want) << set->isa;
        EXPECT_TRUE(same_bits(widened(*set, format, want), widened(generic::kKernels, format, want))) << set->isa;
      }
    }
  }
}

template <class Half>
void expect_converted_as_elements(StateFormat format) {
  // All halves, the floats around each and around the middle to the next, and a rest of a vector.
  Floats values;
  Bytes all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    all.push_back(static_cast<unsigned char>(bits));
    all.push_back(static_cast<unsigned char>(bits >> 8));
    const auto wide = std::bit_cast<std::uint32_t>(base::widen(half));
    const std::uint32_t middle = format == StateFormat::kFloat16 ? 0x1000 : 0x8000;
    for (const std::uint32_t from : {wide, wide + middle}) {
      for (const std::uint32_t other : {from - 1, from, from + 1}) values.push_back(std::bit_cast<float>(other));
    }
  }
  for (int i = 0; i < 7; ++i) values.push_back(1.0f + static_cast<float>(i) / 1024);
  for (const Kernels* set : all_kernels()) {
    const Floats wide = widened(*set, format, all);
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float want = base::widen(Half{static_cast<std::uint16_t>(bits)});
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << set->isa << ' ' << bits;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[bits]), std::bit_cast<std::uint32_t>(want)) << set->isa << bits;
      }
    }
    const Bytes kept = narrowed(*set, format, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      Half want;
      base::narrow(values[i], want);
      ASSERT_EQ(kept[2 * i] | kept[2 * i + 1] << 8, want.bits) << set->isa << ' ' << values[i];
    }
  }
}

TEST(StateFormats, HalvesAreConvertedAsTheirElementsAre) {
  expect_converted_as_elements<base::Float16>(StateFormat::kFloat16);
  expect_converted_as_elements<base::BFloat16>(StateFormat::kBFloat16);
}

/// Where a block's largest magnitude, or its inverse, is subnormal.
TEST(StateFormats, EightBitsOfTheSmallestAndLargestNumbers) {
  for (const StateFormat format : {kSigned, kUnsigned, k4}) {
    const Floats values = values_over(2.0, 20 * kBlock, 11, format != kUnsigned);
    const Bytes codes = narrowed(generic::kKernels, format, values);
    for (const float scale : {0x1p-147f, 0x1p-129f, 0x1p-128f, 0x1p124f, 0x1p126f}) {
      Floats scaled = values;
      for (float& value : scaled) value *= scale;
      const Bytes want = narrowed(generic::kKernels, format, scaled);
      for (const Kernels* set : all_kernels()) {
        EXPECT_EQ(narrowed(*set, format, scaled), want) << set->isa << ' ' << scale;
        const Floats back = widened(*set, format, want);
        EXPECT_TRUE(same_bits(back, widened(generic::kKernels, format, want))) << set->isa << ' ' << scale;
        EXPECT_EQ(narrowed(*set, format, back), want) << set->isa << ' ' << scale;
      }
      if (scale < 1) continue;
      // Exactly scaled: the same codes, after another largest magnitude.
      for (std::size_t i = 0; i < codes.size(); ++i) {
        if (i % static_cast<std::size_t>(block_nbytes(format)) < 4) continue;
        ASSERT_EQ(codes[i], want[i]) << scale << ' ' << i;
      }
    }
  }
}

TEST(StateFormats, WhatWasWidenedIsNarrowedToTheSameBytes) {
  for (const StateFormat format : {StateFormat::kBFloat16, StateFormat::kFloat16, kSigned, kUnsigned, k4}) {
    for (const double decades : {0.1, 2.0, 7.0, 12.0}) {
      const Bytes once = narrowed(kernels(), format, values_over(decades, 64 * kBlock, 9, format != kUnsigned));
      EXPECT_EQ(narrowed(kernels(), format, widened(kernels(), format, once)), once) << decades;
    }
  }
}

TEST(StateFormats, EightBitsTakeTheNearestFractionOfTheLargest) {
  for (const bool is_signed : {true, false}) {
    const StateFormat format = is_signed ? kSigned : kUnsigned;
    const double bound = is_signed ? 0.0071 : 0.0036;
    const auto all = fractions(is_signed);
    ASSERT_EQ(all.size(), is_signed ? 128u : 255u);
    const Floats values = values_over(8, 200 * kBlock, 3, is_signed);
    const Floats back = widened(kernels(), format, narrowed(kernels(), format, values));
    double worst = 0;
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      double largest = 0;
      for (std::size_t i = begin; i < begin + kBlock; ++i) largest = std::max<double>(largest, std::fabs(values[i]));
      for (std::size_t i = begin; i < begin + kBlock; ++i) {
        const double value = std::fabs(values[i]) / largest, got = std::fabs(back[i]) / largest;
        double nearest = 2;
        for (const double f : all) nearest = std::fabs(f - value) < std::fabs(nearest - value) ? f : nearest;
        worst = std::max(worst, std::fabs(got - value));
        // Between the last fraction and zero the limit is 0.55, not the middle.
        if (value > 1e-6) {
          EXPECT_NEAR(std::fabs(got - value), std::fabs(nearest - value), 3e-7) << value;
        }
        EXPECT_EQ(std::signbit(back[i]) && back[i] != 0, values[i] < 0 && back[i] != 0);
        if (!is_signed) {
          EXPECT_EQ(back[i] > 0, values[i] > 0) << values[i];
        }
        if (value == 1) {
          EXPECT_EQ(back[i], values[i]);  // the largest is exact
        }
      }
    }
    EXPECT_LE(worst, bound);
    EXPECT_GT(worst, bound * 0.9);
  }
}

TEST(StateFormats, FourBitsTakeTheNearestSeventhOfTheLargest) {
  const Floats values = values_over(2, 200 * kBlock, 3, true);
  const Bytes kept = narrowed(kernels(), k4, values);
  EXPECT_EQ(kept.size(), 200u * 36);
  const Floats back = widened(kernels(), k4, kept);
  double worst = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    double largest = 0;
    for (std::size_t i = begin; i < begin + kBlock; ++i) largest = std::max<double>(largest, std::fabs(values[i]));
    for (std::size_t i = begin; i < begin + kBlock; ++i) {
      const double sevenths = 7 * values[i] / largest;
      worst = std::max(worst, std::fabs(back[i] - values[i]) / largest);
      EXPECT_NEAR(7 * back[i] / largest,
                  std::fabs(std::fabs(sevenths) - std::floor(std::fabs(sevenths)) - 0.5) < 1e-4 ? 7 * back[i] / largest
                                                                                                : std::round(sevenths),
                  1e-5);
      if (std::fabs(values[i]) == largest) {
        EXPECT_EQ(back[i], values[i]);
      }
    }
  }
  EXPECT_LE(worst, 0.072);
  EXPECT_GT(worst, 0.065);
}

TEST(StateFormats, ZerosStayAndWhatIsNotFiniteIsSeen) {
  for (const Kernels* set : all_kernels()) {
    for (const StateFormat format : {kSigned, kUnsigned, k4}) {
      Floats values(4 * kBlock, 0.0f);
      values[70] = std::numeric_limits<float>::quiet_NaN();
      values[2 * kBlock + 5] = std::numeric_limits<float>::infinity();
      values[3 * kBlock] = 1e-42f;
      const Bytes kept = narrowed(*set, format, values);
      EXPECT_EQ(kept, narrowed(generic::kKernels, format, values)) << set->isa;
      const Floats back = widened(*set, format, kept);
      EXPECT_EQ(Floats(back.begin(), back.begin() + kBlock), Floats(kBlock, 0.0f));
      for (std::int64_t i = kBlock; i < 2 * kBlock; ++i) EXPECT_TRUE(std::isnan(back[i])) << i;
      EXPECT_FALSE(std::isfinite(back[2 * kBlock + 5]));
      EXPECT_EQ(back[3 * kBlock], 1e-42f) << set->isa;
    }
  }
}

TEST(StateFormats, SixteenBitSumsAreRoundedAfterEveryMicroBatch) {
  constexpr std::int64_t kNumel = 3 * kSumBlockNumel;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const at::ScalarType type = dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf;
    for (const int ranks : {1, 2, 3, 5}) {
      at::manual_seed(ranks);
      std::vector<at::Tensor> slices;
      std::vector<const void*> addresses;
      for (int r = 0; r < ranks; ++r) addresses.push_back(slices.emplace_back(at::randn({kNumel})).const_data_ptr());
      const at::Tensor start = at::randn({kNumel}).to(type);
      for (const bool first : {false, true}) {
        at::Tensor sum = first ? at::zeros({kNumel}) : start.to(at::kFloat);
        for (const at::Tensor& slice : slices) sum = (sum + slice).to(type).to(at::kFloat);
        const at::Tensor want = sum.to(type);
        std::vector<double> squares(kNumel / kSumBlockNumel), of_passes(squares.size());
        const at::Tensor wide = want.to(at::kFloat);
        generic::kKernels.block_sumsq(wide.const_data_ptr<float>(), kNumel, squares.data());
        for (const Kernels* set : all_kernels()) {
          const at::Tensor got = start.clone();
          std::vector<double> sums(squares.size());
          set->reduce({.accumulator = got.mutable_data_ptr(),
                       .slices = addresses,
                       .numel = kNumel,
                       .first = first,
                       .block_sumsq = sums.data(),
                       .accumulator_dtype = dtype});
          EXPECT_TRUE(at::equal(got, want)) << set->isa << ' ' << ranks;
          EXPECT_EQ(sums, squares) << set->isa;
        }
        passes_for(c10::kCPU).block_sumsq(want.const_data_ptr(), dtype, kNumel, of_passes.data());
        EXPECT_EQ(of_passes, squares);
        const at::Tensor of_aten = start.clone();
        aten_passes_for(c10::kCPU).reduce({.accumulator = of_aten.mutable_data_ptr(),
                                           .slices = addresses,
                                           .numel = kNumel,
                                           .first = first,
                                           .accumulator_dtype = dtype});
        EXPECT_TRUE(at::equal(of_aten, want)) << ranks;
      }
    }
  }
}

TEST(StateFormats, StochasticRoundingIsRightOnAverageAndDependsOnTheElementAlone) {
  constexpr std::int64_t kNumel = 1 << 14;
  for (const float value : {1.0f + 0.25f / 128, -3.0f - 0.4f / 64, 1e-39f, 0.0f, 2.0f}) {
    const Floats values(kNumel, value);
    std::vector<std::uint16_t> want(kNumel);
    generic::kKernels.round_stochastically(values.data(), want.data(), kNumel, 1u << 20, 77);
    for (const Kernels* set : all_kernels()) {
      std::vector<std::uint16_t> got(kNumel);
      // In other pieces.
      for (std::int64_t begin = 0; begin < kNumel; begin += 192) {
        set->round_stochastically(values.data() + begin, got.data() + begin,
                                  std::min<std::int64_t>(192, kNumel - begin),
                                  (1u << 20) + static_cast<std::uint64_t>(begin), 77);
      }
      EXPECT_EQ(got, want) << set->isa;
    }
    double mean = 0;
    float down = value, up = value;
    for (const std::uint16_t bits : want) {
      const float rounded = base::widen(base::BFloat16{bits});
      mean += rounded;
      down = std::min(down, rounded);
      up = std::max(up, rounded);
    }
    mean /= kNumel;
    // Of kNumel draws between neighbours the mean is off by sigma / sqrt(kNumel), sigma at most half a step.
    EXPECT_NEAR(mean, value, 4 * 0.5 * (up - down) / std::sqrt(double(kNumel))) << value;
    const base::BFloat16 cut{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)};
    EXPECT_EQ(up == down, base::widen(cut) == value) << value;  // what bf16 has is not rounded
    std::vector<std::uint16_t> other(kNumel);
    generic::kKernels.round_stochastically(values.data(), other.data(), kNumel, 1u << 20, 78);
    EXPECT_EQ(other == want, up == down) << value;
  }
  const Floats odd = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  std::uint16_t bits[2];
  kernels().round_stochastically(odd.data(), bits, 2, 0, 1);
  EXPECT_EQ(bits[0], 0x7f80);
  EXPECT_EQ(bits[1], 0x7fc0);
}

/// 20 steps of a rule whose states, master and gradients are narrow, beside the rule on widened values.
class StagedUpdates : public ::testing::TestWithParam<std::tuple<Algorithm, StateFormat>> {};

TEST_P(StagedUpdates, AreTheRuleOnWidenedValues) {
  const auto [algorithm, format] = GetParam();
  constexpr std::int64_t kNumel = 5 * 1024 + 192;
  const Hyper base{.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05, .momentum = 0.9, .centered = true};
  const Rule& rule = rule_for(algorithm, {&base, 1}, format);
  const Rule& plain = rule_for(algorithm == Algorithm::kAdam8bit ? Algorithm::kAdam : algorithm, {&base, 1});
  for (const StateFormat master : {StateFormat::kFloat32, StateFormat::kBFloat16, StateFormat::kFloat16}) {
    at::manual_seed(3);
    Floats weights(kNumel);
    const at::Tensor random = at::randn({kNumel});
    std::memcpy(weights.data(), random.const_data_ptr(), kNumel * sizeof(float));
    weights = widened(kernels(), master, narrowed(kernels(), master, weights));
    Bytes kept_master = narrowed(kernels(), master, weights);
    std::vector<Bytes> kept;
    std::vector<Floats> states;
    for (const StateColumn& state : rule.states) {
      kept.emplace_back(static_cast<std::size_t>(nbytes_of(state.format, kNumel)), 0);
      states.emplace_back(kNumel, 0.0f);
    }
    for (int step = 1; step <= 20; ++step) {
      Hyper hyper = base;
      hyper.step = step;
      hyper.gradient_scale = 0.5;
      const at::Tensor gradient = at::randn({kNumel}).to(at::kBFloat16);
      const at::Tensor wide_gradient = gradient.to(at::kFloat);
      UpdateArgs args{.gradient = wide_gradient.const_data_ptr<float>(), .numel = kNumel};
      if (step % 2 == 0) {  // sums of gradients in bf16
        args.gradient = nullptr;
        args.narrow.gradient = gradient.const_data_ptr();
      }
      std::vector<std::uint16_t> low(kNumel);
      if (master == StateFormat::kFloat32) {
        args.master = reinterpret_cast<float*>(kept_master.data());
      } else {
        args.narrow.master = kept_master.data();
        args.narrow.master_format = master;
        args.low = low.data();
        args.low_dtype = dtype_of(master);
      }
      UpdateArgs of_plain{.master = weights.data(), .gradient = wide_gradient.const_data_ptr<float>(), .numel = kNumel};
      for (std::size_t s = 0; s < states.size(); ++s) {
        args.states[s] = kept[s].data();
        of_plain.states[s] = states[s].data();
      }
      passes_for(c10::kCPU).update(rule, args, hyper);
      plain.update(of_plain, hyper);
      weights = widened(kernels(), master, narrowed(kernels(), master, weights));
      for (std::size_t s = 0; s < states.size(); ++s) {
        const StateFormat its = rule.states[s].format;
        states[s] = widened(kernels(), its, narrowed(kernels(), its, states[s]));
        ASSERT_TRUE(same_bits(widened(kernels(), its, kept[s]), states[s])) << step << ' ' << rule.states[s].name;
      }
      ASSERT_TRUE(same_bits(widened(kernels(), master, kept_master), weights)) << step;
      if (master != StateFormat::kFloat32) {
        ASSERT_EQ(std::memcmp(low.data(), kept_master.data(), low.size() * 2), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StagedUpdates,
                         ::testing::Combine(::testing::Values(Algorithm::kAdam, Algorithm::kSgd, Algorithm::kAdagrad,
                                                              Algorithm::kRmsprop, Algorithm::kLion),
                                            ::testing::Values(StateFormat::kFloat32, StateFormat::kBFloat16)));
INSTANTIATE_TEST_SUITE_P(EightBit, StagedUpdates,
                         ::testing::Values(std::tuple(Algorithm::kAdam8bit, StateFormat::kFloat32)));

/// How far 8-bit states take weights away from fp32 ones: stated in docs/optimizers.md.
TEST(Adam8bit, StaysNearAdam) {
  constexpr std::int64_t kNumel = 64 * 1024;
  const Hyper base{.lr = 1e-3};
  const Rule &rule = rule_for(Algorithm::kAdam8bit, {}), &plain = adam();
  at::manual_seed(4);
  const at::Tensor weights = at::randn({kNumel}), of_plain = weights.clone(), start = weights.clone();
  const at::Tensor size = at::randn({kNumel}).abs() * 0.1;  // gradients of very different sizes in a block
  Bytes m(static_cast<std::size_t>(nbytes_of(kSigned, kNumel))), v(m.size());
  const at::Tensor plain_m = at::zeros({kNumel}), plain_v = at::zeros({kNumel});
  for (int step = 1; step <= 200; ++step) {
    const at::Tensor gradient = at::randn({kNumel}) * size + 0.3 * size;
    Hyper hyper = base;
    hyper.step = step;
    passes_for(c10::kCPU).update(rule,
                                 {.master = weights.mutable_data_ptr<float>(),
                                  .states = {m.data(), v.data()},
                                  .gradient = gradient.const_data_ptr<float>(),
                                  .numel = kNumel},
                                 hyper);
    passes_for(c10::kCPU).update(plain,
                                 {.master = of_plain.mutable_data_ptr<float>(),
                                  .states = {plain_m.mutable_data_ptr(), plain_v.mutable_data_ptr()},
                                  .gradient = gradient.const_data_ptr<float>(),
                                  .numel = kNumel},
                                 hyper);
  }
  const double moved = (of_plain - start).norm().item<double>(), apart = (weights - of_plain).norm().item<double>();
  const double largest = (weights - of_plain).abs().max().item<double>();
  std::printf("after 200 steps: moved %.4g, apart %.4g (%.2f %%), largest %.3g\n", moved, apart, 100 * apart / moved,
              largest);
  EXPECT_LT(apart, 0.06 * moved);
}

}  // namespace
}  // namespace zero::optim::state_formats_test
