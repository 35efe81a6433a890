// Every rule: libtorch's numbers, the same bits on every instruction set, however weights are kept and shards are cut.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/small_floats.h"
#include "optim/passes.h"
#include "optim/update_in_blocks.h"

namespace zero::optim::optimizer_rules_test {
namespace {

std::vector<float> random_values(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (auto& value : values) value = normal(generator);
  return values;
}

at::Tensor tensor_of(const std::vector<float>& values) {
  return at::from_blob(const_cast<float*>(values.data()), {static_cast<std::int64_t>(values.size())}, at::kFloat)
      .clone();
}

using Update = void (*)(const UpdateArgs&, const Hyper&);
using MakePlain = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

struct Case {
  std::string name;
  Algorithm algorithm;
  Hyper hyper;
  MakePlain plain;  ///< libtorch's; empty: it has none

  const Rule& rule() const { return rule_for(algorithm, {&hyper, 1}); }
};

template <class Optimizer, class Options>
MakePlain plain(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

const std::vector<Case>& cases() {
  using namespace torch::optim;
  const auto betas = std::make_tuple(0.9, 0.99);
  static const std::vector<Case> all = {
      {"AdamW",
       Algorithm::kAdam,
       {.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05},
       plain<AdamW>(AdamWOptions(0.01).betas(betas).eps(1e-6).weight_decay(0.05))},
      {"Adam",
       Algorithm::kAdam,
       {.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05, .adam_w_mode = false},
       plain<Adam>(AdamOptions(0.01).betas(betas).eps(1e-6).weight_decay(0.05))},
      {"AMSGrad",
       Algorithm::kAdam,
       {.lr = 0.01, .beta2 = 0.5, .eps = 1e-6, .weight_decay = 0.05, .adam_w_mode = false, .amsgrad = true},
       plain<Adam>(AdamOptions(0.01).betas(std::make_tuple(0.9, 0.5)).eps(1e-6).weight_decay(0.05).amsgrad(true))},
      {"AMSGrad, decoupled",
       Algorithm::kAdam,
       {.lr = 0.01, .beta2 = 0.5, .eps = 1e-6, .weight_decay = 0.05, .amsgrad = true},
       plain<AdamW>(AdamWOptions(0.01).betas(std::make_tuple(0.9, 0.5)).eps(1e-6).weight_decay(0.05).amsgrad(true))},
      {"SGD", Algorithm::kSgd, {.lr = 0.01}, plain<SGD>(SGDOptions(0.01))},
      {"SGD, decay",
       Algorithm::kSgd,
       {.lr = 0.01, .weight_decay = 0.05},
       plain<SGD>(SGDOptions(0.01).weight_decay(0.05))},
      {"SGD, momentum",
       Algorithm::kSgd,
       {.lr = 0.01, .weight_decay = 0.05, .momentum = 0.9, .dampening = 0.3},
       plain<SGD>(SGDOptions(0.01).weight_decay(0.05).momentum(0.9).dampening(0.3))},
      {"SGD, Nesterov",
       Algorithm::kSgd,
       {.lr = 0.01, .weight_decay = 0.05, .momentum = 0.9, .nesterov = true},
       plain<SGD>(SGDOptions(0.01).weight_decay(0.05).momentum(0.9).nesterov(true))},
      {"Adagrad",
       Algorithm::kAdagrad,
       {.lr = 0.01, .eps = 1e-10, .weight_decay = 0.05, .lr_decay = 0.1, .initial_accumulator_value = 0.2},
       plain<Adagrad>(AdagradOptions(0.01).eps(1e-10).weight_decay(0.05).lr_decay(0.1).initial_accumulator_value(0.2))},
      {"RMSprop",
       Algorithm::kRmsprop,
       {.lr = 0.01, .eps = 1e-6, .weight_decay = 0.05, .alpha = 0.9},
       plain<RMSprop>(RMSpropOptions(0.01).eps(1e-6).weight_decay(0.05).alpha(0.9))},
      {"RMSprop, momentum",
       Algorithm::kRmsprop,
       {.lr = 0.01, .eps = 1e-6, .momentum = 0.8, .alpha = 0.9},
       plain<RMSprop>(RMSpropOptions(0.01).eps(1e-6).momentum(0.8).alpha(0.9))},
      {"RMSprop, centered",
       Algorithm::kRmsprop,
       {.lr = 0.01, .eps = 1e-2, .alpha = 0.9, .centered = true},
       plain<RMSprop>(RMSpropOptions(0.01).eps(1e-2).alpha(0.9).centered(true))},
      {"RMSprop, all",
       Algorithm::kRmsprop,
       {.lr = 0.01, .eps = 1e-2, .weight_decay = 0.05, .momentum = 0.8, .alpha = 0.9, .centered = true},
       plain<RMSprop>(RMSpropOptions(0.01).eps(1e-2).weight_decay(0.05).momentum(0.8).alpha(0.9).centered(true))},
      {"Lion", Algorithm::kLion, {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.05}, {}},
      {"AdEMAMix",
       Algorithm::kAdemamix,
       {.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05, .alpha = 4, .beta3 = 0.999},
       {}},
      {"AdEMAMix, schedules",
       Algorithm::kAdemamix,
       {.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .alpha = 4, .beta3 = 0.999, .t_alpha = 15, .t_beta3 = 30},
       {}},
  };
  return all;
}

using States = std::vector<std::vector<float>>;

States initial_states(const Case& c, std::int64_t numel) {
  States states;
  for (const auto& column : c.rule().states)
    states.emplace_back(static_cast<std::size_t>(numel), static_cast<float>(column.initial_of(c.hyper)));
  return states;
}

std::array<void*, kMostStates> addresses(States& states, std::int64_t begin = 0) {
  std::array<void*, kMostStates> addresses{};
  for (std::size_t s = 0; s < states.size(); ++s) addresses[s] = states[s].data() + begin;
  return addresses;
}

/// Lion as its paper has it, in ATen.
void plain_lion(const at::Tensor& weight, const at::Tensor& exp_avg, const at::Tensor& g, const Hyper& hyper) {
  const at::Tensor direction = exp_avg * hyper.beta1 + g * (1 - hyper.beta1);
  weight.mul_(1 - hyper.lr * hyper.weight_decay).sub_(direction.sign() * hyper.lr);
  exp_avg.copy_(exp_avg * hyper.beta2 + g * (1 - hyper.beta2));
}

/// AdEMAMix as its paper has it, in ATen. beta3 grows so that the half-life of what it averages grows evenly.
void plain_ademamix(const at::Tensor& weight, const std::vector<at::Tensor>& averages, const at::Tensor& g,
                    const Hyper& hyper, int step) {
  const auto scheduled = [&](std::int64_t steps) { return steps == 0 ? 1 : std::min(1.0, step / double(steps)); };
  const double alpha = hyper.alpha * scheduled(hyper.t_alpha), done = scheduled(hyper.t_beta3);
  const double log1 = std::log(hyper.beta1 + 1e-8), log3 = std::log(hyper.beta3 + 1e-8);  // as the authors' code
  const double beta3 = done < 1 ? std::exp(log1 * log3 / ((1 - done) * log3 + done * log1)) : hyper.beta3;
  averages[0].copy_(averages[0] * hyper.beta1 + g * (1 - hyper.beta1));
  averages[1].copy_(averages[1] * hyper.beta2 + g * g * (1 - hyper.beta2));
  averages[2].copy_(averages[2] * beta3 + g * (1 - beta3));
  const at::Tensor root = (averages[1] / (1 - std::pow(hyper.beta2, step))).sqrt() + hyper.eps;
  const at::Tensor direction = averages[0] / (1 - std::pow(hyper.beta1, step)) + averages[2] * alpha;
  weight.sub_((direction / root + weight * hyper.weight_decay) * hyper.lr);
}

/// After each of 20 steps no weight is farther away than 1e-6 of its size and of what the steps have added: products
/// are rounded at other places than in libtorch.
void expect_close(const at::Tensor& got, const at::Tensor& want, double moved, const std::string& where) {
  const double excess = ((got - want).abs() - (want.abs() + moved) * 1e-6).max().item<double>();
  EXPECT_LE(excess, 0) << where;
}

TEST(OptimizerRules, HaveLibtorchsNumbers) {
  const Passes& device = aten_passes_for(c10::kCPU);
  for (const Case& c : cases()) {
    for (const bool maximize : {false, true}) {
      for (const std::int64_t numel : {1, 7, 1037}) {
        const auto start = random_values(numel, 5);
        at::Tensor weight = tensor_of(start).requires_grad_();
        const auto optimizer = c.plain ? c.plain({weight}) : nullptr;
        const std::vector<at::Tensor> averages = {at::zeros({numel}), at::zeros({numel}), at::zeros({numel})};
        auto master = start, device_master = start;
        States states = initial_states(c, numel), device_states = initial_states(c, numel);
        double moved = 0;
        for (int step = 1; step <= 20; ++step) {
          auto gradient = random_values(numel, 100 + static_cast<unsigned>(step));
          // libtorch for C++ has no maximize: it descends along the negative.
          const at::Tensor g = tensor_of(gradient) * (maximize ? -0.5 : 0.5);
          const at::Tensor before = weight.detach().clone();
          if (optimizer) {
            weight.mutable_grad() = g;
            optimizer->step();
          } else if (c.algorithm == Algorithm::kLion) {
            plain_lion(weight.detach(), averages[0], g, c.hyper);
          } else {
            plain_ademamix(weight.detach(), averages, g, c.hyper, step);
          }
          moved += (weight.detach() - before).abs().max().item<double>();
          Hyper hyper = c.hyper;
          hyper.step = step;
          hyper.gradient_scale = 0.5;
          hyper.maximize = maximize;
          UpdateArgs args{.states = addresses(states), .gradient = gradient.data(), .numel = numel};
          args.master = master.data();
          c.rule().update(args, hyper);
          args.master = device_master.data();
          args.states = addresses(device_states);
          device.update(c.rule(), args, hyper);
          const std::string where = c.name + ", step " + std::to_string(step);
          expect_close(tensor_of(master), weight.detach(), moved, where);
          expect_close(tensor_of(device_master), weight.detach(), moved, where + ", device");
        }
        for (std::size_t s = 0; s < states.size(); ++s)
          EXPECT_TRUE(at::allclose(tensor_of(states[s]), tensor_of(device_states[s]), 1e-5, 1e-6)) << c.name << s;
      }
    }
  }
}

/// Weights after 30 steps of the authors' pytorch/ademamix.py (github.com/apple/ml-ademamix, c3d73c0) in fp64. Here
/// they are fp32: 30 roundings of weights of at most 1.2.
TEST(OptimizerRules, AdemamixHasItsAuthorsNumbers) {
  struct Golden {
    std::int64_t t_alpha, t_beta3;
    std::vector<double> weights;
  };
  const std::vector<Golden> goldens = {
      {0,
       0,
       {-1.0913379759245625, -0.7846056342855238, -0.47358653935681644, -0.14404273950748192, 0.15052242505318575,
        0.4341939200262894}},
      {20,
       10,
       {-1.102220853757149, -0.7929133466029455, -0.4768223825444416, -0.1419930952096213, 0.1553236939215994,
        0.43794717899092017}},
      {60,
       60,
       {-1.110372065042779, -0.7992135434586547, -0.4807351488645919, -0.14402619809107223, 0.15362436801414484,
        0.43490686521641986}},
  };
  constexpr std::int64_t kNumel = 6;
  const Rule& rule = rule_for(Algorithm::kAdemamix, {});
  for (const auto& [t_alpha, t_beta3, weights] : goldens) {
    std::vector<float> master(kNumel), gradient(kNumel);
    States states(3, std::vector<float>(kNumel));
    for (std::int64_t i = 0; i < kNumel; ++i) master[static_cast<std::size_t>(i)] = static_cast<float>(0.3 * i - 1);
    for (int step = 1; step <= 30; ++step) {
      for (std::int64_t i = 0; i < kNumel; ++i)
        gradient[static_cast<std::size_t>(i)] = static_cast<float>(std::sin(0.7 * i + 1.3 * step) + 0.2);
      rule.update({.master = master.data(), .states = addresses(states), .gradient = gradient.data(), .numel = kNumel},
                  {.lr = 0.01,
                   .beta2 = 0.99,
                   .eps = 1e-6,
                   .weight_decay = 0.05,
                   .alpha = 4,
                   .beta3 = 0.999,
                   .t_alpha = t_alpha,
                   .t_beta3 = t_beta3,
                   .step = step});
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(master[i], weights[i], 1e-6) << t_alpha << ", weight " << i;
  }
}

enum class Kept { kMaster, kMasterAndBf16, kMasterAndFp16, kSplit };

/// All bits after three steps: weights, parameters, states.
struct Bits {
  std::vector<float> master;
  std::vector<std::uint16_t> low;
  States states;
  bool operator==(const Bits& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    if (!same(master, other.master) || !same(low, other.low) || states.size() != other.states.size()) return false;
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (!same(states[s], other.states[s])) return false;
    }
    return true;
  }
};

/// `cuts`: where the range is cut into calls.
Bits three_steps(const Case& c, Update update, Kept kept, std::int64_t numel, std::vector<std::int64_t> cuts = {}) {
  Bits bits{random_values(numel, 1), std::vector<std::uint16_t>(static_cast<std::size_t>(numel)),
            initial_states(c, numel)};
  std::vector<std::uint16_t> remainder(static_cast<std::size_t>(numel));
  if (kept == Kept::kSplit)
    generic::kKernels.split_master(bits.master.data(), bits.low.data(), remainder.data(), numel);
  cuts.push_back(numel);
  for (int step = 1; step <= 3; ++step) {
    const auto gradient = random_values(numel, 10 + static_cast<unsigned>(step));
    Hyper hyper = c.hyper;
    hyper.step = step;
    hyper.gradient_scale = 0.3;
    std::int64_t begin = 0;
    for (const std::int64_t end : cuts) {
      UpdateArgs args{.states = addresses(bits.states, begin), .gradient = gradient.data() + begin};
      args.numel = end - begin;
      if (kept == Kept::kSplit) {
        args.remainder = remainder.data() + begin;
      } else {
        args.master = bits.master.data() + begin;
      }
      if (kept != Kept::kMaster) args.low = bits.low.data() + begin;
      args.low_dtype = kept == Kept::kMasterAndFp16 ? DType::kFloat16 : DType::kBFloat16;
      update(args, hyper);
      begin = end;
    }
  }
  if (kept == Kept::kSplit) generic::kKernels.join_master(bits.low.data(), remainder.data(), bits.master.data(), numel);
  return bits;
}

constexpr Kept kKept[] = {Kept::kMaster, Kept::kMasterAndBf16, Kept::kMasterAndFp16, Kept::kSplit};

TEST(OptimizerRules, HaveTheSameBitsOnEveryInstructionSetAndCutting) {
  constexpr std::int64_t kNumel = 1037;  // with a rest
  for (const Case& c : cases()) {
    const Bits alone = three_steps(c, c.rule().update, Kept::kMaster, kNumel);
    EXPECT_NE(alone.master, random_values(kNumel, 1)) << c.name;
    for (const Kept kept : kKept) {
      const Bits whole = three_steps(c, c.rule().update, kept, kNumel);
      EXPECT_EQ(std::memcmp(whole.master.data(), alone.master.data(), kNumel * 4), 0) << c.name;
      EXPECT_TRUE(whole == three_steps(c, c.rule().update, kept, kNumel, {1, 2, 19, 20, 500, 1036})) << c.name;
      for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
        const Kernels* const set = kernels_for(isa);
        if (!set || c.name == "RMSprop, centered") continue;  // its states are not in the kernel's order
        EXPECT_TRUE(whole == three_steps(c, set->update_of(c.algorithm), kept, kNumel)) << c.name << set->isa;
      }
      if (kept == Kept::kMaster) continue;
      const auto type = kept == Kept::kMasterAndFp16 ? at::kHalf : at::kBFloat16;
      const at::Tensor low = at::from_blob(const_cast<std::uint16_t*>(whole.low.data()), {kNumel}, type);
      if (type == at::kHalf) {
        EXPECT_TRUE(at::equal(low, tensor_of(whole.master).to(type))) << c.name;
      } else {
        std::vector<std::uint16_t> rounded(kNumel);
        generic::kKernels.round_master(whole.master.data(), rounded.data(), kNumel);
        EXPECT_EQ(whole.low, rounded) << c.name;
      }
    }
  }
}

TEST(OptimizerRules, Fp16ParametersAreMastersRoundedToNearestEven) {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t rest : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0xf000u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | rest));
  }
  const auto numel = static_cast<std::int64_t>(values.size());
  const at::Tensor want = tensor_of(values).to(at::kHalf);
  const auto* const expected = static_cast<const std::uint16_t*>(want.const_data_ptr());
  const std::vector<float> gradient(values.size());
  const auto check = [&](Update update, const char* by) {
    auto master = values;
    std::vector<std::uint16_t> low(values.size());
    auto exp_avg = gradient;
    update({.master = master.data(),
            .states = {exp_avg.data()},
            .gradient = gradient.data(),
            .low = low.data(),
            .low_dtype = DType::kFloat16,
            .numel = numel},
           {.lr = 0});
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < low.size(); ++i)
      wrong += std::isnan(values[i]) ? (low[i] & 0x7fff) <= 0x7c00 : low[i] != expected[i];
    EXPECT_EQ(wrong, 0) << by;
  };
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (const Kernels* const set = kernels_for(isa)) check(set->update_of(Algorithm::kLion), set->isa);
  }
  check([](const UpdateArgs& args, const Hyper&) { update_in_blocks(args, [](float*, std::int64_t, std::int64_t) {}); },
        "update_in_blocks");
}

