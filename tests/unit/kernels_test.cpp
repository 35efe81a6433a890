// The passes over flat shards: the same bits on every instruction set, and PyTorch's numbers.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <bit>
#include <cmath>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/small_floats.h"
#include "optim/kernels.h"
#include "optim/passes.h"

namespace zero::optim::kernels_test {
namespace {

std::vector<float> random_values(std::size_t n, unsigned seed, float spread = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(n);
  for (auto& value : values) value = normal(generator);
  return values;
}

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> out(values.size());
  generic::kKernels.round_master(values.data(), out.data(), static_cast<std::int64_t>(values.size()));
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<const Kernels*> available() {
  std::vector<const Kernels*> sets;
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (const auto* set = kernels_for(isa)) sets.push_back(set);
  }
  return sets;
}

constexpr std::int64_t kNumel = 5 * kSumBlockNumel;

/// All floats whose low 16 bits are special, and every upper half.
std::vector<float> awkward_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t rest : {0x0000u, 0x0001u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xfedcu, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | rest));
    }
  }
  return values;
}

TEST(Kernels, ParametersAreMastersRoundedToNearestWithTiesAway) {
  const auto values = awkward_floats();
  const auto numel = static_cast<std::int64_t>(values.size());
  const at::Tensor nearest_even =
      at::from_blob(const_cast<float*>(values.data()), {numel}, at::kFloat).to(at::kBFloat16);
  const auto* even = static_cast<const std::uint16_t*>(nearest_even.const_data_ptr());
  for (const auto* set : available()) {
    std::vector<std::uint16_t> got(values.size());
    set->round_master(values.data(), got.data(), numel);
    std::int64_t ties = 0, wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]);
      if (std::isnan(values[i])) {
        wrong += got[i] != 0x7fc0;
      } else if ((bits & 0xffff) == 0x8000) {
        ++ties;
        wrong += got[i] != (bits >> 16) + 1;  // the larger magnitude
      } else {
        wrong += got[i] != even[i];
      }
    }
    EXPECT_EQ(wrong, 0) << set->isa;
    EXPECT_GT(ties, 65'000);
  }
}

TEST(Kernels, MastersAreParametersAndRemaindersBitForBit) {
  const auto values = awkward_floats();
  const auto numel = static_cast<std::int64_t>(values.size());
  for (const auto* set : available()) {
    std::vector<std::uint16_t> low(values.size()), remainder(values.size()), rounded(values.size());
    std::vector<float> back(values.size());
    set->split_master(values.data(), low.data(), remainder.data(), numel);
    set->round_master(values.data(), rounded.data(), numel);
    EXPECT_EQ(low, rounded) << set->isa;
    set->join_master(low.data(), remainder.data(), back.data(), numel);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += std::isnan(values[i]) ? !std::isnan(back[i])
                                     : std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(back[i]);
    }
    EXPECT_EQ(wrong, 0) << set->isa;
  }
}

TEST(Kernels, ReduceAddsInRankOrderOnEveryInstructionSet) {
  for (const bool low : {false, true}) {
    for (const std::size_t ranks : {1u, 2u, 3u, 4u, 5u, 9u}) {
      for (const bool first : {false, true}) {
        std::vector<std::vector<float>> fp32;
        std::vector<std::vector<std::uint16_t>> bf16;
        std::vector<const void*> slices;
        for (std::size_t r = 0; r < ranks; ++r) {
          fp32.push_back(random_values(kNumel, 10 + r, r % 2 ? 1e4f : 1e-3f));  // the order matters
          bf16.push_back(to_bf16(fp32.back()));
        }
        for (std::size_t r = 0; r < ranks; ++r) {
          slices.push_back(low ? static_cast<const void*>(bf16[r].data()) : fp32[r].data());
        }
        const auto start = random_values(kNumel, 99);
        std::vector<float> expected(kNumel);
        for (std::int64_t i = 0; i < kNumel; ++i) {
          float sum = first ? 0.0f : start[i];
          for (std::size_t r = 0; r < ranks; ++r) {
            sum += low ? std::bit_cast<float>(static_cast<std::uint32_t>(bf16[r][i]) << 16) : fp32[r][i];
          }
          expected[i] = sum;
        }
        for (const auto* set : available()) {
          auto accumulator = start;
          std::vector<double> sums(kNumel / kSumBlockNumel), again(sums.size());
          set->reduce(
              {accumulator.data(), slices, low ? DType::kBFloat16 : DType::kFloat32, kNumel, first, sums.data()});
          EXPECT_TRUE(same_bits(accumulator, expected)) << set->isa << " ranks " << ranks;
          generic::kKernels.block_sumsq(accumulator.data(), kNumel, again.data());
          EXPECT_TRUE(same_bits(sums, again)) << set->isa;
          double exact = 0;
          for (std::int64_t i = 0; i < kSumBlockNumel; ++i) exact += double(expected[i]) * expected[i];
          EXPECT_NEAR(sums[0], exact, 1e-12 * exact);
          auto without_squares = start;
          set->reduce(
              {without_squares.data(), slices, low ? DType::kBFloat16 : DType::kFloat32, kNumel, first, nullptr});
          EXPECT_TRUE(same_bits(without_squares, expected)) << set->isa << " ranks " << ranks;
        }
      }
    }
  }
}

