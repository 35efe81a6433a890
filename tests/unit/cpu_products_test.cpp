// Promise: 16-bit products in fp32 are the products of the widened operands, rounded once; whatever libtorch's own
// kernels take or refuse, these take or refuse, with results of the same sizes and strides.
#include "zero/cpu_products.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "support/errors.h"
#include "zero/errors.h"

namespace zero::testing::cpu_products_test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

class CpuProducts_ : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }

  at::ScalarType dtype() const { return GetParam(); }
  DType own_dtype() const { return dtype() == at::kBFloat16 ? DType::kBFloat16 : DType::kFloat16; }
  Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes).to(dtype()); }
  CpuProductsScope in_fp32() const { return {CpuProducts::kFp32, own_dtype()}; }

  /// `f` of widened inputs, by libtorch in fp32, each result rounded: what there should be, but for the order of sums.
  Tensors expected(const Operation& f, const Tensors& inputs) const {
    Tensors wide;
    for (const auto& input : inputs) wide.push_back(input.is_floating_point() ? input.to(at::kFloat) : input);
    return f(wide);
  }

  /// One rounding of the result, beside what the order of fp32 sums changes.
  void expect_rounded_once(const Operation& f, const Tensors& inputs) const {
    const Tensors native = f(inputs), wanted = expected(f, inputs);
    const auto scope = in_fp32();
    const Tensors got = f(inputs);
    const double step = dtype() == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].scalar_type(), native[i].scalar_type());
      ASSERT_EQ(got[i].sizes(), native[i].sizes());
      EXPECT_EQ(got[i].strides(), native[i].strides());
      const Tensor exact = wanted[i].to(at::kDouble), error = (got[i].to(at::kDouble) - exact).abs();
      const double noise = 1e-5 * exact.abs().max().item<double>();
      EXPECT_LE((error - exact.abs() * step - noise).max().item<double>(), 0) << "result " << i;
    }
  }
};

/// The same elements in another layout.
Tensor transposed_in_memory(const Tensor& tensor) { return tensor.transpose(-1, -2).contiguous().transpose(-1, -2); }
Tensor with_gaps(const Tensor& tensor) {
  Tensor wide = at::zeros({tensor.size(0) * 2, tensor.size(1) * 2}, tensor.options());
  Tensor view = wide.slice(0, 0, at::nullopt, 2).slice(1, 0, at::nullopt, 2);
  view.copy_(tensor);
  return view;
}

TEST_P(CpuProducts_, MatricesOfOddSizesAndLayouts) {
  const Operation mm = [](const Tensors& in) { return Tensors{at::mm(in[0], in[1])}; };
  const std::vector<std::array<std::int64_t, 3>> shapes = {{1, 1, 1},   {1, 7, 5},    {7, 1, 5},      {7, 5, 1},
                                                           {33, 17, 9}, {513, 3, 70}, {5, 1030, 514}, {600, 40, 1025}};
  for (const auto& [m, n, k] : shapes) {
    SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k));
    const Tensor a = random({m, k}), b = random({k, n});
    expect_rounded_once(mm, {a, b});
    expect_rounded_once(mm, {transposed_in_memory(a), b});
    expect_rounded_once(mm, {a, transposed_in_memory(b)});
    expect_rounded_once(mm, {transposed_in_memory(a), transposed_in_memory(b)});
    expect_rounded_once(mm, {with_gaps(a), with_gaps(b)});
    expect_rounded_once(mm, {a.narrow(0, 0, 1).expand({m, k}), b.narrow(1, 0, 1).expand({k, n})});
  }
}

TEST_P(CpuProducts_, SeveralThreadsGiveTheSameRounding) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  expect_rounded_once(
      [](const Tensors& in) {
        return Tensors{at::mm(in[0], in[1]), at::bmm(in[2], in[3])};
      },
      {random({700, 600}), random({600, 900}), random({9, 65, 33}), random({9, 33, 130})});
  at::set_num_threads(threads);
}

