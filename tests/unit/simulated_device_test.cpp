// The simulated accelerator: it gives the bits of the CPU for every order of its streams, and wrong ones for some order
// where a program forgets to wait.
#include "support/simulated_device.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/modules/rnn.h>

#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "support/filled.h"

namespace zero::testing::simulated::simulated_device_test {
namespace {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(a.contiguous().view({-1}).view(at::kByte), b.contiguous().view({-1}).view(at::kByte));
}

c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1); }
c10::Stream pooled() { return guard().getStreamFromGlobalPool(device(), false); }

/// For tests where some seed must show something.
int count_seeds(int seeds, const std::function<bool(std::uint64_t seed)>& shows) {
  int count = 0;
  for (int seed = 0; seed < seeds; ++seed) count += shows(seed);
  return count;
}

class SimulatedDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::globalContext().setSDPUseFlash(false);
    start({});
  }
  void TearDown() override { finish(); }
};
using SimulatedDeviceDeathTest = SimulatedDevice;

TEST_F(SimulatedDeviceDeathTest, TheHostCannotTouchItsMemory) {
  const at::Tensor tensor = at::ones({4}, device());
  finish();
  EXPECT_EQ(tensor.cpu().sum().item<float>(), 4);
  EXPECT_DEATH(std::printf("%f\n", static_cast<double>(*static_cast<const volatile float*>(tensor.const_data_ptr()))),
               "");
  EXPECT_DEATH(*static_cast<volatile float*>(tensor.mutable_data_ptr()) = 1, "");
}

TEST_F(SimulatedDevice, NewMemoryHoldsNoValues) {
  const at::Tensor first = at::empty({100}, device());
  EXPECT_TRUE(first.isnan().all().item<bool>());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.const_data_ptr()) % 512, 0u);
  const void* const address = first.const_data_ptr();
  at::Tensor second = at::ones({100}, device());
  const void* const freed = second.const_data_ptr();
  second = at::empty({1000}, device());
  const at::Tensor third = at::empty({100}, device());
  EXPECT_EQ(third.const_data_ptr(), freed);
  EXPECT_NE(third.const_data_ptr(), address);
  EXPECT_TRUE(third.isnan().all().item<bool>());
}

using Parameters = std::vector<at::Tensor>;
using Loss = std::function<at::Tensor(const Parameters& parameters, int step)>;

/// Three steps of SGD; the losses and the parameters at the end.
std::vector<at::Tensor> train(const Parameters& initial, const Loss& loss, c10::Device on) {
  Parameters parameters;
  for (const at::Tensor& tensor : initial) parameters.push_back(tensor.to(on, tensor.scalar_type(), false, true));
  for (const at::Tensor& tensor : parameters) tensor.requires_grad_();
  std::vector<at::Tensor> results;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor value = loss(parameters, step);
    value.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : parameters) {
      // Its memory belongs to the stream of the forward pass, and is freed here.
      if (!on.is_cpu()) tensor.grad().record_stream(guard().getStream(on));
      tensor.add_(tensor.grad(), -0.1);
      tensor.mutable_grad().reset();
    }
    results.push_back(value.detach());
  }
  for (const at::Tensor& tensor : parameters) results.push_back(tensor.detach());
  for (at::Tensor& tensor : results) tensor = tensor.cpu();
  return results;
}

void expect_bits_of_the_cpu(const Parameters& initial, const Loss& loss, int seeds) {
  const auto expected = train(initial, loss, at::kCPU);
  for (int seed = 0; seed < seeds; ++seed) {
    start({.seed = static_cast<std::uint64_t>(seed)});
    const auto got = train(initial, loss, device());
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_FALSE(expected[i].isnan().any().item<bool>());
      ASSERT_TRUE(same_bits(got[i], expected[i])) << "seed " << seed << ", result " << i;
    }
    EXPECT_GT(counts().late_tasks, counts().tasks / 4) << "seed " << seed;
    finish();
  }
}

