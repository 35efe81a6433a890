// Planned activations against the activation meter, for zero::GPT and models of Hugging Face's shapes on one rank.
//
// Tolerances: what forward leaves behind within 0.5 % (and 10 kB: the C library rounds every block up); its
// peak with backward within 2 % in fp32 and 10 % in bf16, where oneDNN's scratch memory depends on the CPU.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "storage/cpu_allocator.h"
#include "support/temporary_folder.h"
#include "zero/lm/causal_lm.h"
#include "zero/lm/models.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::plan_activations_test {
namespace {

struct Shape {
  std::int64_t layers, dim, heads, vocab, seq, micro_batch;
};

struct Measured {
  std::int64_t stored = 0, peak = 0;
};

/// The third micro-batch: by then libtorch has made what it keeps.
template <class Make>
Measured measure_model(const Shape& shape, bool bf16, Make make, const std::string& more = "") {
  at::set_num_threads(1);
  at::manual_seed(1);
  storage::install_cpu_allocator(/*keep_blocks=*/true);
  auto model = make();
  auto engine = initialize(model,
                           fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "bf16": {{"enabled": {}}},
                                                  "zero_optimization": {{"stage": 2}}{}}})",
                                       shape.micro_batch, bf16, more),
                           InitializeOptions{.group = Group()});
  Measured measured;
  for (int i = 0; i < 3; ++i) {
    const std::int64_t before = storage::activation_use().current_nbytes;
    storage::reset_activation_peak();
    // One more token than the model sees, as a sampler gives them.
    at::Tensor text = at::randint(1, shape.vocab, {shape.micro_batch, shape.seq + 1}, at::kLong);
    text.slice(1, 5, std::nullopt, 16).zero_();  // separators, where the model has such
    at::Tensor loss = model->loss(text.narrow(1, 0, shape.seq), text.narrow(1, 1, shape.seq));
    measured.stored = storage::activation_use().current_nbytes - before;
    engine.backward(loss);
    measured.peak = storage::activation_use().peak_nbytes - before;
    engine.step();
  }
  return measured;
}

Measured measure(const Shape& shape, bool bf16, std::int64_t recompute_every = 0,
                 KeptResults keep = KeptResults::kNone) {
  GPTOptions options{
      .layers = shape.layers, .dim = shape.dim, .heads = shape.heads, .vocab = shape.vocab, .seq = shape.seq};
  options.recompute_every = recompute_every;
  options.recompute_keep = keep;
  return measure_model(shape, bf16, [&] { return GPT(options); });
}

plan::Activations planned(const Shape& shape, bool bf16, std::int64_t recompute_every = 0,
                          KeptResults keep = KeptResults::kNone) {
  return plan::activations({.layers = shape.layers,
                            .dim = shape.dim,
                            .heads = shape.heads,
                            .vocab = shape.vocab,
                            .seq = shape.seq,
                            .checkpointing = recompute_every > 0,
                            .checkpoint_every = std::max<std::int64_t>(1, recompute_every),
                            .kept = keep},
                           shape.micro_batch, bf16 ? DType::kBFloat16 : DType::kFloat32);
}

/// Without bf16 instructions libtorch's matrix products may work on fp32 copies of their operands, which is the CPU's
/// doing and no activation: at most one of the largest matrix at a time.
double product_scratch(const Shape& shape) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return 0;
#endif
  return 4.0 * static_cast<double>(shape.dim) * static_cast<double>(4 * shape.dim) + 4096;
}