TEST_P(CpuProducts_, SumsWithWhatIsAdded) {
  const Tensor a = random({19, 600}), b = random({600, 540});
  for (const double beta : {1.0, 0.5, 0.0}) {
    for (const double alpha : {1.0, -2.0}) {
      const Operation addmm = [&](const Tensors& in) { return Tensors{at::addmm(in[2], in[0], in[1], beta, alpha)}; };
      expect_rounded_once(addmm, {a, b, random({540})});
      expect_rounded_once(addmm, {a, b, random({19, 1})});
      expect_rounded_once(addmm, {a, b, random({})});
      expect_rounded_once(addmm, {a, b, random({19, 540})});
      expect_rounded_once(addmm, {a, b, transposed_in_memory(random({19, 540}))});
      const Operation in_place = [&](const Tensors& in) {
        return Tensors{in[2].clone().addmm_(in[0], in[1], beta, alpha),
                       transposed_in_memory(in[2]).addmm_(in[0], in[1], beta, alpha)};
      };
      expect_rounded_once(in_place, {a, b, random({19, 540})});
      const Operation batch = [&](const Tensors& in) {
        return Tensors{at::baddbmm(in[2], in[0], in[1], beta, alpha),
                       in[2].expand({6, 4, 9}).contiguous().baddbmm_(in[0], in[1], beta, alpha)};
      };
      expect_rounded_once(batch, {random({6, 4, 31}), random({6, 31, 9}), random({4, 9})});
      const Operation vector = [&](const Tensors& in) {
        return Tensors{at::addmv(in[2], in[0], in[1], beta, alpha),
                       in[2].expand({19}).clone().addmv_(in[0], in[1], beta, alpha)};
      };
      expect_rounded_once(vector, {a, random({600}), random({19})});
    }
  }
  // What is not read may hold anything.
  const auto scope = in_fp32();
  const Tensor nan = at::full({19, 540}, std::numeric_limits<double>::quiet_NaN(), a.options());
  EXPECT_TRUE(at::equal(at::addmm(nan, a, b, 0, 1), at::mm(a, b)));
}

TEST_P(CpuProducts_, OneRowByATransposedWeight) {
  for (const std::int64_t k : {3, 77, 4096}) {
    const Tensor x = random({1, k}), weight = random({29, k}), bias = random({29});
    expect_rounded_once(
        [&](const Tensors& in) {
          const Tensor row = in[0][0], matrix = in[1];
          return Tensors{at::linear(in[0], matrix),
                         at::linear(in[0], matrix, in[2]),
                         at::linear(row.expand({1, 1, k}), matrix, in[2]),
                         at::addmm(in[2], in[0], matrix.t(), 0.5, -2),
                         at::addmm(in[2], in[0], transposed_in_memory(matrix).t(), 0.5, -2),
                         at::mv(matrix, row),
                         at::mv(transposed_in_memory(matrix), row),
                         at::addmv(in[2], matrix, row, 0.5, -2),
                         at::addmv(in[2], with_gaps(matrix), with_gaps(in[0])[0], 0.5, -2)};
        },
        {x, weight, bias});
  }
}

TEST_P(CpuProducts_, ResultsInTensorsOfTheProgram) {
  const Tensor a = random({12, 8}), b = random({8, 5}), c = random({5}), x = random({3, 4, 6}), y = random({3, 6, 2});
  const Operation out = [](const Tensors& in) {
    const auto options = in[0].options();
    Tensor mm = at::empty({0}, options), columns = at::empty({5, 12}, options).t(), bmm = at::empty({3, 4, 2}, options),
           added = at::empty({12, 5}, options), batch = at::empty({3, 4, 2}, options),
           vector = at::empty({12}, options);
    at::mm_out(mm, in[0], in[1]);
    at::mm_out(columns, in[0], in[1]);
    at::bmm_out(bmm, in[3], in[4]);
    at::addmm_out(added, in[2], in[0], in[1]);
    at::baddbmm_out(batch, in[4].narrow(1, 0, 1), in[3], in[4]);
    at::addmv_out(vector, in[0].select(1, 0), in[0], in[0].select(0, 1));
    return Tensors{mm, columns, bmm, added, batch, vector};
  };
  expect_rounded_once(out, {a, b, c, x, y});
}

TEST_P(CpuProducts_, BatchesLargeAndSmall) {
  const Operation bmm = [](const Tensors& in) { return Tensors{at::bmm(in[0], in[1])}; };
  const std::vector<std::array<std::int64_t, 4>> shapes = {
      {1, 4, 5, 6}, {300, 9, 33, 7}, {3, 600, 20, 520}, {2, 1, 1, 1}};
  for (const auto& [count, m, n, k] : shapes) {
    const Tensor a = random({count, m, k}), b = random({count, k, n});
    expect_rounded_once(bmm, {a, b});
    expect_rounded_once(bmm, {transposed_in_memory(a), transposed_in_memory(b)});
    expect_rounded_once(bmm, {a.narrow(0, 0, 1).expand({count, m, k}), b});
    expect_rounded_once(
        bmm, {a.transpose(0, 1).contiguous().transpose(0, 1), b.transpose(0, 1).contiguous().transpose(0, 1)});
  }
}