TEST_F(SimulatedDevice, AnMlpTrainsToTheBitsOfTheCpu) {
  const Parameters initial{filled({16, 8}, 1) * 0.3, filled({16}, 2), filled({4, 16}, 3) * 0.3, filled({4}, 4)};
  const auto loss = [](const Parameters& p, int step) {
    const at::Tensor x = filled({5, 8}, 10 + step).to(p[0].device());
    return at::linear(at::gelu(at::linear(x, p[0], p[1])), p[2], p[3]).square().mean();
  };
  expect_bits_of_the_cpu(initial, loss, 50);
}

at::Tensor transformer_loss(const Parameters& p, int step) {
  const auto on = p[0].device();
  const at::Tensor tokens = (at::arange(22).view({2, 11}) * 7 + step).remainder(13).to(on);
  const at::Tensor ids = tokens.narrow(1, 0, 10), targets = tokens.narrow(1, 1, 10);
  at::Tensor x = at::embedding(p[0], ids);
  at::Tensor h = at::layer_norm(x, {8}, p[1], p[2]);
  const auto qkv = at::linear(h, p[3], p[4]).view({2, 10, 3, 2, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
  h = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
  x = x + at::linear(h.transpose(1, 2).reshape({2, 10, 8}), p[5], p[6]);
  h = at::layer_norm(x, {8}, p[1], p[2]);
  x = x + at::linear(at::gelu(at::linear(h, p[7])), p[8]);
  return at::cross_entropy_loss(at::matmul(x, p[0].t()).view({-1, 13}), targets.reshape({-1}));
}

Parameters transformer() {
  return {filled({13, 8}, 1), filled({8}, 2) + 1,  filled({8}, 3),           filled({24, 8}, 4) * 0.4, filled({24}, 5),
          filled({8, 8}, 6),  filled({8}, 7) * .1, filled({32, 8}, 8) * 0.4, filled({8, 32}, 9) * 0.4};
}

TEST_F(SimulatedDevice, ATransformerBlockTrainsToTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(transformer(), transformer_loss, 50);
  std::set<std::string> prompt;
  on_prompt([&](const char* name) { prompt.insert(name); });
  start({});
  train(transformer(), transformer_loss, device());
  on_prompt({});
  EXPECT_EQ(prompt, std::set<std::string>{});
}

TEST_F(SimulatedDevice, OperatorsGiveTheBitsOfTheCpu) {
  struct Case {
    const char* name;
    std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)> run;  // of [6, 5]
  };
  const std::vector<Case> cases{
      {"bmm",
       [](auto& x, auto& y) {
         return at::bmm(x.view({2, 3, 5}), y.view({2, 3, 5}).transpose(1, 2));
       }},
      {"softmax", [](auto& x, auto& y) { return at::softmax(x, 1) * at::log_softmax(y, 0); }},
      {"cat",
       [](auto& x, auto& y) {
         return at::cat({x, y, x}, 1);
       }},
      {"stack",
       [](auto& x, auto& y) {
         return at::stack({x.t(), y.t()}, 1);
       }},
      {"index_select",
       [](auto& x, auto& y) {
         return x.index_select(0, at::tensor({3, 1, 3}).to(x.device())) + y[0];
       }},
      {"index",
       [](auto& x, auto& y) {
         return x.index({at::tensor({3, 1, 3})}) * y[1];
       }},
      {"gather", [](auto& x, auto& y) { return x.gather(1, at::argsort(y, 1, false)); }},
      {"sum", [](auto& x, auto& y) { return x.sum(0) + y.mean(0) * x.norm() + at::linalg_vector_norm(y, 3); }},
      {"where", [](auto& x, auto& y) { return at::where(x > 0.1, x * 2, y) + at::where(y > 0, y, 0.5); }},
      {"clone", [](auto& x, auto& y) { return x.t().clone() + y.t().contiguous(); }},
      {"conv",
       [](auto& x, auto& y) {
         return at::conv1d(x.view({2, 3, 5}), y.view({2, 3, 5}).narrow(2, 0, 3));
       }},
      {"batch_norm", [](auto& x, auto& y) { return at::batch_norm(x, y[0], y[1], {}, {}, true, .1, 1e-5, false); }},
      {"masked_fill", [](auto& x, auto& y) { return x.masked_fill(y < 0, 3).cumsum(1).clamp(-1, 2); }},
      {"max", [](auto& x, auto& y) { return at::maximum(x, y) + std::get<0>(x.max(1, true)) + x.max(); }},
      {"bf16", [](auto& x, auto& y) { return (x.to(at::kBFloat16) * y.to(at::kBFloat16)).to(at::kFloat).tanh(); }},
      {"half", [](auto& x, auto& y) { return at::matmul(x.to(at::kHalf), y.to(at::kHalf).t()); }},
      {"in place", [](auto& x, auto& y) { return x.clone().mul_(3).add_(y, 2).relu_().sub(0.25).sqrt_(); }},
      {"slices", [](auto& x, auto& y) { return x.clone().narrow(0, 1, 2).copy_(y.narrow(0, 0, 1)).flip(1); }},
      {"expand",
       [](auto& x, auto& y) {
         return x.view({6, 1, 5}).expand({6, 6, 5}) * y;
       }},
      {"unfold", [](auto& x, auto& y) { return x.unfold(1, 3, 2) * y.unfold(1, 3, 2).squeeze(); }},
      {"einsum",
       [](auto& x, auto& y) {
         return at::einsum("ij,kj->ki", {x, y}).triu();
       }},
      {"pad",
       [](auto& x, auto& y) {
         return at::constant_pad_nd(x, {1, 2}, 0.5) + at::constant_pad_nd(y, {2, 1});
       }},
      {"factories", [](auto& x, auto& y) { return x * at::arange(5, x.options()) + at::full_like(y, 2).tril() * y; }},
      {"lerp", [](auto& x, auto& y) { return at::lerp(x, y, 0.3).pow(2).addcmul(x, y).addcdiv(x, y.abs() + 1); }},
  };
  for (const Case& item : cases) {
    const auto run = [&](c10::Device on) {
      const at::Tensor x = filled({6, 5}, 1).to(on).requires_grad_(), y = filled({6, 5}, 2).to(on).requires_grad_();
      const at::Tensor out = item.run(x, y);
      (out.to(at::kFloat).nan_to_num() * 3).sum().backward();
      return std::vector<at::Tensor>{out.detach().cpu(), x.grad().cpu(), y.grad().defined() ? y.grad().cpu() : x.cpu()};
    };
    const auto expected = run(at::kCPU), got = run(device());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const at::Tensor other = i == 2 && !got[2].defined() ? expected[2] : got[i];
      EXPECT_TRUE(same_bits(other, expected[i])) << item.name << " " << i;
    }
  }
}