TEST(PlanActivations, AreWhatTheMeterSees) {
  const Shape shapes[] = {
      {4, 128, 4, 256, 64, 4},   // a byte-level GPT
      {2, 64, 2, 5000, 96, 2},   // the loss takes most
      {6, 256, 8, 256, 128, 1},  // the matrices' gradients take much of the peak
      {3, 192, 3, 1000, 200, 3},
  };
  for (const Shape& shape : shapes) {
    for (const bool bf16 : {false, true}) {
      const Measured seen = measure(shape, bf16);
      const plan::Activations expected = planned(shape, bf16);
      const std::string where = fmt::format("layers {} dim {} vocab {} seq {} batch {} {}", shape.layers, shape.dim,
                                            shape.vocab, shape.seq, shape.micro_batch, bf16 ? "bf16" : "fp32");
      fmt::print("{}: stored {} (planned {}), peak {} (planned {})\n", where, seen.stored, expected.stored_nbytes,
                 seen.peak, expected.peak_nbytes);
      const double stored = static_cast<double>(expected.stored_nbytes);
      const double peak = static_cast<double>(expected.peak_nbytes);
      EXPECT_NEAR(static_cast<double>(seen.stored), stored, 0.005 * stored + 10'000) << where;
      const double tolerance = (bf16 ? 0.10 : 0.02) * peak;
      EXPECT_GT(static_cast<double>(seen.peak), peak - tolerance) << where;
      EXPECT_LT(static_cast<double>(seen.peak), peak + tolerance + (bf16 ? product_scratch(shape) : 0)) << where;
    }
  }
}

TEST(PlanActivations, WithPartsThatAreComputedAgain) {
  const Shape shapes[] = {
      {24, 128, 4, 256, 64, 4},
      {6, 256, 8, 256, 128, 1},  // matrices are larger than activations
      {12, 192, 3, 1000, 200, 3},
  };
  for (const Shape& shape : shapes) {
    for (const auto& [every, keep] : {std::pair(1, KeptResults::kNone),
                                      {3, KeptResults::kNone},
                                      {1, KeptResults::kAttention},
                                      {1, KeptResults::kProducts},
                                      {3, KeptResults::kProducts}}) {
      const Measured seen = measure(shape, /*bf16=*/false, every, keep);
      const plan::Activations expected = planned(shape, /*bf16=*/false, every, keep);
      const std::string where =
          fmt::format("layers {} dim {} vocab {} seq {} batch {}, of {} one again, keep {}", shape.layers, shape.dim,
                      shape.vocab, shape.seq, shape.micro_batch, every, static_cast<int>(keep));
      fmt::print("{}: stored {} (planned {}), peak {} (planned {})\n", where, seen.stored, expected.stored_nbytes,
                 seen.peak, expected.peak_nbytes);
      const double stored = static_cast<double>(expected.stored_nbytes);
      const double peak = static_cast<double>(expected.peak_nbytes);
      EXPECT_NEAR(static_cast<double>(seen.stored), stored, 0.01 * stored + 10'000) << where;
      EXPECT_NEAR(static_cast<double>(seen.peak), peak, 0.03 * peak + 10'000) << where;
    }
  }
}

TEST(PlanActivations, OfModelsInHuggingFacesShapes) {
  const Shape shape{24, 128, 4, 4096, 96, 3};
  for (const bool bf16 : {false, true}) {
    for (const auto& [every, rows, keep, separator] : {std::tuple(0, 0, KeptResults::kNone, -1),
                                                       {1, 0, KeptResults::kNone, -1},
                                                       {2, 0, KeptResults::kNone, -1},
                                                       {0, 32, KeptResults::kNone, -1},
                                                       {1, 32, KeptResults::kNone, -1},
                                                       {1, 32, KeptResults::kAttention, -1},
                                                       {1, 32, KeptResults::kProducts, -1},
                                                       {0, 32, KeptResults::kNone, 0}}) {
      models::CausalLMConfig config;
      config.layers = shape.layers;
      config.dim = shape.dim;
      config.heads = shape.heads;
      config.kv_heads = 2;
      config.head_dim = 32;
      config.mlp_dim = 352;
      config.vocab = shape.vocab;
      config.max_positions = shape.seq;
      config.recompute_every = every;
      config.recompute_keep = keep;
      config.separator = separator;
      config.loss_rows = rows;
      const Measured seen = measure_model(shape, bf16, [&] { return models::CausalLM(config); });
      const auto transformer = *models::shape_of(config).transformer;
      const plan::Activations expected =
          plan::activations(transformer, shape.micro_batch, bf16 ? DType::kBFloat16 : DType::kFloat32);
      const std::string where = fmt::format("{}, recompute {}, rows {}, keep {}, separator {}", bf16 ? "bf16" : "fp32",
                                            every, rows, static_cast<int>(keep), separator);
      fmt::print("{}: stored {} (planned {}), peak {} (planned {})\n", where, seen.stored, expected.stored_nbytes,
                 seen.peak, expected.peak_nbytes);
      const double stored = static_cast<double>(expected.stored_nbytes);
      const double peak = static_cast<double>(expected.peak_nbytes);
      EXPECT_NEAR(static_cast<double>(seen.stored), stored, 0.03 * stored + 10'000) << where;
      EXPECT_NEAR(static_cast<double>(seen.peak), peak, (bf16 ? 0.10 : 0.03) * peak + 10'000) << where;
    }
  }
}

TEST(PlanActivations, OnNvme) {
  const testing::TemporaryFolder folder;
  const std::string there = fmt::format(
      R"(, "zerotorch": {{"offload_activations": {{"device": "nvme", "nvme_path": "{}"}}}})", folder.path());
  const Shape shape{12, 192, 3, 1000, 200, 3};
  for (const bool bf16 : {false, true}) {
    for (const auto& [every, keep] : {std::pair(1, KeptResults::kNone),
                                      {3, KeptResults::kNone},
                                      {1, KeptResults::kAttention},
                                      {1, KeptResults::kProducts}}) {
      GPTOptions options{
          .layers = shape.layers, .dim = shape.dim, .heads = shape.heads, .vocab = shape.vocab, .seq = shape.seq};
      options.recompute_every = every;
      options.recompute_keep = keep;
      const Measured seen = measure_model(
          shape, bf16, [&] { return GPT(options); }, there);
      const plan::Activations expected = plan::activations(*gpt_shape(options, "gpt").transformer, shape.micro_batch,
                                                           bf16 ? DType::kBFloat16 : DType::kFloat32, true);
      const std::string where =
          fmt::format("{}, of {} one again, keep {}", bf16 ? "bf16" : "fp32", every, static_cast<int>(keep));
      fmt::print("{}: stored {} (planned {}), peak {} (planned {}), on NVMe {}\n", where, seen.stored,
                 expected.stored_nbytes, seen.peak, expected.peak_nbytes, expected.nvme_nbytes);
      const double stored = static_cast<double>(expected.stored_nbytes);
      const double peak = static_cast<double>(expected.peak_nbytes);
      EXPECT_NEAR(static_cast<double>(seen.stored), stored, 0.01 * stored + 10'000) << where;
      EXPECT_NEAR(static_cast<double>(seen.peak), peak, (bf16 ? 0.10 : 0.03) * peak + 10'000) << where;
      EXPECT_GT(expected.nvme_nbytes, 0) << where;
    }
  }
}

}  // namespace
}  // namespace zero::plan_activations_test
