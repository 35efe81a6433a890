// Models that the plan knows by their sizes, and their activations on paper.
#include <gtest/gtest.h>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan::plan_model_test {
namespace {

TEST(Transformer, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(transformer({.layers = 0}), ConfigError);
  EXPECT_THROW(transformer({.dim = 65, .heads = 2}), ConfigError);
  EXPECT_THROW(transformer({.heads = 0}), ConfigError);
  EXPECT_THROW(transformer({.vocab = -1}), ConfigError);
  EXPECT_THROW(transformer({.layers = 1'000'000}), ConfigError);
  EXPECT_THROW(transformer({.dim = 1LL << 40, .heads = 1}), ConfigError);
  EXPECT_THROW(transformer({.layers = 10'000, .dim = 1 << 24, .heads = 1}), ConfigError);
  EXPECT_THROW(transformer({.seq = 100, .positions = 50}), ConfigError);
  EXPECT_THROW(model_of_numel(-1), ConfigError);
}

TEST(OfNumel, HasAsManyAsAsked) {
  for (const std::int64_t numel : {0LL, 1LL, 31LL, 33LL, 7'500'000'000LL, 1'000'000'000'000LL}) {
    EXPECT_EQ(model_of_numel(numel).numel(), numel);
  }
}

// What one more layer adds.
std::int64_t per_layer(Transformer shape, std::int64_t micro_batch, DType param_dtype) {
  const std::int64_t before = activations(shape, micro_batch, param_dtype).stored_nbytes;
  ++shape.layers;
  return activations(shape, micro_batch, param_dtype).stored_nbytes - before;
}

TEST(Activations, AreTheKnownFormulaPerLayer) {
  // arXiv 2205.05198, equation 1: s*b*h*(34 + 5*a*s/h) with dropout and 2-byte elements. Ours adds the norms'
  // statistics, which the paper neglects: 8 bytes a token.
  const std::int64_t s = 512, b = 4, h = 1024, a = 16;
  Transformer shape{.layers = 3, .dim = h, .heads = a, .seq = s, .dropout = true, .fused_attention = false};
  EXPECT_EQ(per_layer(shape, b, DType::kBFloat16), s * b * h * 34 + 5 * a * s * s * b + 8 * s * b);
  // Fused attention keeps an fp32 number per row and head instead of the scores.
  shape.fused_attention = true;
  EXPECT_EQ(per_layer(shape, b, DType::kBFloat16), s * b * h * 34 + 4 * a * s * b + 8 * s * b);
  // Checkpointing keeps the input.
  shape.checkpointing = true;
  EXPECT_EQ(per_layer(shape, b, DType::kBFloat16), 2 * s * b * h);
  // Without dropout there are no masks; fp32 doubles all but the log-sum-exp.
  shape.checkpointing = shape.dropout = false;
  EXPECT_EQ(per_layer(shape, b, DType::kBFloat16), s * b * h * 32 + 4 * a * s * b + 8 * s * b);
  EXPECT_EQ(per_layer(shape, b, DType::kFloat32), 2 * (s * b * h * 32 + 8 * s * b) + 4 * a * s * b);
}

TEST(Activations, GrowWithTheMicroBatchAndShrinkWithCheckpointing) {
  Transformer shape{.layers = 12, .dim = 512, .heads = 8, .vocab = 32000, .seq = 256};
  const Activations one = activations(shape, 1, DType::kBFloat16), four = activations(shape, 4, DType::kBFloat16);
  EXPECT_GT(four.stored_nbytes, 3 * one.stored_nbytes);
  EXPECT_GE(one.peak_nbytes, one.stored_nbytes);
  shape.checkpointing = true;
  EXPECT_LT(activations(shape, 4, DType::kBFloat16).peak_nbytes, four.peak_nbytes);
  EXPECT_THROW(activations(shape, 0, DType::kBFloat16), ConfigError);
  // Far beyond any machine, still a number.
  Transformer huge{.layers = 10'000, .dim = 1 << 20, .heads = 1, .seq = 1 << 20};
  EXPECT_GT(activations(huge, 1LL << 32, DType::kFloat32).peak_nbytes, 0);
}

}  // namespace
}  // namespace zero::plan::plan_model_test