TEST_F(SimulatedDevice, OperatorsWithoutGradients) {
  const auto run = [](c10::Device on) {
    const at::NoGradGuard no_grad;
    at::Tensor x = filled({6, 5}, 1).to(on), y = filled({6, 5}, 2).to(on);
    std::vector<at::Tensor> out;
    const auto sums = at::_foreach_add({x, y}, {y, x}, 2);
    out.insert(out.end(), sums.begin(), sums.end());
    std::vector<at::Tensor> list{x.clone(), y.clone()};
    at::_foreach_mul_(list, 0.5);
    out.insert(out.end(), list.begin(), list.end());
    out.push_back(at::stack(at::_foreach_norm(list)));
    out.push_back(x.nonzero());
    out.push_back(x.masked_select(y > 0));
    out.push_back(std::get<0>(at::_unique(at::tensor({3, 1, 3}).to(on))));
    out.push_back((x > y).to(at::kLong).cumsum(0));
    at::Tensor target = at::empty({0}, x.options());
    at::add_out(target, x, y);
    out.push_back(target);
    out.push_back(x.clone().index_put_({at::tensor({0, 2}).to(on)}, y[0]));
    out.push_back(at::tensor({1.0, 2.5}, at::TensorOptions(on).dtype(at::kDouble)));
    out.push_back(x.view(at::kInt).bitwise_and(255));
    out.push_back(at::zeros({0, 3}, x.options()).sum(0));
    x.resize_({7, 5});
    out.push_back(x.narrow(0, 0, 6).clone());
    at::Tensor shared = at::empty({0}, y.options());
    shared.set_(y.storage(), 5, {2, 5}, {5, 1});
    out.push_back(shared + 1);
    shared.set_data(y.t());
    out.push_back(shared.contiguous());
    out.push_back(std::get<0>(y.topk(2)));
    out.push_back(at::scalar_tensor(y.equal(y) && y[0][1].item<float>() == y.cpu()[0][1].item<float>(), on));
    for (at::Tensor& tensor : out) tensor = tensor.cpu();
    return out;
  };
  const auto expected = run(at::kCPU), got = run(device());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
}