TEST(OptimizerRules, KeepTheStatesThatAGroupNeeds) {
  const auto names = [](Algorithm algorithm, std::vector<Hyper> groups) {
    std::string text;
    for (const auto& state : rule_for(algorithm, groups).states) text += std::string(state.name) + " ";
    return text;
  };
  EXPECT_EQ(names(Algorithm::kAdam, {{}}), "exp_avg exp_avg_sq ");
  EXPECT_EQ(names(Algorithm::kAdam, {{}, {.amsgrad = true}}), "exp_avg exp_avg_sq max_exp_avg_sq ");
  EXPECT_EQ(names(Algorithm::kSgd, {{}, {}}), "");
  EXPECT_EQ(names(Algorithm::kSgd, {{}, {.momentum = 0.9}}), "momentum_buffer ");
  EXPECT_EQ(names(Algorithm::kAdagrad, {{}}), "sum ");
  EXPECT_EQ(names(Algorithm::kRmsprop, {{}}), "square_avg ");
  EXPECT_EQ(names(Algorithm::kRmsprop, {{.momentum = 0.1}}), "square_avg momentum_buffer ");
  EXPECT_EQ(names(Algorithm::kRmsprop, {{.centered = true}}), "square_avg grad_avg ");
  EXPECT_EQ(names(Algorithm::kRmsprop, {{.centered = true}, {.momentum = 0.1}}),
            "square_avg momentum_buffer grad_avg ");
  EXPECT_EQ(names(Algorithm::kLion, {{}}), "exp_avg ");
  EXPECT_EQ(names(Algorithm::kAdemamix, {{}}), "exp_avg exp_avg_sq exp_avg_slow ");
  EXPECT_EQ(rule_for(Algorithm::kSgd, {}).state_nbytes(64), 0);
  EXPECT_EQ(rule_for(Algorithm::kSgd, {}).missing_state({.momentum = 0.9}), "momentum_buffer");
  EXPECT_EQ(rule_for(Algorithm::kSgd, {}).missing_state({}), "");
  EXPECT_EQ(rule_for(Algorithm::kRmsprop, {}).missing_state({.centered = true}), "grad_avg");
}

