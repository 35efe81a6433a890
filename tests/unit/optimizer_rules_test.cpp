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
       {.lr = 0.01, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.05, .decoupled = false},
       plain<Adam>(AdamOptions(0.01).betas(betas).eps(1e-6).weight_decay(0.05))},
      {"AMSGrad",
       Algorithm::kAdam,
       {.lr = 0.01, .beta2 = 0.5, .eps = 1e-6, .weight_decay = 0.05, .decoupled = false, .amsgrad = true},
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
        const at::Tensor lion_average = at::zeros({numel});
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
          } else {
            plain_lion(weight.detach(), lion_average, g, c.hyper);
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

/// The kernels of an instruction set, with states as the rule has them.
Update update_of(const Kernels& set, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAdam:
    case Algorithm::kAdam8bit:
      return set.adam;
    case Algorithm::kSgd:
      return set.sgd;
    case Algorithm::kAdagrad:
      return set.adagrad;
    case Algorithm::kRmsprop:
      return set.rmsprop;
    case Algorithm::kLion:
      return set.lion;
    case Algorithm::kLamb:
      return set.lamb;
    case Algorithm::kMuon:
      return set.muon;
    case Algorithm::kAdafactor:
      break;  // no kernels
  }
  return nullptr;
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
        EXPECT_TRUE(whole == three_steps(c, update_of(*set, c.algorithm), kept, kNumel)) << c.name << set->isa;
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
    if (const Kernels* const set = kernels_for(isa)) check(set->lion, set->isa);
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