TEST_F(SimulatedDevice, AnLstmTrains) {
  const auto run = [](c10::Device on) {
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 3).batch_first(true));
    int phase = 0;
    for (at::Tensor& parameter : lstm->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(filled(parameter.sizes(), ++phase));
    }
    lstm->to(on);
    std::get<0>(lstm(filled({2, 5, 4}, 0).to(on))).sum().backward();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : lstm->parameters()) gradients.push_back(parameter.grad().cpu());
    return gradients;
  };
  const auto expected = run(at::kCPU), got = run(device());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-4, 1e-6)) << i;
}

TEST_F(SimulatedDevice, OperandsMustBeOnTheDevice) {
  const at::Tensor x = at::ones({3}, device());
  EXPECT_EQ((x + at::scalar_tensor(2)).sum().item<float>(), 9);
  EXPECT_THROW(x + at::ones({3}), c10::Error);
  EXPECT_THROW(at::mm(x, x), c10::Error);
  at::Tensor released = at::ones({3}, device());
  released.storage().unsafeGetStorageImpl()->set_nbytes(0);
  EXPECT_THROW(released + 1, c10::Error);
}

TEST_F(SimulatedDevice, WhatAnOperatorThrowsArrivesWhenTheHostWaits) {
  const at::Tensor out = at::ones({3}, device()).index_select(0, at::full({1}, 5, at::kLong).to(device()));
  EXPECT_THROW(out.cpu(), c10::Error);
  finish();
}

TEST_F(SimulatedDevice, ItsGeneratorRepeatsWhatItDrew) {
  const at::Generator generator = at::globalContext().defaultGenerator(device());
  at::Generator changed = generator;
  const at::Tensor host_state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto drawn = [] {
    const at::Tensor x = at::ones({200}, device());
    return at::cat({at::dropout(x, 0.3, true), at::randn({50}, device()), at::rand_like(x), at::bernoulli(x * 0.5)})
        .cpu();
  };
  const at::Tensor state = generator.get_state();
  const at::Tensor first = drawn(), second = drawn();
  EXPECT_FALSE(same_bits(first, second));
  changed.set_state(state);
  EXPECT_TRUE(same_bits(first, drawn()));
  EXPECT_TRUE(same_bits(host_state, at::globalContext().defaultGenerator(at::kCPU).get_state()));
}

TEST_F(SimulatedDevice, BackwardFollowsTheStreamsOfForward) {
  const Parameters initial{filled({16, 8}, 1) * 0.3, filled({16, 16}, 3) * 0.3};
  const auto loss = [](const Parameters& p, int step) {
    const auto on = p[0].device();
    at::Tensor x = at::linear(filled({5, 8}, 10 + step).to(on), p[0]).tanh();
    if (on.is_cpu()) return (at::linear(x, p[1]).tanh() * x).sum();
    const c10::Stream side = pooled(), main = guard().getStream(on);
    c10::Event ready(on.type()), done(on.type());
    ready.record(main);
    ready.block(side);
    at::Tensor y;
    {
      const c10::StreamGuard on_side(side);
      y = at::linear(x, p[1]).tanh();
      done.record(side);
    }
    done.block(main);
    x.record_stream(side);
    y.record_stream(main);
    return (y * x).sum();
  };
  expect_bits_of_the_cpu(initial, loss, 50);
}