TEST_P(CpuProducts_, WhatComesDownToProducts) {
  expect_rounded_once(
      [](const Tensors& in) {
        return Tensors{at::linear(in[0], in[1], in[2]),
                       at::matmul(in[0], in[1].t()),
                       at::einsum("bij,kj->bik", {in[0], in[1]}),
                       at::matmul(in[1], in[0].select(0, 0).select(0, 0)),
                       at::dot(in[2], in[2]),
                       at::mv(in[1], in[0][0][0])};
      },
      {random({3, 4, 8}), random({5, 8}), random({5})});
}

/// `f` with gradients of its inputs for a given gradient of its first result.
Operation with_gradients(const Operation& f) {
  return [f](const Tensors& in) {
    Tensors leaves;
    for (const auto& tensor : in) leaves.push_back(tensor.detach().requires_grad_(tensor.is_floating_point()));
    const Tensors results = f(leaves);
    at::manual_seed(9);
    const Tensor grad = at::randn(results[0].sizes()).to(at::kBFloat16).to(results[0].scalar_type());
    Tensors wanted;
    for (const auto& leaf : leaves) {
      if (leaf.requires_grad()) wanted.push_back(leaf);
    }
    Tensors all = torch::autograd::grad({results[0]}, wanted, {grad});
    all.insert(all.begin(), results[0].detach());
    return all;
  };
}

TEST_P(CpuProducts_, ConvolutionsAndTheirGradients) {
  const Tensor image = random({3, 4, 9, 11}), kernel = random({6, 4, 3, 3}), bias = random({6});
  const auto convolution = [](at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                              bool transposed, at::IntArrayRef output_padding, std::int64_t groups) {
    return with_gradients([=](const Tensors& in) {
      const std::optional<Tensor> bias = in.size() > 2 ? std::optional(in[2]) : std::nullopt;
      return Tensors{
          at::convolution(in[0], in[1], bias, stride, padding, dilation, transposed, output_padding, groups)};
    });
  };
  const std::array<std::int64_t, 2> one{1, 1}, two{2, 2}, zero{0, 0};
  expect_rounded_once(convolution(one, one, one, false, zero, 1), {image, kernel, bias});
  expect_rounded_once(convolution(two, zero, two, false, zero, 1), {image, kernel});
  expect_rounded_once(convolution(one, one, one, false, zero, 2), {image, random({6, 2, 3, 3}), bias});
  expect_rounded_once(convolution(two, one, one, true, one, 1), {image, random({4, 6, 3, 3}), bias});
  const std::array<std::int64_t, 1> one1{1}, zero1{0};
  expect_rounded_once(convolution(one1, one1, one1, false, zero1, 1), {random({2, 4, 20}), random({6, 4, 3}), bias});
}

TEST_P(CpuProducts_, AttentionAndItsGradients) {
  const auto attention = [](bool causal, bool has_mask) {
    return with_gradients([=](const Tensors& in) {
      const std::optional<Tensor> mask = has_mask ? std::optional(in[3].detach()) : std::nullopt;
      return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, causal)};
    });
  };
  const auto heads = [&](std::int64_t length) { return random({3, 4, length, 8}); };
  const Tensor strided = random({3, 21, 4, 8}).transpose(1, 2);
  // Softmax and sums of gradients are rounded on the way in libtorch's own kernel: the same inputs, within some steps.
  for (const bool causal : {false, true}) {
    const Operation f = attention(causal, false);
    const Tensors in = {heads(21), strided, heads(21)}, wanted = expected(f, in), native = f(in);
    const auto scope = in_fp32();
    const Tensors got = f(in);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = (got[i].to(at::kFloat) - wanted[i]).abs().max().item<double>();
      const double of_native = (native[i].to(at::kFloat) - wanted[i]).abs().max().item<double>();
      EXPECT_LE(error, 1.25 * of_native + 1e-6) << "result " << i;
      EXPECT_EQ(got[i].strides(), native[i].strides());
    }
  }
  for (const Tensor& mask : {random({21, 33}), random({3, 1, 21, 33}), random({1, 4, 21, 33})}) {
    const Operation f = [&](const Tensors& in) {
      return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], in[3])};
    };
    expect_rounded_once(f, {heads(21), heads(33), heads(33), mask});
  }
  // More than one part of the heads, and of the samples.
  expect_rounded_once([](const Tensors& in) { return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2])}; },
                      {random({2, 5, 1100, 64}), random({2, 5, 1100, 64}), random({2, 5, 1100, 64})});
}

