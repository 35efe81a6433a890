// Promise: linear_cross_entropy() is cross_entropy(linear()), with few logits at a time.
#include "zero/lm/loss.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "support/errors.h"
#include "zero/errors.h"

namespace zero::testing::loss_test {
namespace {

using at::Tensor;

constexpr std::int64_t kVocab = 29, kDim = 12;

struct Inputs {
  Tensor hidden, weight, targets;
};

Inputs inputs(at::ScalarType dtype, std::int64_t batch = 3, std::int64_t length = 7) {
  at::manual_seed(5);
  Inputs in{at::randn({batch, length, kDim}).to(dtype).requires_grad_(), at::randn({kVocab, kDim}).to(dtype),
            at::randint(0, kVocab, {batch, length}, at::kLong)};
  in.weight.requires_grad_();
  in.targets.view({-1}).slice(0, 1, at::nullopt, 4).fill_(-100);
  return in;
}

Tensor plain(const Inputs& in, std::int64_t ignored = -100) {
  const Tensor logits = at::linear(in.hidden, in.weight).to(at::kFloat).view({-1, kVocab});
  return at::cross_entropy_loss(logits, in.targets.view({-1}), {}, at::Reduction::Mean, ignored);
}

std::vector<Tensor> gradients(const Tensor& loss, const Inputs& in) {
  return torch::autograd::grad({loss}, {in.hidden, in.weight});
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), want.scalar_type());
  const Tensor wide = want.to(at::kDouble);
  EXPECT_LE((got.to(at::kDouble) - wide).abs().max().item<double>(), tolerance * wide.abs().max().item<double>());
}

TEST(LinearCrossEntropy, IsCrossEntropyOfLinear) {
  const std::pair<at::ScalarType, double> dtypes[] = {
      {at::kFloat, 1e-6}, {at::kDouble, 1e-6}, {at::kBFloat16, 1.0 / 128}, {at::kHalf, 1.0 / 1024}};
  for (const auto& [dtype, tolerance] : dtypes) {
    const Inputs in = inputs(dtype);
    const Tensor want = plain(in);
    const auto wanted = gradients(want, in);
    for (const std::int64_t rows : {1, 2, 5, 20}) {
      const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = rows});
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      expect_close(loss, want, 1e-6);
      const auto got = gradients(loss, in);
      expect_close(got[0], wanted[0], tolerance);
      expect_close(got[1], wanted[1], tolerance);
    }
    for (const std::int64_t rows : {0, 21, 100}) {  // all at once: the same bits
      const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = rows});
      EXPECT_TRUE(loss.equal(want));
      EXPECT_TRUE(gradients(loss, in)[1].equal(wanted[1]));
    }
  }
}

TEST(LinearCrossEntropy, DivisorInPlaceOfTheNumberOfTargets) {
  for (const bool some_count : {true, false}) {
    Inputs in = inputs(at::kDouble);
    if (!some_count) in.targets.fill_(-100);
    const double counted = in.targets.ne(-100).sum().item<double>();
    const Tensor want = some_count ? plain(in) * (counted / 7.5) : plain(in).nan_to_num(0.0);
    const auto wanted =
        some_count ? gradients(want, in) : std::vector{at::zeros_like(in.hidden), at::zeros_like(in.weight)};
    for (const std::int64_t rows : {0, 3, 20}) {
      const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = rows, .divisor = 7.5});
      expect_close(loss, want.to(at::kFloat), 1e-6);
      const auto got = gradients(loss, in);
      expect_close(got[0], wanted[0], 1e-6);
      expect_close(got[1], wanted[1], 1e-6);
    }
  }
  const Inputs in = inputs(at::kFloat);
  EXPECT_THROW(linear_cross_entropy(in.hidden, in.weight, in.targets, {.divisor = -1}), ModelError);
}