/// A value that goes to a side stream and comes back; every wait in it is needed.
at::Tensor there_and_back() {
  const c10::Stream side = pooled(), back = guard().getStream(device());
  at::Tensor a = filled({300}, 1).to(device()).mul(2).add(1);
  const at::Tensor b = at::zeros({300}, device());
  c10::Event ready(device().type()), copied(device().type()), arrived(device().type());
  ready.record(back);
  ready.block(side);
  {
    const c10::StreamGuard on_side(side);
    b.copy_(a, true);
    copied.record(side);
  }
  copied.block(back);
  a.zero_();
  const at::Tensor c = b + 1;
  at::Tensor host = at::zeros({300});
  host.copy_(c, true);
  arrived.record(back);
  arrived.synchronize();
  at::Tensor result = host.clone();
  finish();
  return result;
}

TEST_F(SimulatedDevice, EveryOrderIsRightWithAllWaitsAndSomeAreWrongWithoutOne) {
  const at::Tensor expected = filled({300}, 1) * 2 + 1 + 1;
  EXPECT_EQ(count_seeds(200,
                        [&](std::uint64_t seed) {
                          start({.seed = seed});
                          return same_bits(there_and_back(), expected) && counts().waits == 3;
                        }),
            200);
  for (int left_out = 0; left_out < 3; ++left_out) {
    const int wrong = count_seeds(200, [&](std::uint64_t seed) {
      int waits = 0;
      start({.seed = seed, .leave_out = [&](const Wait&) { return waits++ == left_out; }});
      const bool right = same_bits(there_and_back(), expected);
      start({});
      return !right;
    });
    EXPECT_GE(wrong, 10) << "of 200 seeds, without wait " << left_out;
  }
}

TEST_F(SimulatedDevice, WaitsAreNamedByTheStreams) {
  std::vector<std::pair<int, int>> seen;
  start({.leave_out = [&](const Wait& wait) {
    seen.emplace_back(wait.waiting, wait.awaited);
    return false;
  }});
  there_and_back();
  there_and_back();
  const std::vector<std::pair<int, int>> expected{{1, 0}, {0, 1}, {-1, 0}, {2, 0}, {0, 2}, {-1, 0}};
  EXPECT_EQ(seen, expected);
  start({});
}

/// Adds 1 on a side stream to a tensor that is freed, and its memory used again, before the host waits.
bool right_when_freed(std::uint64_t seed, bool record, bool reused) {
  start({.seed = seed});
  const c10::Stream side = pooled(), main = guard().getStream(device());
  at::Tensor x = at::full({300}, 2.0, device());
  c10::Event ready(device().type());
  ready.record(main);
  ready.block(side);
  at::Tensor y;
  {
    const c10::StreamGuard on_side(side);
    y = x + 1;
  }
  if (record) x.record_stream(side);
  x.reset();
  at::Tensor other;
  if (reused) other = at::full({300}, 7.0, device());
  guard().synchronizeStream(main);
  {
    const c10::StreamGuard on_side(side);
    y = y.cpu();
  }
  finish();
  return same_bits(y, at::full({300}, 3, at::kFloat)) &&
         (!reused || same_bits(other.cpu(), at::full({300}, 7, at::kFloat)));
}

TEST_F(SimulatedDevice, MemoryThatIsFreedWhileAnotherStreamUsesItNeedsRecordStream) {
  for (const bool reused : {false, true}) {
    const auto right = [&](bool record) {
      return count_seeds(100, [&](std::uint64_t seed) { return right_when_freed(seed, record, reused); });
    };
    EXPECT_EQ(right(true), 100);
    EXPECT_LE(right(false), 95);
  }
}