TEST(Kernels, OneGradientAloneIsItsSumOnEveryInstructionSet) {
  auto values = awkward_floats();
  std::erase_if(values, [](float value) { return std::isnan(value); });
  values.resize(values.size() / kSumBlockNumel * kSumBlockNumel + kSumBlockNumel, -0.0f);
  const auto numel = static_cast<std::int64_t>(values.size());
  const auto check = [&](DType dtype, auto of_dtype) {
    using Element = typename decltype(of_dtype)::value_type;
    for (const auto* set : available()) {
      const std::vector<const void*> slices{of_dtype.data()};
      std::vector<Element> want(of_dtype.size()), sums = of_dtype, without_squares = of_dtype;
      std::vector<double> want_squares(of_dtype.size() / kSumBlockNumel), squares(want_squares.size());
      set->reduce({want.data(), slices, dtype, numel, true, want_squares.data(), dtype});
      set->reduce({sums.data(), {}, dtype, numel, false, squares.data(), dtype});
      set->reduce({without_squares.data(), {}, dtype, numel, false, nullptr, dtype});
      EXPECT_EQ(std::memcmp(sums.data(), want.data(), want.size() * sizeof(Element)), 0) << set->isa;
      EXPECT_EQ(std::memcmp(without_squares.data(), want.data(), want.size() * sizeof(Element)), 0) << set->isa;
      EXPECT_TRUE(same_bits(squares, want_squares)) << set->isa;
      const Element no_bits{};
      EXPECT_EQ(std::memcmp(&sums.back(), &no_bits, sizeof(Element)), 0) << "-0 is 0 in a sum that begins with 0";
    }
  };
  check(DType::kFloat32, values);
  check(DType::kBFloat16, to_bf16(values));
  std::vector<base::Float16> halves(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) base::narrow(values[i], halves[i]);
  std::vector<std::uint16_t> half_bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) half_bits[i] = halves[i].bits;
  check(DType::kFloat16, half_bits);
}

TEST(Kernels, AdamIsTheSameOnEveryInstructionSet) {
  for (const bool decoupled : {false, true}) {
    for (const bool low : {false, true}) {
      const std::int64_t numel = 1037;  // with a rest
      std::vector<float> expected;
      std::vector<std::uint16_t> expected_low;
      for (const auto* set : available()) {
        auto master = random_values(numel, 1), m = random_values(numel, 2, 0.1f), v = random_values(numel, 3);
        for (auto& value : v) value *= value;
        const auto gradient = random_values(numel, 4);
        std::vector<std::uint16_t> out(numel), split_low;
        std::vector<float> split;
        Hyper hyper{.lr = 1e-3, .weight_decay = 0.1, .adam_w_mode = decoupled, .step = 7, .gradient_scale = 0.3};
        if (low) {
          // The same with the masters as parameters and remainders.
          auto split_m = m, split_v = v;
          std::vector<std::uint16_t> parameters(numel), remainders(numel);
          set->split_master(master.data(), parameters.data(), remainders.data(), numel);
          set->update_of(Algorithm::kAdam)({.remainder = remainders.data(),
                                            .states = {split_m.data(), split_v.data()},
                                            .gradient = gradient.data(),
                                            .low = parameters.data(),
                                            .numel = numel},
                                           hyper);
          split.resize(numel);
          set->join_master(parameters.data(), remainders.data(), split.data(), numel);
          split.insert(split.end(), split_m.begin(), split_m.end());
          split.insert(split.end(), split_v.begin(), split_v.end());
          split_low = parameters;
        }
        set->update_of(Algorithm::kAdam)({.master = master.data(),
                                          .states = {m.data(), v.data()},
                                          .gradient = gradient.data(),
                                          .low = low ? out.data() : nullptr,
                                          .numel = numel},
                                         hyper);
        auto all = master;
        all.insert(all.end(), m.begin(), m.end());
        all.insert(all.end(), v.begin(), v.end());
        if (expected.empty()) {
          expected = all;
          expected_low = out;
        }
        EXPECT_TRUE(same_bits(all, expected)) << set->isa;
        EXPECT_TRUE(same_bits(out, expected_low)) << set->isa;
        if (low) {
          EXPECT_TRUE(same_bits(out, to_bf16(master)));
          EXPECT_TRUE(same_bits(split, all)) << set->isa;
          EXPECT_TRUE(same_bits(split_low, out)) << set->isa;
        }
      }
    }
  }
}