/// A group without momentum beside one with it: the states are there, and are left alone.
TEST(OptimizerRules, AGroupLeavesTheStatesAloneThatItDoesNotUse) {
  constexpr std::int64_t kNumel = 37;
  const std::vector<std::pair<Algorithm, Hyper>> most = {
      {Algorithm::kAdam, {.amsgrad = true}},
      {Algorithm::kSgd, {.momentum = 0.9}},
      {Algorithm::kRmsprop, {.momentum = 0.9, .centered = true}},
  };
  for (const auto& [algorithm, hyper] : most) {
    Case with{"with", algorithm, hyper, {}};
    const Case without{"without", algorithm, {}, {}};
    const Rule& rule = with.rule();
    with.hyper = {};
    States states;
    for (std::size_t s = 0; s < rule.states.size(); ++s) states.emplace_back(kNumel, 0.0f);
    auto master = random_values(kNumel, 1);
    const auto gradient = random_values(kNumel, 11);
    rule.update({.master = master.data(), .states = addresses(states), .gradient = gradient.data(), .numel = kNumel},
                {});
    States fewer = initial_states(without, kNumel);
    auto expected = random_values(kNumel, 1);
    without.rule().update(
        {.master = expected.data(), .states = addresses(fewer), .gradient = gradient.data(), .numel = kNumel}, {});
    EXPECT_EQ(master, expected);
    for (std::size_t s = fewer.size(); s < states.size(); ++s)
      EXPECT_EQ(states[s], std::vector<float>(kNumel, 0.0f)) << rule.states[s].name;
  }
}

}  // namespace
}  // namespace zero::optim::optimizer_rules_test
