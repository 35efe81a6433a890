// The passes over flat shards: the same bits on every instruction set, and PyTorch's numbers.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "optim/device_passes.h"
#include "optim/kernels.h"
#include "optim/lr_schedule.h"

namespace zero::optim {
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
  generic::kKernels.fp32_to_bf16(values.data(), out.data(), static_cast<std::int64_t>(values.size()));
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

TEST(Kernels, Bf16RoundsToNearestEvenLikeLibtorch) {
  auto values = random_values(kNumel, 1, 100);
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = -0.0f;
  values[2] = std::bit_cast<float>(0x3f808000u);  // halfway, to even: down
  values[3] = std::bit_cast<float>(0x3f818000u);  // halfway, to even: up
  values[4] = std::numeric_limits<float>::denorm_min();
  values[5] = std::numeric_limits<float>::max();
  const at::Tensor expected = at::from_blob(values.data(), {kNumel}, at::kFloat).to(at::kBFloat16);
  for (const auto* set : available()) {
    std::vector<std::uint16_t> got(kNumel);
    set->fp32_to_bf16(values.data(), got.data(), kNumel);
    EXPECT_EQ(std::memcmp(got.data(), expected.const_data_ptr(), kNumel * 2), 0) << set->isa;
    std::vector<float> back(kNumel);
    set->bf16_to_fp32(got.data(), back.data(), kNumel);
    const at::Tensor widened = expected.to(at::kFloat);
    EXPECT_EQ(std::memcmp(back.data(), widened.const_data_ptr(), kNumel * 4), 0) << set->isa;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto* set : available()) {
    std::uint16_t out = 0;
    set->fp32_to_bf16(&nan, &out, 1);
    EXPECT_EQ(out & 0x7f80, 0x7f80);
    EXPECT_NE(out & 0x007f, 0);
  }
}

TEST(Kernels, ReduceAddsInRankOrderOnEveryInstructionSet) {
  for (const bool low : {false, true}) {
    for (const std::size_t ranks : {1u, 2u, 3u, 5u}) {
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
          set->reduce({accumulator.data(), slices, low ? DType::kBFloat16 : DType::kFloat32, kNumel, first,
                       sums.data()});
          EXPECT_TRUE(same_bits(accumulator, expected)) << set->isa << " ranks " << ranks;
          generic::kKernels.block_sumsq(accumulator.data(), kNumel, again.data());
          EXPECT_TRUE(same_bits(sums, again)) << set->isa;
          double exact = 0;
          for (std::int64_t i = 0; i < kSumBlockNumel; ++i) exact += double(expected[i]) * expected[i];
          EXPECT_NEAR(sums[0], exact, 1e-12 * exact);
        }
      }
    }
  }
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
        std::vector<std::uint16_t> out(numel);
        AdamHyper hyper{
            .lr = 1e-3, .weight_decay = 0.1, .decoupled = decoupled, .step = 7, .gradient_scale = 0.3};
        set->adam({master.data(), m.data(), v.data(), gradient.data(), low ? out.data() : nullptr, numel},
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
  for (int step = 1; step <= 20; ++step) {
    auto gradient = random_values(kCount, 100 + step);
    weight.mutable_grad() = at::from_blob(gradient.data(), {kCount}, at::kFloat).clone();
    optimizer.step();
    AdamHyper hyper{0.01, 0.9, 0.99, 1e-6, 0.05, decoupled, true, step, 1.0};
    kernels().adam({master.data(), m.data(), v.data(), gradient.data(), nullptr, kCount}, hyper);
    adam_on_device(device_master, device_m, device_v, at::from_blob(gradient.data(), {kCount}, at::kFloat),
                   {}, hyper);
    const at::Tensor ours = at::from_blob(master.data(), {kCount}, at::kFloat);
    EXPECT_LE((ours - weight).abs().max().item<float>(), 5e-7 * 4 * step);
    EXPECT_LE((device_master - weight).abs().max().item<float>(), 5e-7 * 4 * step);
  }
}