TEST_P(CpuProducts_, RecurrentNetworksAndTheirGradients) {
  const std::int64_t hidden = 5, inputs = 7;
  const auto weights = [&](std::int64_t gates, std::int64_t layers, std::int64_t directions, bool has_biases) {
    Tensors all;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (std::int64_t direction = 0; direction < directions; ++direction) {
        all.push_back(random({gates * hidden, layer == 0 ? inputs : hidden * directions}));
        all.push_back(random({gates * hidden, hidden}));
        for (int i = 0; has_biases && i < 2; ++i) all.push_back(random({gates * hidden}));
      }
    }
    return all;
  };
  for (const bool has_biases : {true, false}) {
    for (const std::int64_t directions : {1, 2}) {
      for (const bool batch_first : {false, true}) {
        const Operation f = with_gradients([=](const Tensors& in) {
          const Tensors hx(in.begin() + 1, in.begin() + 3), params(in.begin() + 3, in.end());
          auto [output, hy, cy] = at::lstm(in[0], hx, params, has_biases, 2, 0.0, true, directions == 2, batch_first);
          return Tensors{at::cat({output.reshape({-1}), hy.reshape({-1}), cy.reshape({-1})})};
        });
        Tensors in = {batch_first ? random({3, 6, inputs}) : random({6, 3, inputs}),
                      random({2 * directions, 3, hidden}), random({2 * directions, 3, hidden})};
        for (auto& weight : weights(4, 2, directions, has_biases)) in.push_back(weight.mul(0.3));
        const Tensors wanted = expected(f, in), native = f(in);
        const auto scope = in_fp32();
        const Tensors got = f(in);
        for (std::size_t i = 0; i < got.size(); ++i) {
          // Between layers and to and from the states there is one rounding each.
          const double error = (got[i].to(at::kFloat) - wanted[i]).abs().max().item<double>();
          const double of_native = (native[i].to(at::kFloat) - wanted[i]).abs().max().item<double>();
          EXPECT_LE(error, 1.25 * of_native + 1e-3 * wanted[i].abs().max().item<double>()) << "result " << i;
          EXPECT_EQ(got[i].sizes(), native[i].sizes());
        }
      }
    }
  }
}

TEST_P(CpuProducts_, BackwardAfterTheScopeIsTheSame) {
  const Tensors leaves = {random({6, 3, 7}), random({1, 3, 5}),    random({1, 3, 5}),   random({20, 7}),
                          random({20, 5}),   random({4, 4, 3, 3}), random({2, 4, 9, 9})};
  const auto gradients = [&](bool inside) {
    Tensors in;
    for (const auto& leaf : leaves) in.push_back(leaf.detach().requires_grad_());
    std::optional<CpuProductsScope> scope(in_fp32());
    const Tensor output =
        std::get<0>(at::lstm(in[0], {in[1], in[2]}, {in[3], in[4]}, false, 1, 0.0, true, false, false));
    const Tensor image = at::conv2d(in[6], in[5]), attended = at::scaled_dot_product_attention(in[6], in[6], in[6]);
    const Tensor loss = output.sum() + image.sum() + attended.sum();
    if (!inside) scope.reset();
    return torch::autograd::grad({loss}, {in.begin(), in.end()});
  };
  const Tensors inside = gradients(true), outside = gradients(false);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(outside[i], inside[i])) << "gradient " << i;
  for (std::size_t i = 5; i < inside.size(); ++i) EXPECT_TRUE(at::allclose(outside[i], inside[i], 0.05, 0.5)) << i;
}

