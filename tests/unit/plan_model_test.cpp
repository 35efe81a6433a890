// Models that the plan knows by their sizes or by Hugging Face's config.json, and their activations on paper.
#include <gtest/gtest.h>

#include "zero/errors.h"
#include "zero/plan.h"

namespace zero::plan {
namespace {

std::int64_t numel_of(const std::string& json) { return from_hugging_face(json).numel(); }

std::string llama(const std::string& type, int layers, int hidden, int heads, int kv, int mlp, int vocab,
                  const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "num_hidden_layers": )" + std::to_string(layers) +
         R"(, "hidden_size": )" + std::to_string(hidden) + R"(, "num_attention_heads": )" + std::to_string(heads) +
         R"(, "num_key_value_heads": )" + std::to_string(kv) + R"(, "intermediate_size": )" + std::to_string(mlp) +
         R"(, "vocab_size": )" + std::to_string(vocab) + R"(, "max_position_embeddings": 4096)" + more + "}";
}

TEST(HuggingFace, NumbersOfParametersAreThoseOfTheModels) {
  EXPECT_EQ(numel_of(R"({"model_type": "gpt2"})"), 124'439'808);
  EXPECT_EQ(numel_of(R"({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25})"), 1'557'611'200);
  EXPECT_EQ(numel_of(llama("llama", 32, 4096, 32, 32, 11008, 32000)), 6'738'415'616);   // Llama 2 7B
  EXPECT_EQ(numel_of(llama("llama", 32, 4096, 32, 8, 14336, 128256)), 8'030'261'248);   // Llama 3 8B
  EXPECT_EQ(numel_of(llama("llama", 80, 8192, 64, 8, 28672, 32000)), 68'976'648'192);   // Llama 2 70B
  EXPECT_EQ(numel_of(llama("mistral", 32, 4096, 32, 8, 14336, 32000)), 7'241'732'096);  // Mistral 7B
  EXPECT_EQ(numel_of(llama("qwen2", 28, 3584, 28, 4, 18944, 152064)), 7'615'616'512);   // Qwen2 7B
  EXPECT_EQ(numel_of(llama("qwen2", 24, 896, 14, 2, 4864, 151936, R"(, "tie_word_embeddings": true)")),
            494'032'768);  // Qwen2 0.5B
}

void expect_refused(const std::string& json, const std::string& want) {
  try {
    from_hugging_face(json, "c.json");
    FAIL() << json;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("c.json: ")) << error.what();
  }
}

TEST(HuggingFace, BadFilesAreNamed) {
  expect_refused("{", "not JSON");
  expect_refused("[]", "want an object");
  expect_refused("{}", "model_type: got ''");
  expect_refused(R"({"model_type": "t5"})", "model_type: got 't5'");
  expect_refused(R"({"model_type": "llama"})", "num_hidden_layers: missing");
  expect_refused(R"({"model_type": "gpt2", "n_layer": "12"})", "n_layer: got \"12\"");
  expect_refused(R"({"model_type": "gpt2", "n_layer": 0})", "at least 1");
  expect_refused(R"({"model_type": "gpt2", "n_head": 7})", "not a multiple of heads 7");
  expect_refused(llama("llama", 2, 64, 2, 2, 128, 100, R"(, "attention_bias": true)"), "attention_bias");
  expect_refused(llama("llama", 2, 64, 2, 2, 128, 100, R"(, "tie_word_embeddings": 1)"), "tie_word_embeddings");
}

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
}  // namespace zero::plan