TEST(LinearCrossEntropy, SmallGradientsOfFp16AreKept) {
  const Inputs in = inputs(at::kHalf, 40, 50);
  const Inputs wide{in.hidden.detach().to(at::kDouble).requires_grad_(),
                    in.weight.detach().to(at::kDouble).requires_grad_(), in.targets};
  // Divided, gradients of the logits are too small for fp16; a scaler makes what comes of them large again.
  constexpr double kSmall = 1e-3;
  const auto truth = gradients(plain(wide) * kSmall, wide);
  const auto error = [&](const std::vector<Tensor>& of, std::size_t i) {
    return (of[i].to(at::kDouble) - truth[i]).norm().item<double>() / truth[i].norm().item<double>();
  };
  const auto by_operators = gradients(plain(in) * kSmall, in);
  const auto in_parts = gradients(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 64}) * kSmall, in);
  EXPECT_LT(error(in_parts, 1), error(by_operators, 1) / 2);
  // Those of a loss that a scaler has multiplied are that many times as large.
  const auto once = gradients(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 64}), in);
  const auto scaled = gradients(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 64}) * 4096, in);
  expect_close(scaled[1].to(at::kFloat) / 4096, once[1].to(at::kFloat), 1.0 / 1024);
}

TEST(LinearCrossEntropy, OnlyWhatIsWanted) {
  for (const bool hidden : {false, true}) {
    for (const bool weight : {false, true}) {
      Inputs in = inputs(at::kFloat);
      in.hidden.requires_grad_(hidden);
      in.weight.requires_grad_(weight);
      const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4});
      EXPECT_EQ(loss.requires_grad(), hidden || weight);
      if (!hidden && !weight) continue;
      loss.backward();
      EXPECT_EQ(in.hidden.grad().defined(), hidden);
      EXPECT_EQ(in.weight.grad().defined(), weight);
    }
  }
  const Inputs in = inputs(at::kFloat);
  const at::NoGradGuard no_grad;
  const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4});
  EXPECT_FALSE(loss.requires_grad());
  expect_close(loss, plain(in), 1e-6);
}

TEST(LinearCrossEntropy, BackwardTwiceAddsUp) {
  const Inputs in = inputs(at::kFloat);
  const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4});
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = in.weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(in.weight.grad().equal(once * 2));
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(LinearCrossEntropy, TargetsThatDoNotCount) {
  Inputs in = inputs(at::kFloat);
  in.targets.masked_fill_(in.targets.eq(-100), 7'000);
  expect_close(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4, .ignore_index = 7'000}),
               plain(in, 7'000), 1e-6);
  const auto got =
      gradients(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4, .ignore_index = 7'000}), in);
  expect_close(got[0], gradients(plain(in, 7'000), in)[0], 1e-6);
  in.targets.fill_(-100);
  for (const std::int64_t rows : {4, 100}) {
    const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = rows});
    EXPECT_TRUE(std::isnan(loss.item<float>()));
    for (const Tensor& gradient : gradients(loss, in)) EXPECT_EQ(gradient.abs().max().item<float>(), 0);
  }
  in.targets.fill_(0);
  in.targets[2][1] = kVocab;
  for (const std::int64_t rows : {4, 100})
    EXPECT_THROW(linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = rows}), c10::Error);
}

TEST(LinearCrossEntropy, UnderAutocast) {
  const Inputs in = inputs(at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor want = plain(in);
  const Tensor all = linear_cross_entropy(in.hidden, in.weight, in.targets);
  const Tensor parts = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(all.equal(want));
  expect_close(parts, want, 1e-6);
  const auto wanted = gradients(want, in), got = gradients(parts, in);
  for (std::size_t i = 0; i < 2; ++i) expect_close(got[i], wanted[i], 1.0 / 64);
}

TEST(LinearCrossEntropy, WhatIsNotAnInputIsAnError) {
  const Inputs in = inputs(at::kFloat);
  expect_said([&] { linear_cross_entropy(in.hidden, in.weight.t(), in.targets); },
              "got hidden [3, 7, 12] Float, weight [12, 29] Float, targets [3, 7] Long; want [..., D] and [V, D]");
  expect_said([&] { linear_cross_entropy(in.hidden.to(at::kHalf), in.weight, in.targets); }, "of one floating-point");
  expect_said([&] { linear_cross_entropy(in.hidden, in.weight, in.targets.view({7, 3})); }, "targets [7, 3]");
  expect_said([&] { linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = -1}); }, "rows is -1");
  const Tensor loss = linear_cross_entropy(in.hidden, in.weight, in.targets, {.rows = 4});
  expect_said([&] { torch::autograd::grad({loss}, {in.hidden}, {}, true, /*create_graph=*/true); },
              "gradients of gradients");
}

}  // namespace
}  // namespace zero::testing::loss_test