TEST_F(SimulatedDevice, RecordedMemoryIsUsedAgainOnceTheOtherStreamIsDone) {
  const c10::Stream side = pooled();
  at::Tensor x = at::ones({300}, device());
  const void* const address = x.const_data_ptr();
  at::Tensor y;
  {
    const c10::StreamGuard on_side(side);
    y = at::ones({200000}, device());
  }
  x.record_stream(side);
  x.reset();
  const at::Tensor early = at::empty({300}, device());
  EXPECT_NE(early.const_data_ptr(), address);
  finish();
  const at::Tensor late = at::empty({300}, device());
  EXPECT_EQ(late.const_data_ptr(), address);
  {
    const c10::StreamGuard on_side(side);
    y.reset();
    y = at::ones({300}, device());
  }
  EXPECT_NE(y.const_data_ptr(), address);
}

TEST_F(SimulatedDevice, ASeedIsAnOrder) {
  const auto order_of = [](std::uint64_t seed) {
    start({.seed = seed});
    for (int i = 0; i < 5; ++i) there_and_back();
    train(transformer(), transformer_loss, device());
    return order();
  };
  std::set<std::uint64_t> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto first = order_of(seed);
    EXPECT_EQ(order_of(seed), first);
    orders.insert(first);
  }
  EXPECT_GT(orders.size(), 10u);
}

TEST_F(SimulatedDevice, PollingEnds) {
  const int polled = count_seeds(50, [](std::uint64_t seed) {
    start({.seed = seed});
    at::Tensor x = at::ones({10}, device());
    for (int i = 0; i < 20; ++i) x = x + 1;
    c10::Event event(device().type());
    event.record(guard().getStream(device()));
    int polls = 0;
    while (!event.query() && polls < 1000) ++polls;
    EXPECT_LT(polls, 1000);
    while (!guard().queryStream(guard().getStream(device())) && polls < 1000) ++polls;
    EXPECT_LT(polls, 1000);
    return polls > 1;
  });
  EXPECT_GT(polled, 25);
}

TEST_F(SimulatedDevice, CopiesThatDoNotBlockAreLate) {
  const auto arrived_early = [](std::uint64_t seed) {
    start({.seed = seed});
    const at::Tensor x = at::full({10}, 3.0, device());
    const at::Tensor host = at::zeros({10});
    host.copy_(x, true);
    const bool early = host[0].item<float>() == 3;
    guard().synchronizeDevice(0);
    EXPECT_EQ(host[9].item<float>(), 3);
    return early;
  };
  EXPECT_LT(count_seeds(50, arrived_early), 50);
  const auto read_late = [](std::uint64_t seed) {
    start({.seed = seed});
    const at::Tensor host = at::ones({10}, at::kInt), blocking = at::ones({10}, at::kInt);
    const at::Tensor x = at::empty({10}, device()), y = at::empty({10}, device());
    x.copy_(host, true);
    y.copy_(blocking);
    host.fill_(5);
    blocking.fill_(5);
    EXPECT_EQ(y.cpu()[3].item<float>(), 1);
    return x.cpu()[3].item<float>() == 5;
  };
  const int late = count_seeds(50, read_late);
  EXPECT_GT(late, 0);
  EXPECT_EQ(counts().copies_to_host, 2);
  EXPECT_EQ(counts().copies_to_device, 2);
}

TEST_F(SimulatedDevice, CountsItsMemory) {
  const auto before = counts().live_nbytes;
  at::Tensor x = at::empty({1000}, device());
  EXPECT_EQ(counts().live_nbytes, before + 4000);
  x.reset();
  EXPECT_EQ(counts().live_nbytes, before);
  EXPECT_EQ(counts().peak_nbytes, before + 4000);
}

TEST_F(SimulatedDevice, StreamsOfThePoolAreDistinct) {
  std::set<c10::StreamId> ids{0};
  for (int i = 0; i < 8; ++i) ids.insert(pooled().id());
  EXPECT_EQ(ids.size(), 9u);
  EXPECT_EQ(guard().getStream(device()).id(), 0);
}

}  // namespace
}  // namespace zero::testing::simulated::simulated_device_test
