// The kernels of devices against those of the host: the same bits. The source that is CUDA's too runs on the simulated
// device, or with ZERO_TEST_DEVICE=cuda on a GPU; where CUDA's were built, they are found.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "optim/device_kernels.h"
#include "optim/kernels.h"
#include "optim/passes.h"
#include "support/simulated_device.h"

namespace zero::optim::device_kernels_test {
namespace {

using Bytes = std::vector<unsigned char>;

/// Memory on a device, or the host's.
struct Memory {
  at::Tensor tensor;
  std::size_t shift = 0;
  Memory() = default;
  /// `shifted_by`: bytes that it begins after where memory is aligned.
  Memory(const Bytes& bytes, at::Device device, std::size_t shifted_by = 0) : shift(shifted_by) {
    const at::Tensor here = at::zeros({static_cast<std::int64_t>(bytes.size() + shift)}, at::kByte);
    std::memcpy(static_cast<unsigned char*>(here.mutable_data_ptr()) + shift, bytes.data(), bytes.size());
    tensor = here.to(device);
  }
  void* data() const {
    return tensor.defined() ? static_cast<unsigned char*>(tensor.mutable_data_ptr()) + shift : nullptr;
  }
  Bytes bytes() const {
    if (!tensor.defined()) return {};
    const at::Tensor here = tensor.cpu();
    const auto* const first = static_cast<const unsigned char*>(here.const_data_ptr());
    return {first + shift, first + here.numel()};
  }
};

std::size_t element_nbytes_of(StateFormat format) {
  return is_quantized(format) ? static_cast<std::size_t>(nbytes_of(format, kQuantizedBlockNumel))
                              : element_nbytes(dtype_of(format));
}

Bytes bytes_of(const std::vector<float>& values, StateFormat format) {
  Bytes bytes(static_cast<std::size_t>(nbytes_of(format, static_cast<std::int64_t>(values.size()))));
  kernels().narrow_state(format, values.data(), bytes.data(), static_cast<std::int64_t>(values.size()));
  return bytes;
}

std::vector<float> random_values(std::int64_t numel, unsigned seed, float spread, bool positive = false) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (float& value : values) value = positive ? std::abs(normal(generator)) : normal(generator);
  // Zeros and what the formats cannot hold well.
  for (std::size_t i = 0; i < values.size(); i += 37) values[i] = i % 74 == 0 ? 0.0f : values[i] * 1e-9f;
  return values;
}

class DeviceKernelsTest : public ::testing::Test {
 protected:
  DeviceKernelsTest() {
    if (gpu_) return;
    testing::simulated::start({.seed = 3});
    testing::simulated::use_kernels(true);
  }
  ~DeviceKernelsTest() override {
    if (gpu_) return;
    testing::simulated::finish();
    testing::simulated::use_kernels(false);
  }
  const char* const gpu_ = std::getenv("ZERO_TEST_DEVICE");
  const at::Device there_ = gpu_ ? at::Device(at::Device(gpu_).type(), 0) : testing::simulated::device();
};

enum class Kept { kMaster, kMasterAndBf16, kMasterAndFp16, kSplit, kBf16, kBf16Stochastic, kBf16AndLow, kFp16 };

/// All that two updates leave behind.
std::vector<Bytes> update_on(at::Device device, const Rule& rule, Hyper hyper, Kept kept, StateFormat gradients,
                             std::int64_t numel, bool shifted, float size = 1) {
  const std::size_t word = shifted ? 4 : 0, half = shifted ? 2 : 0;
  const std::int64_t whole = (numel + kQuantizedBlockNumel - 1) / kQuantizedBlockNumel * kQuantizedBlockNumel;
  const auto weights = random_values(whole, 1, 1);
  Memory master, remainder, low, narrow;
  UpdateArgs args;
  switch (kept) {
    case Kept::kMaster:
    case Kept::kMasterAndBf16:
    case Kept::kMasterAndFp16:
      master = Memory(bytes_of(weights, StateFormat::kFloat32), device, word);
      if (kept != Kept::kMaster) low = Memory(Bytes(static_cast<std::size_t>(2 * whole)), device, half);
      break;
    case Kept::kSplit: {
      std::vector<std::uint16_t> high(weights.size()), rest(weights.size());
      kernels().split_master(weights.data(), high.data(), rest.data(), whole);
      const auto as_bytes = [](const std::vector<std::uint16_t>& from) {
        Bytes bytes(2 * from.size());
        std::memcpy(bytes.data(), from.data(), bytes.size());
        return bytes;
      };
      low = Memory(as_bytes(high), device, half);
      remainder = Memory(as_bytes(rest), device, half);
      break;
    }
    default:
      args.narrow.master_format = kept == Kept::kFp16 ? StateFormat::kFloat16 : StateFormat::kBFloat16;
      narrow = Memory(bytes_of(weights, args.narrow.master_format), device, half);
      if (kept == Kept::kBf16AndLow) low = Memory(Bytes(static_cast<std::size_t>(2 * whole)), device, half);
      args.narrow.stochastic = kept == Kept::kBf16Stochastic;
      args.narrow.seed = 11;
      args.narrow.first_element = 5 * kQuantizedBlockNumel;
  }
  std::vector<Memory> states;
  for (const StateColumn& state : rule.states) {
    const bool positive = state.name.find("sq") != std::string_view::npos || state.name == "sum";
    states.emplace_back(bytes_of(random_values(whole, 7 + static_cast<unsigned>(states.size()),
                                               0.3f * (positive ? size * size : size), positive),
                                 state.format),
                        device, shifted ? element_nbytes_of(state.format) : 0);
  }
  std::vector<Bytes> left;
  for (int step = 1; step <= 2; ++step) {
    const Memory gradient(bytes_of(random_values(whole, 40 + static_cast<unsigned>(step), 2 * size), gradients), device,
                          shifted ? element_nbytes_of(gradients) : 0);
    args.master = static_cast<float*>(master.data());
    args.remainder = static_cast<std::uint16_t*>(remainder.data());
    args.low = low.data();
    args.low_dtype = kept == Kept::kMasterAndFp16 || kept == Kept::kFp16 ? DType::kFloat16 : DType::kBFloat16;
    args.narrow.master = narrow.data();
    args.narrow.gradient = gradients == StateFormat::kFloat32 ? nullptr : gradient.data();
    args.narrow.gradient_format = gradients;
    args.gradient = gradients == StateFormat::kFloat32 ? static_cast<const float*>(gradient.data()) : nullptr;
    // A first pass puts its direction there.
    args.direction = const_cast<float*>(args.gradient);
    for (std::size_t s = 0; s < states.size(); ++s) args.states[s] = states[s].data();
    args.numel = numel;
    hyper.step = step;
    hyper.gradient_scale = 0.3;
    passes_for(device).update(rule, args, hyper);
    left.push_back(gradient.bytes());
  }
  for (const Memory* const kept : {&master, &remainder, &low, &narrow}) left.push_back(kept->bytes());
  for (const Memory& state : states) left.push_back(state.bytes());
  return left;
}

TEST_F(DeviceKernelsTest, UpdatesHaveTheBitsOfTheHost) {
  struct Case {
    const char* name;
    Algorithm algorithm;
    Hyper hyper;
  };
  const Case cases[] = {
      {"AdamW", Algorithm::kAdam, {.weight_decay = 0.1}},
      {"Adam", Algorithm::kAdam, {.weight_decay = 0.1, .adam_w_mode = false}},
      {"AMSGrad", Algorithm::kAdam, {.amsgrad = true, .maximize = true}},
      {"SGD", Algorithm::kSgd, {.weight_decay = 0.1}},
      {"SGD, momentum", Algorithm::kSgd, {.momentum = 0.9, .dampening = 0.1}},
      {"SGD, Nesterov", Algorithm::kSgd, {.momentum = 0.9, .nesterov = true}},
      {"Adagrad", Algorithm::kAdagrad, {.lr_decay = 0.1}},
      {"RMSprop", Algorithm::kRmsprop, {}},
      {"RMSprop, momentum", Algorithm::kRmsprop, {.momentum = 0.9}},
      {"RMSprop, centered", Algorithm::kRmsprop, {.eps = 0.01, .centered = true}},
      {"RMSprop, all", Algorithm::kRmsprop, {.eps = 0.01, .momentum = 0.9, .centered = true}},
      {"Lion", Algorithm::kLion, {.weight_decay = 0.1}},
      {"AdEMAMix", Algorithm::kAdemamix, {.weight_decay = 0.1, .alpha = 5, .t_alpha = 9, .t_beta3 = 9}},
      {"AdamW8bit", Algorithm::kAdam8bit, {.weight_decay = 0.1}},
      {"Adam8bit", Algorithm::kAdam8bit, {.weight_decay = 0.1, .adam_w_mode = false}},
  };
  int compared = 0;
  for (const Case& one : cases) {
    for (const StateFormat format : {StateFormat::kFloat32, StateFormat::kBFloat16, StateFormat::kFloat16}) {
      const Rule& rule = rule_for(one.algorithm, {&one.hyper, 1}, format);
      ASSERT_TRUE(passes_for(there_).updates(rule)) << one.name;
      for (const Kept kept : {Kept::kMaster, Kept::kMasterAndBf16, Kept::kMasterAndFp16, Kept::kSplit, Kept::kBf16,
                              Kept::kBf16Stochastic, Kept::kBf16AndLow, Kept::kFp16}) {
        const auto gradients = compared % 3 == 0   ? StateFormat::kFloat32
                               : compared % 3 == 1 ? StateFormat::kBFloat16
                                                   : StateFormat::kFloat16;
        for (const std::int64_t numel : {3001, 1024}) {  // with a rest, and whole blocks
          const bool shifted = (compared / 3 + (numel == 1024)) % 2 == 0;
          EXPECT_EQ(update_on(there_, rule, one.hyper, kept, gradients, numel, shifted),
                    update_on(at::kCPU, rule, one.hyper, kept, gradients, numel, false))
              << one.name << ", states " << static_cast<int>(format) << ", kept " << static_cast<int>(kept) << ", "
              << numel << " elements, shifted: " << shifted;
        }
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 15 * 3 * 8);
}

TEST_F(DeviceKernelsTest, EightBitStatesOfTheSmallestAndLargestNumbersHaveTheBitsOfTheHost) {
  const Hyper hyper{.weight_decay = 0.1};
  const Rule& rule = rule_for(Algorithm::kAdam8bit, {&hyper, 1});
  for (const float size : {1e-20f, 1e19f}) {
    const auto run = [&](at::Device device) {
      return update_on(device, rule, hyper, Kept::kSplit, StateFormat::kFloat32, 3001, false, size);
    };
    EXPECT_EQ(run(there_), run(at::kCPU)) << size;
  }
}

TEST_F(DeviceKernelsTest, PassesOfRulesOfTwoHaveTheBitsOfTheHost) {
  struct Case {
    const char* name;
    const Rule* rule;
    Hyper hyper;
    bool is_second = false;  ///< it writes masters
  };
  std::vector<Case> cases{{"the second", &take_direction(), {.lr = 0.1, .weight_decay = 0.1}, true}};
  for (const StateFormat format : {StateFormat::kFloat32, StateFormat::kBFloat16}) {
    cases.push_back({"Lamb", &rule_for(Algorithm::kLamb, {}, format), {.weight_decay = 0.1}});
    cases.push_back({"Lamb", &rule_for(Algorithm::kLamb, {}, format), {.maximize = true, .eps_inside_sqrt = true}});
    cases.push_back({"Muon", &rule_for(Algorithm::kMuon, {}, format), {.momentum = 0.95}});
    cases.push_back({"Muon", &rule_for(Algorithm::kMuon, {}, format), {.momentum = 0.3}});
  }
  cases.push_back({"Adafactor", &rule_for(Algorithm::kAdafactor, {}), {.maximize = true}});
  for (const Case& one : cases) {
    ASSERT_TRUE(passes_for(there_).updates(*one.rule)) << one.name;
    for (const Kept kept : {Kept::kMaster, Kept::kMasterAndBf16, Kept::kSplit, Kept::kBf16, Kept::kBf16Stochastic,
                            Kept::kBf16AndLow, Kept::kFp16}) {
      if (!one.is_second && kept == Kept::kBf16AndLow) continue;  // the host writes what the second pass will
      for (const std::int64_t numel : {3001, 1024}) {
        for (const bool shifted : {false, true}) {
          const auto there = update_on(there_, *one.rule, one.hyper, kept, StateFormat::kFloat32, numel, shifted);
          EXPECT_EQ(there, update_on(at::kCPU, *one.rule, one.hyper, kept, StateFormat::kFloat32, numel, false))
              << one.name << ", kept " << static_cast<int>(kept) << ", " << numel << " elements, shifted: " << shifted;
        }
      }
    }
  }
}

TEST_F(DeviceKernelsTest, SumsHaveTheBitsOfTheHost) {
  constexpr std::int64_t kNumel = 5 * kSumBlockNumel;
  const std::vector<DType> dtypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType dtype : dtypes) {
    for (const DType sum_dtype : dtypes) {
      for (const std::size_t ranks : {0u, 1u, 2u, 3u, 64u, 67u}) {
        for (const bool first : {true, false}) {
          if (ranks == 0 && first) continue;
          const auto run = [&](at::Device device, bool shifted) {
            const auto shift_of = [&](DType type) { return shifted ? element_nbytes(type) : 0; };
            std::vector<Memory> memories;
            std::vector<const void*> slices;
            for (std::size_t r = 0; r < ranks; ++r) {
              const float spread = r % 2 ? 100.0f : 1e-3f;  // the order matters
              memories.emplace_back(
                  bytes_of(random_values(kNumel, static_cast<unsigned>(10 + r), spread), format_of(dtype)), device,
                  shift_of(dtype));
              slices.push_back(memories.back().data());
            }
            const Memory sums(bytes_of(random_values(kNumel, 5, 1), format_of(sum_dtype)), device, shift_of(sum_dtype));
            const Bytes no_squares(kNumel / kSumBlockNumel * sizeof(double));
            const Memory squares(no_squares, device), again(no_squares, device);
            const Passes& passes = passes_for(device);
            passes.reduce({.accumulator = sums.data(),
                           .slices = slices,
                           .dtype = dtype,
                           .numel = kNumel,
                           .first = first,
                           .block_sumsq = static_cast<double*>(squares.data()),
                           .accumulator_dtype = sum_dtype});
            passes.block_sumsq(sums.data(), sum_dtype, kNumel, static_cast<double*>(again.data()));
            EXPECT_EQ(squares.bytes(), again.bytes());
            return std::vector<Bytes>{sums.bytes(), squares.bytes()};
          };
          const auto on_host = run(at::kCPU, false);
          for (const bool shifted : {false, true}) {
            EXPECT_EQ(run(there_, shifted), on_host) << dtype_name(dtype) << " onto " << dtype_name(sum_dtype) << ", "
                                                     << ranks << " ranks, first: " << first << ", shifted: " << shifted;
          }
        }
      }
    }
  }
}

TEST_F(DeviceKernelsTest, ParametersAreRoundedAsOnTheHost) {
  constexpr std::int64_t kNumel = 5003;
  const auto masters = bytes_of(random_values(kNumel, 1, 1), StateFormat::kFloat32);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const auto run = [&](at::Device device, std::size_t shift) {
      const Memory master(masters, device, 4 * shift),
          low(Bytes(kNumel * element_nbytes(dtype)), device, shift * element_nbytes(dtype));
      passes_for(device).round(static_cast<const float*>(master.data()), low.data(), dtype, kNumel);
      return low.bytes();
    };
    for (const std::size_t shift : {0, 1}) EXPECT_EQ(run(there_, shift), run(at::kCPU, 0)) << dtype_name(dtype);
  }
  const auto split = [&](at::Device device, std::size_t shift) {
    const Memory master(masters, device, 4 * shift), again(Bytes(4 * kNumel), device, 4 * shift);
    const Memory low(Bytes(2 * kNumel), device, 2 * shift), remainder(Bytes(2 * kNumel), device, 2 * shift);
    const auto halves = [](const Memory& memory) { return static_cast<std::uint16_t*>(memory.data()); };
    passes_for(device).split(static_cast<const float*>(master.data()), halves(low), halves(remainder), kNumel);
    passes_for(device).join(halves(low), halves(remainder), static_cast<float*>(again.data()), kNumel);
    EXPECT_EQ(again.bytes(), masters);
    return std::vector<Bytes>{low.bytes(), remainder.bytes()};
  };
  for (const std::size_t shift : {0, 1}) EXPECT_EQ(split(there_, shift), split(at::kCPU, 0));
}

/// The library needs no GPU to be loaded.
TEST(CudaKernels, AreFoundWhereTheyWereBuilt) {
#ifdef ZERO_CUDA_LIBRARY
  const DeviceKernels* const found = device_kernels(at::Device(at::kCUDA, 0));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->version, DeviceKernels::kVersion);
  EXPECT_TRUE(found->reduce && found->block_sumsq && found->take_direction && found->round && found->error);
  for (const auto update : found->updates) EXPECT_NE(update, nullptr);
#else
  GTEST_SKIP() << "there is no CUDA compiler";
#endif
}

}  // namespace
}  // namespace zero::optim::device_kernels_test