/// Against libtorch's own optimizers, to 5e-7 of the weight's size per step: products are rounded at other
/// places.
template <class Optimizer, class Options>
void compare_with_libtorch(bool decoupled) {
  constexpr std::int64_t kCount = 4096;
  auto start = random_values(kCount, 5);
  at::Tensor weight = at::from_blob(start.data(), {kCount}, at::kFloat).clone().requires_grad_();
  Optimizer optimizer({weight}, Options(0.01).betas(std::make_tuple(0.9, 0.99)).eps(1e-6).weight_decay(0.05));
  auto master = start;
  std::vector<float> m(kCount), v(kCount);
  at::Tensor device_master = at::from_blob(start.data(), {kCount}, at::kFloat).clone();
  at::Tensor device_m = at::zeros({kCount}), device_v = at::zeros({kCount});
  const Passes& device = aten_passes_for(c10::kCPU);
  for (int step = 1; step <= 20; ++step) {
    auto gradient = random_values(kCount, 100 + step);
    weight.mutable_grad() = at::from_blob(gradient.data(), {kCount}, at::kFloat).clone();
    optimizer.step();
    const Hyper hyper{
        .lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05, .adam_w_mode = decoupled, .step = step};
    kernels().update_of(Algorithm::kAdam)(
        {.master = master.data(), .states = {m.data(), v.data()}, .gradient = gradient.data(), .numel = kCount}, hyper);
    device.update(adam(),
                  {.master = device_master.mutable_data_ptr<float>(),
                   .states = {device_m.mutable_data_ptr(), device_v.mutable_data_ptr()},
                   .gradient = gradient.data(),
                   .numel = kCount},
                  hyper);
    const at::Tensor ours = at::from_blob(master.data(), {kCount}, at::kFloat);
    EXPECT_LE((ours - weight).abs().max().item<float>(), 5e-7 * 4 * step);
    EXPECT_LE((device_master - weight).abs().max().item<float>(), 5e-7 * 4 * step);
  }
}

TEST(Kernels, AdamWHasLibtorchsNumbers) {
  compare_with_libtorch<torch::optim::AdamW, torch::optim::AdamWOptions>(true);
}
TEST(Kernels, AdamHasLibtorchsNumbers) { compare_with_libtorch<torch::optim::Adam, torch::optim::AdamOptions>(false); }

TEST(Kernels, DevicePassesAgreeWithTheKernels) {
  const auto a = random_values(kNumel, 1), b = random_values(kNumel, 2);
  std::vector<float> accumulator = random_values(kNumel, 3);
  at::Tensor device = at::from_blob(accumulator.data(), {kNumel}, at::kFloat).clone();
  const std::vector<const void*> slices = {a.data(), b.data()};
  std::vector<double> sums(kNumel / kSumBlockNumel), device_sums(sums.size());
  kernels().reduce({accumulator.data(), slices, DType::kFloat32, kNumel, false, sums.data()});
  const Passes& passes = aten_passes_for(c10::kCPU);
  passes.reduce({.accumulator = device.mutable_data_ptr<float>(), .slices = slices, .numel = kNumel});
  EXPECT_TRUE(at::equal(device, at::from_blob(accumulator.data(), {kNumel}, at::kFloat)));
  std::vector<float> alone(kSumBlockNumel, -0.0f);
  passes.reduce({.accumulator = alone.data(), .numel = kSumBlockNumel});
  EXPECT_FALSE(std::signbit(alone.front()));
  passes.block_sumsq(device.const_data_ptr<float>(), DType::kFloat32, kNumel, device_sums.data());
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], device_sums[i], 1e-12 * sums[i]);
}