TEST_P(CpuProducts_, RefusesWhatLibtorchRefuses) {
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  const Tensor a = random({3, 4}), b = random({5, 6}), x = random({2, 3, 4});
  const std::vector<std::function<void()>> wrong = {
      [&] { at::mm(a, b); },
      [&] { at::mm(a, x); },
      [&] {
        at::mm(a, at::ones({4, 2}));
      },
      [&] {
        at::bmm(x, random({3, 4, 2}));
      },
      [&] {
        at::addmm(random({7}), a, random({4, 2}));
      },
      [&] { at::addmv(random({3}), a, random({5})); },
      [&] { at::dot(random({3}), random({4})); },
      [&] { at::linear(a, b); },
  };
  for (const auto& f : wrong) {
    const std::string native = message(f);
    const auto scope = in_fp32();
    EXPECT_FALSE(native.empty());
    EXPECT_EQ(message(f), native);
  }
  const auto scope = in_fp32();
  EXPECT_EQ(at::mm(random({0, 4}), random({4, 3})).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(at::mm(random({2, 0}), random({0, 3})).abs().max().item<double>(), 0);
}

TEST_P(CpuProducts_, NotNumbersStayWhereTheyAre) {
  const auto scope = in_fp32();
  Tensor a = random({4, 600});
  a[1][7] = std::numeric_limits<float>::infinity();
  a[2][8] = std::numeric_limits<float>::quiet_NaN();
  const Tensor b = random({600, 3}).abs(), c = at::mm(a, b);
  EXPECT_TRUE(c[0].isfinite().all().item<bool>() && c[3].isfinite().all().item<bool>());
  EXPECT_TRUE(c[1].isinf().all().item<bool>());
  EXPECT_TRUE(c[2].isnan().all().item<bool>());
}

TEST_P(CpuProducts_, DerivativesWithoutMemoryAreZero) {
  const auto scope = in_fp32();
  const Tensor a = random({4}), m = random({4, 4}), zero = at::_efficientzerotensor({4}, a.options());
  EXPECT_EQ(at::dot(a, zero).item<double>(), 0);
  EXPECT_EQ(at::mv(m, zero).abs().max().item<double>(), 0);
  EXPECT_EQ(at::mm(m, zero.unsqueeze(1)).abs().max().item<double>(), 0);
}

TEST_P(CpuProducts_, OthersAreLeftAlone) {
  const Tensor a = at::randn({40, 30}), b = at::randn({30, 20}), wanted = at::mm(a, b);
  const DType other = own_dtype() == DType::kBFloat16 ? DType::kFloat16 : DType::kBFloat16;
  const Tensor x = random({40, 30}), y = random({30, 20}), native = at::mm(x, y);
  const CpuProductsScope scope(CpuProducts::kFp32, other);
  EXPECT_TRUE(at::equal(at::mm(a, b), wanted));
  EXPECT_TRUE(at::equal(at::mm(x, y), native));
}

TEST_P(CpuProducts_, OneWayAtATime) {
  {
    const CpuProductsScope first = in_fp32(), second = in_fp32();
    const std::string message = error_of<ConfigError>([&] { CpuProductsScope(CpuProducts::kNative, own_dtype()); });
    EXPECT_NE(message.find("zerotorch.cpu_products"), std::string::npos) << message;
  }
  {
    const CpuProductsScope first = in_fp32(), second(CpuProducts::kAuto, own_dtype());
    EXPECT_EQ(second.chosen(), CpuProducts::kFp32) << "what is open decides";
  }
  const CpuProductsScope native(CpuProducts::kNative, own_dtype());
  EXPECT_EQ(CpuProductsScope(CpuProducts::kAuto, own_dtype()).chosen(), CpuProducts::kNative);
  EXPECT_EQ(native.chosen(), CpuProducts::kNative);
  EXPECT_THROW(in_fp32(), ConfigError);
  EXPECT_THROW(CpuProductsScope(CpuProducts::kFp32, DType::kFloat32), ConfigError);
}

TEST_P(CpuProducts_, TheFasterWayIsTaken) {
  const ProductSpeed speed = measure_cpu_products(own_dtype());
  EXPECT_GT(speed.native, 0);
  EXPECT_GT(speed.in_fp32, 0);
  // Two measurements that do not agree are not near each other, either.
  const bool in_fp32 = faster_cpu_products(own_dtype()) == CpuProducts::kFp32;
  if (speed.in_fp32 > 4 * speed.native) {
    EXPECT_TRUE(in_fp32);
  } else if (speed.in_fp32 < speed.native) {
    EXPECT_FALSE(in_fp32);
  }
  EXPECT_EQ(measure_cpu_products(DType::kFloat32).in_fp32, 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CpuProducts_, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return info.param == at::kBFloat16 ? "bf16" : "fp16"; });

}  // namespace
}  // namespace zero::testing::cpu_products_test