TEST(Kernels, AdamWHasLibtorchsNumbers) {
  compare_with_libtorch<torch::optim::AdamW, torch::optim::AdamWOptions>(true);
}
TEST(Kernels, AdamHasLibtorchsNumbers) {
  compare_with_libtorch<torch::optim::Adam, torch::optim::AdamOptions>(false);
}

TEST(Kernels, DevicePassesAgreeWithTheKernels) {
  const auto a = random_values(kNumel, 1), b = random_values(kNumel, 2);
  std::vector<float> accumulator = random_values(kNumel, 3);
  at::Tensor device = at::from_blob(accumulator.data(), {kNumel}, at::kFloat).clone();
  const std::vector<const void*> slices = {a.data(), b.data()};
  std::vector<double> sums(kNumel / kSumBlockNumel), device_sums(sums.size());
  kernels().reduce({accumulator.data(), slices, DType::kFloat32, kNumel, false, sums.data()});
  const std::vector<at::Tensor> tensors = {at::from_blob(const_cast<float*>(a.data()), {kNumel}, at::kFloat),
                                           at::from_blob(const_cast<float*>(b.data()), {kNumel}, at::kFloat)};
  reduce_on_device(device, tensors, false);
  EXPECT_TRUE(at::equal(device, at::from_blob(accumulator.data(), {kNumel}, at::kFloat)));
  block_sumsq_on_device(device, device_sums.data());
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], device_sums[i], 1e-12 * sums[i]);
}

TEST(Kernels, RefreshKeepsMastersThatStillRoundToTheParameter) {
  for (const auto* set : available()) {
    auto master = random_values(1000, 6);
    const auto before = master;
    auto low = to_bf16(master);
    low[3] = 0x3f80;  // 1.0
    set->refresh_master(low.data(), master.data(), 1000);
    EXPECT_EQ(master[3], 1.0f);
    master[3] = before[3];
    EXPECT_TRUE(same_bits(master, before)) << set->isa;
  }
}

TEST(Kernels, CopyCopiesEveryLength) {
  for (const auto* set : available()) {
    for (const std::size_t nbytes : {0u, 1u, 255u, 262144u, 262145u, 1000003u}) {
      std::vector<char> from(nbytes), to(nbytes + 64, 7);
      for (std::size_t i = 0; i < nbytes; ++i) from[i] = static_cast<char>(i * 31);
      set->copy(to.data(), from.data(), nbytes);
      EXPECT_EQ(std::memcmp(to.data(), from.data(), nbytes), 0) << set->isa << " " << nbytes;
      EXPECT_EQ(to[nbytes], 7);
    }
  }
}

TEST(LrSchedule, Shapes) {
  using Type = LrScheduleOptions::Type;
  LrScheduleOptions warmup{
      .type = Type::kWarmup, .linear_warmup = true, .warmup_steps = 10, .min_lr = 0.1, .max_lr = 1.1};
  EXPECT_DOUBLE_EQ(learning_rate_at(warmup, 9, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(warmup, 9, 5), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate_at(warmup, 9, 10), 1.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(warmup, 9, 1000), 1.1);
  warmup.linear_warmup = false;
  EXPECT_NEAR(learning_rate_at(warmup, 9, 4), 0.1 + std::log(5.0) / std::log(10.0), 1e-12);
  LrScheduleOptions decay{.type = Type::kWarmupDecay,
                          .linear_warmup = true,
                          .warmup_steps = 10,
                          .total_steps = 110,
                          .min_lr = 0,
                          .max_lr = 1};
  EXPECT_DOUBLE_EQ(learning_rate_at(decay, 9, 60), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(decay, 9, 110), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(decay, 9, 500), 0.0);
  LrScheduleOptions cosine{.type = Type::kWarmupCosine,
                           .linear_warmup = true,
                           .warmup_steps = 10,
                           .total_steps = 110,
                           .min_ratio = 0.0,
                           .cosine_min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate_at(cosine, 2, 5), 1.0);
  EXPECT_NEAR(learning_rate_at(cosine, 2, 59), 2 * 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_at(cosine, 2, 200), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at({}, 0.5, 3), 0.5);
}

}  // namespace
}  // namespace zero::optim