/// Everything that the passes make of shards that are long enough for several threads.
std::vector<std::vector<char>> passes_with(int threads, const Rule& rule, bool bf16_masters, bool stochastic) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  constexpr std::int64_t kLong = 200 * kSumBlockNumel;
  const auto bytes = [](const auto& values) {
    const auto* first = reinterpret_cast<const char*>(values.data());
    return std::vector<char>(first, first + values.size() * sizeof(values[0]));
  };
  const auto master = random_values(kLong, 1), gradient = random_values(kLong, 2), other = random_values(kLong, 3);
  std::vector<std::vector<char>> results;

  auto sums = other;
  const std::vector<std::uint16_t> narrow_slice = to_bf16(gradient), second_slice = to_bf16(master);
  const std::vector<const void*> slices{narrow_slice.data(), second_slice.data()};
  std::vector<double> sumsq(kLong / kSumBlockNumel), again(sumsq.size());
  passes_for(c10::kCPU).reduce({.accumulator = sums.data(),
                                .slices = slices,
                                .dtype = DType::kBFloat16,
                                .numel = kLong,
                                .block_sumsq = sumsq.data()});
  passes_for(c10::kCPU).block_sumsq(narrow_slice.data(), DType::kBFloat16, kLong, again.data());

  // Not a multiple of a block, as the last piece of a shard.
  constexpr std::int64_t kUpdated = kLong - 300;
  auto masters = master;
  std::vector<std::uint16_t> low(kLong), narrow = to_bf16(master);
  std::vector<std::vector<char>> states;
  UpdateArgs args{.gradient = gradient.data(), .low = low.data(), .numel = kUpdated};
  for (std::size_t i = 0; i < rule.states.size(); ++i) {
    states.emplace_back(static_cast<std::size_t>(nbytes_of(rule.states[i].format, kLong)), 0);
    args.states[i] = states.back().data();
  }
  if (bf16_masters) {
    args.narrow = {.master = narrow.data(), .stochastic = stochastic, .seed = 5, .first_element = 1024};
  } else {
    args.master = masters.data();
  }
  passes_for(c10::kCPU).update(rule, args, {.lr = 0.01, .step = 3});
  at::set_num_threads(before);
  results = {bytes(sums), bytes(sumsq), bytes(again), bytes(masters), bytes(low), bytes(narrow)};
  results.insert(results.end(), states.begin(), states.end());
  return results;
}

TEST(Kernels, PassesGiveTheSameBitsOnAnyNumberOfThreads) {
  const std::vector<Hyper> hyper(1);
  for (const Algorithm algorithm : {Algorithm::kAdam, Algorithm::kSgd, Algorithm::kAdagrad, Algorithm::kRmsprop,
                                    Algorithm::kLion, Algorithm::kAdam8bit, Algorithm::kAdemamix}) {
    for (const int narrow : {0, 1, 2}) {
      const Rule& rule = rule_for(algorithm, hyper, narrow > 0 ? StateFormat::kBFloat16 : StateFormat::kFloat32);
      const auto alone = passes_with(1, rule, narrow > 0, narrow == 2);
      for (const int threads : {2, 3, 7})
        EXPECT_EQ(passes_with(threads, rule, narrow > 0, narrow == 2), alone) << rule.name << narrow << threads;
    }
  }
}

TEST(Kernels, CopyCopiesEveryLength) {
  for (const auto* set : available()) {
    for (const std::size_t nbytes : {0u, 1u, 255u, 262144u, 262145u, 1000003u}) {
      std::vector<char> from(nbytes), to(nbytes + 64, 7);
      for (std::size_t i = 0; i < nbytes; ++i) from[i] = static_cast<char>(i * 31);
      set->copy(to.data(), from.data(), nbytes);
      EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << set->isa << " " << nbytes;
      EXPECT_EQ(to[nbytes], 7);
    }
  }
}

}  // namespace
}  // namespace zero::optim::kernels_test
