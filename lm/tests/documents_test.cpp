// Promise: documents of a sequence do not see each other: what a model says of one is what it says of that alone,
// computed again or not, and so are the gradients.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "models/documents.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/models.h"

namespace zero::testing::documents_test {
namespace {

using at::Tensor;
using models::CausalLM;
using models::CausalLMConfig;

constexpr std::int64_t kSeparator = 5, kLength = 12;

/// [3, 12]: one in the middle of which the sequence begins, short ones, an empty one, one that ends with the sequence.
Tensor sequences() {
  const std::int64_t s = kSeparator;
  const std::vector<std::int64_t> values = {7, 9, 3, s, 1, 8, s, 2, 4, 4,  6, 1,  //
                                            s, 3, s, s, 8, 8, 7, 1, 0, 2,  9, s,  //
                                            1, 2, 3, 4, 0, 6, 7, 8, 9, 10, 3, 4};
  return at::tensor(values, at::kLong).view({3, kLength});
}

/// Of sequences(): row, first, length.
constexpr std::int64_t kSpans[][3] = {{0, 0, 3}, {0, 3, 3}, {0, 6, 6},  {1, 0, 2},
                                      {1, 2, 1}, {1, 3, 8}, {1, 11, 1}, {2, 0, 12}};

Tensor part(const Tensor& x, const std::int64_t (&span)[3]) {
  return x.narrow(0, span[0], 1).narrow(1, span[1], span[2]);
}

TEST(Documents, BeginWithASeparatorAndWithTheSequence) {
  const auto documents = models::Documents::of(sequences(), kSeparator);
  ASSERT_TRUE(documents);
  EXPECT_EQ(documents->longest(), 12);
  Tensor positions = at::empty({3, kLength}, at::kLong);
  for (const auto& span : kSpans) part(positions, span).copy_(at::arange(span[2]).unsqueeze(0));
  EXPECT_TRUE(documents->positions().equal(positions));
  EXPECT_FALSE(models::Documents::of(sequences(), -1));
  EXPECT_FALSE(models::Documents::of(sequences(), 100));
  EXPECT_FALSE(models::Documents::of(at::full({2, 1}, kSeparator, at::kLong), kSeparator));
}

template <class Model>
void fill(Model& model) {
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (Tensor& parameter : model->parameters()) {
    const Tensor values = at::arange(parameter.numel()).to(at::kFloat).mul(0.7).add(++phase).sin();
    parameter.copy_(values.view(parameter.sizes()).mul(parameter.dim() == 1 ? 0.5 : 0.2));
  }
}

/// Gradients of all parameters.
template <class Model>
std::vector<Tensor> gradients(Model& model, const Tensor& loss) {
  model->zero_grad();
  loss.backward();
  std::vector<Tensor> all;
  for (const Tensor& parameter : model->parameters())
    all.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter));
  return all;
}

/// `Make(separator, recompute_every)` makes the model with the same weights each time.
template <class Make>
void expect_documents_apart(Make make) {
  at::set_num_threads(1);
  auto apart = make(kSeparator, 0), alone = make(std::int64_t{-1}, 0), again = make(kSeparator, 1);
  const Tensor tokens = sequences(), targets = (tokens + 1).remainder(11);
  const Tensor logits = apart->forward(tokens);
  std::vector<Tensor> sum;
  for (const auto& span : kSpans) {
    const Tensor expected = alone->forward(part(tokens, span));
    EXPECT_TRUE(part(logits, span).allclose(expected, 1e-4, 1e-5))
        << "document " << span[0] << ", " << span[1] << ": " << (part(logits, span) - expected).abs().max();
    const Tensor loss = alone->loss(part(tokens, span), part(targets, span));
    const auto share = static_cast<double>(span[2]) / static_cast<double>(tokens.numel());
    const auto some = gradients(alone, loss * share);
    for (std::size_t i = 0; i < some.size(); ++i) i < sum.size() ? sum[i] += some[i] : sum.emplace_back(some[i]);
  }
  const auto got = gradients(apart, apart->loss(tokens, targets));
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].allclose(sum[i], 1e-3, 1e-5)) << "gradient " << i;
  const auto recomputed = gradients(again, again->loss(tokens, targets));
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(recomputed[i])) << "gradient " << i;
  // It does make a difference, and without separators it makes none.
  EXPECT_FALSE(logits.allclose(alone->forward(tokens), 1e-3, 1e-4));
  const Tensor one = tokens.narrow(0, 2, 1);
  EXPECT_TRUE(apart->forward(one).equal(alone->forward(one)));
}

TEST(Documents, OfTheBytesGpt) {
  expect_documents_apart([](std::int64_t separator, std::int64_t recompute_every) {
    GPT model(GPTOptions{.layers = 2,
                         .dim = 16,
                         .heads = 2,
                         .vocab = 11,
                         .seq = kLength,
                         .recompute_every = recompute_every,
                         .separator = separator});
    fill(model);
    return model;
  });
}

TEST(Documents, OfModelsInHuggingFacesShapes) {
  using Family = CausalLMConfig::Family;
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kQwen3, Family::kQwen3Moe}) {
    SCOPED_TRACE(models::family_name(family));
    expect_documents_apart([&](std::int64_t separator, std::int64_t recompute_every) {
      CausalLMConfig config;
      config.family = family;
      config.layers = 2;
      config.dim = 16;
      config.heads = 4;
      config.kv_heads = family == Family::kGpt2 ? 4 : 2;
      config.head_dim = 4;
      config.mlp_dim = family == Family::kGpt2 ? 64 : 24;
      config.vocab = 11;
      config.max_positions = kLength;
      if (family == Family::kMistral) config.windows = {4};
      if (family == Family::kQwen3Moe) config.experts = {.count = 3, .per_token = 2, .mlp_dim = 8, .loss_factor = 0};
      config.recompute_every = recompute_every;
      config.separator = separator;
      CausalLM model(config);
      fill(model);
      return model;
    });
  }
}

}  // namespace
}  // namespace zero::testing::documents_test
