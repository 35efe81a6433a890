// zero::deferred_init: a model that is never whole has the values of one that is, bit for bit.
#include <ATen/Context.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <thread>

#include "support/bits.h"
#include "support/errors.h"
#include "support/peak_memory.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::deferred_init_test {
namespace {

using at::Tensor;

constexpr std::int64_t kDim = 300;  // 360 kB

/// A tensor, as a constructor makes it.
using Make = std::function<Tensor()>;

Tensor empty() { return at::empty({kDim, kDim}); }

const std::map<std::string, Make>& makes() {
  static const std::map<std::string, Make> all = {
      {"normal", [] { return empty().normal_(0.5, 0.02); }},
      {"randn",
       [] {
         return at::randn({kDim, kDim});
       }},
      {"rand, scaled in place",
       [] {
         return at::rand({kDim, kDim}).mul_(0.1).sub_(0.05);
       }},
      {"scaled out of place",
       [] {
         return at::randn({kDim, kDim}) * 0.02;
       }},
      {"zeros",
       [] {
         return at::zeros({kDim, kDim});
       }},
      {"ones",
       [] {
         return at::ones({kDim, kDim});
       }},
      {"full of ints",
       [] {
         return at::full({kDim, kDim}, 7, at::kLong);
       }},
      {"randint",
       [] {
         return at::randint(0, 99, {kDim, kDim});
       }},
      {"a mask",
       [] {
         return at::ones({kDim, kDim}).tril();
       }},
      {"causal mask",
       [] {
         return at::full({kDim, kDim}, -1e9).triu_(1);
       }},
      {"arange", [] { return at::arange(kDim * kDim); }},
      {"kaiming", [] { return torch::nn::init::kaiming_uniform_(empty()); }},
      {"xavier", [] { return torch::nn::init::xavier_normal_(empty()); }},
      {"orthogonal", [] { return torch::nn::init::orthogonal_(empty()); }},
      {"sparse", [] { return torch::nn::init::sparse_(empty(), 0.3); }},
      {"eye", [] { return torch::nn::init::eye_(empty()); }},
      {"truncated normal",
       [] { return empty().uniform_(-0.9, 0.9).erfinv_().mul_(0.02).add_(0.1).clamp_(-0.04, 0.04); }},
      {"a row of zeros",
       [] {
         Tensor table = empty().normal_();
         table.select(0, 3).fill_(0);
         return table;
       }},
      {"rows, few",
       [] {
         Tensor table = empty();
         table.zero_();
         for (int i = 0; i < 20; ++i) table.select(0, 7 * i).normal_();
         return table;
       }},
      {"rows, many",
       [] {
         Tensor table = at::zeros({kDim, kDim});
         for (int i = 0; i < kDim; ++i) table.select(0, i).uniform_(-i, i);
         return table;
       }},
      {"transposed", [] { return empty().t().normal_(); }},
      {"a block of it",
       [] {
         Tensor all = at::zeros({kDim, kDim});
         all.narrow(0, 10, 250).narrow(1, 20, 260).normal_();
         return all;
       }},
      {"scaled by another",
       [] {
         const Tensor scale = at::rand({kDim, kDim});
         return empty().normal_().mul_(scale);
       }},
      {"a copy of what changes later",
       [] {
         Tensor source = empty().normal_();
         Tensor copy = empty().copy_(source);
         source.fill_(1);
         return copy.add_(source);
       }},
      {"a copy of a small one that changes later",
       [] {
         Tensor row = at::rand({kDim});
         Tensor copy = empty().copy_(row);
         row.fill_(3);
         return copy;
       }},
      {"a copy of a large one that changes later",
       [] {
         Tensor source = (empty().normal_() + 1);  // computed: in memory
         Tensor copy = empty().copy_(source);
         source.mutable_data_ptr<float>()[5] = 77;
         return copy;
       }},
      {"itself and its transpose",
       [] {
         Tensor x = empty().normal_();
         return x.add_(x.t().clone());
       }},
      {"converted", [] { return empty().normal_().to(at::kBFloat16); }},
      {"drawn in bf16",
       [] {
         return at::empty({kDim, kDim}, at::kBFloat16).normal_();
       }},
      {"cloned, then changed",
       [] {
         const Tensor x = empty().normal_();
         Tensor y = x.clone();
         x.zero_();
         return y.mul_(2);
       }},
      {"like", [] { return at::randn_like(empty().normal_()); }},
      {"coins", [] { return empty().bernoulli_(0.3); }},
      {"coins of other odds",
       [] {
         return empty().bernoulli_(at::rand({kDim, kDim}));
       }},
      {"drawn twice", [] { return empty().normal_().uniform_(); }},
      {"of a generator of its own",
       [] {
         auto generator = at::make_generator<at::CPUGeneratorImpl>(99);
         return empty().normal_(0, 1, generator).mul_(at::rand({kDim}, generator));
       }},
      {"seeded between",
       [] {
         Tensor x = empty().normal_();
         at::manual_seed(1);
         return x.mul_(at::rand({kDim}));
       }},
      {"looked at",
       [] {
         Tensor x = empty().normal_();
         if (x.abs().max().item<float>() > 2) x.mul_(0.5);
         return x;
       }},
      {"resized",
       [] {
         return empty().normal_().resize_({kDim / 2, 2 * kDim});
       }},
      {"concatenated",
       [] {
         return at::cat({empty().normal_(), empty().uniform_()});
       }},
      {"chunks",
       [] {
         Tensor qkv = at::empty({3 * kDim, kDim});
         for (const Tensor& part : qkv.chunk(3)) torch::nn::init::xavier_uniform_(part);
         return qkv;
       }},
      {"small", [] { return at::randn({7}); }},
      {"linear", [] { return torch::nn::Linear(kDim, kDim)->weight.detach(); }},
      {"embedding",
       [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(kDim, kDim).padding_idx(2))->weight.detach(); }},
  };
  return all;
}

Tensor bits_of(const Tensor& tensor) { return tensor.contiguous().view(-1).view(at::kByte); }

TEST(DeferredInit, ValuesAndGeneratorAreThoseWithout) {
  at::set_num_threads(1);
  for (const auto& [name, make] : makes()) {
    SCOPED_TRACE(name);
    at::NoGradGuard no_grad;
    at::manual_seed(5);
    const Tensor plain = make(), then = at::rand({5});
    at::manual_seed(5);
    const auto [deferred, deferred_then] = deferred_init([&] { return std::pair{make(), at::rand({5})}; });
    EXPECT_TRUE(then.equal(deferred_then));
    ASSERT_EQ(plain.scalar_type(), deferred.scalar_type());
    ASSERT_EQ(plain.sizes(), deferred.sizes());
    ASSERT_EQ(plain.strides(), deferred.strides());
    EXPECT_TRUE(bits_of(plain).equal(bits_of(deferred)));
    EXPECT_NE(deferred.const_data_ptr(), nullptr);  // it has memory now, for everybody
  }
}

TEST(DeferredInit, InPlaceInitialisersTakeNoMemory) {
  for (const char* name : {"normal", "randn", "rand, scaled in place", "zeros", "ones", "full of ints", "kaiming",
                           "xavier", "truncated normal", "a row of zeros", "rows, few", "transposed", "converted",
                           "chunks", "cloned, then changed", "a copy of what changes later", "linear", "embedding"}) {
    EXPECT_THROW(static_cast<void>(deferred_init(makes().at(name)).const_data_ptr()), c10::Error) << name;
  }
}

TEST(DeferredInit, RawAccessBeforeThereIsMemoryThrows) {
  const Tensor x = deferred_init([] { return empty().normal_(); });
  EXPECT_THROW(static_cast<void>(x.const_data_ptr<float>()), c10::Error);
  EXPECT_THROW(static_cast<void>(x.accessor<float, 2>()), c10::Error);
  Tensor y = x.narrow(0, 5, 20);
  EXPECT_THROW(static_cast<void>(y.mutable_data_ptr<float>()), c10::Error);
  EXPECT_GT(x.abs().sum().item<float>(), 100);
  EXPECT_EQ(y.const_data_ptr<float>(), x.const_data_ptr<float>() + 5 * kDim);
}

TEST(DeferredInit, AModelWithoutAnEngineWorksAsAnyOther) {
  at::manual_seed(3);
  torch::nn::Linear plain(kDim, kDim);
  at::manual_seed(3);
  auto deferred = deferred_init([] { return torch::nn::Linear(kDim, kDim); });
  const Tensor x = at::ones({2, kDim});
  std::vector<Tensor> sums(4);  // the first uses, from several threads at once
  std::vector<std::thread> threads;
  for (auto& sum : sums) threads.emplace_back([&] { sum = deferred(x).sum(); });
  for (auto& thread : threads) thread.join();
  for (const auto& sum : sums) EXPECT_TRUE(sum.equal(plain(x).sum()));
  plain(x).square().sum().backward();
  deferred(x).square().sum().backward();
  EXPECT_TRUE(plain->weight.grad().equal(deferred->weight.grad()));
}

struct LayersImpl : torch::nn::Module {
  LayersImpl(int count, std::int64_t dim) {
    table = register_module("table", torch::nn::Embedding(64, dim));
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(dim, dim)));
      torch::nn::init::normal_(layers.back()->weight, 0, 0.02);
    }
    mask = register_buffer("mask", at::ones({dim, dim}).tril());
    noise = register_buffer("noise", at::empty({dim, dim}).normal_());
    stray = at::randn({dim, dim});
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = table(tokens);
    for (auto& layer : layers) x = at::tanh(layer(x)) + x;
    return x + x.matmul((mask * noise + stray).to(x.scalar_type())).mul(0.01);
  }
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::Linear> layers;
  Tensor mask, noise, stray;
};
TORCH_MODULE(Layers);

Layers make_layers() {
  at::manual_seed(17);
  return Layers(3, kDim);
}

std::string json(int stage, const char* store, bool bf16, const char* more = "") {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
      "bf16": {{"enabled": {}}}, "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
      "zerotorch": {{"store": "{}", "seed": 5{}}}}})",
      bf16, stage, store, more);
}

void step(Engine& engine, const Layers& model, int index) {
  const Tensor tokens = at::arange(4).add(7 * index + engine.group().rank()).remainder(64).view({1, 4});
  Layers module = model;
  engine.backward(module(tokens).to(at::kFloat).square().mean());
  engine.step();
}

std::uint64_t hash_of(Engine& engine) {
  std::uint64_t hash = kNoBits;
  for (const auto& item : engine.module().named_parameters()) hash = hash_with(hash, engine.full_weight(item.key()));
  for (const auto& item : engine.module().named_buffers()) hash = hash_with(hash, item.value().to(at::kFloat));
  return hash;
}

std::uint64_t train(const Layers& model, Group group, const std::string& config) {
  at::set_num_threads(1);
  auto engine = initialize(model, config, {.group = group});
  for (int i = 0; i < 3; ++i) step(engine, model, i);
  return hash_of(engine);
}

TEST(DeferredInit, TrainsAsAModuleThatIsBuiltWhole) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const char* store : {"copying", "node_shared"}) {
          for (const char* verify : {"", R"(, "verify_parameters": "verify")"}) {
            const std::string config = json(stage, store, stage % 2 == 1, verify);
            EXPECT_EQ(train(deferred_init(make_layers), group, config), train(make_layers(), group, config)) << config;
          }
        }
      }
    }));
  }
}

TEST(DeferredInit, NeverTakesTheMemoryOfTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  constexpr int kLayers = 24;
  constexpr std::int64_t kWide = 2000, kNbytes = kWide * kWide * 4;  // 16 MB each, 384 MB
  expect_all_ok(spawn(2, [&](Group group) {
    at::set_num_threads(1);
    const PeakMemory memory;
    Layers model = deferred_init([&] { return Layers(kLayers, kWide); });
    EXPECT_LT(memory.grown(), 4 * kNbytes);  // one to draw into, and libtorch's own
    auto engine = initialize(model, json(3, "copying", true), {.group = group});
    const std::int64_t states = kLayers * kNbytes / 4 * 14 / group.size();  // bf16 values, fp32 master, two states
    // Buffers and the stray, and what is on its way: a unit's values, flat, and a few on the heap.
    EXPECT_LT(memory.grown(), states + 12 * kNbytes);
  }));
}

TEST(DeferredInit, WithoutValuesThereIsNothingToUseUntilTheyAreLoaded) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string config = json(3, "copying", false);
    const auto make = [] {
      at::manual_seed(11 + at::randint(0, 9, {1}).item<int>());
      struct Bare : torch::nn::Module {
        Bare() {
          a = register_module("a", torch::nn::Linear(kDim, kDim));
          b = register_module("b", torch::nn::Linear(kDim, kDim));
        }
        torch::nn::Linear a{nullptr}, b{nullptr};
      };
      return std::make_shared<Bare>();
    };
    const auto use = [](auto& engine, auto& model) {
      engine.backward(model->b(model->a(at::ones({1, kDim}))).square().sum());
      engine.step();
      return hash_of(engine);
    };
    std::uint64_t expected = 0;
    {
      auto model = make();
      auto engine = initialize(model, config, {.group = group});
      engine.save_checkpoint(folder.path() + "/checkpoints");
      engine.save_full_weights(folder.path() + "/weights");
      expected = use(engine, model);
    }
    for (const bool checkpoint : {false, true}) {
      auto model = deferred_init(make, {.without_values = true});
      auto engine = initialize(model, config, {.group = group});
      EXPECT_TRUE(engine.full_weight("a.weight").isnan().all().item<bool>());
      const std::string missing = "parameter 'a.weight' and 1 others was built under a zero::DeferredInit";
      expect_said([&] { use(engine, model); }, missing);
      expect_said([&] { engine.save_checkpoint(folder.path() + "/never"); }, missing);
      expect_said([&] { engine.save_full_weights(folder.path() + "/never"); }, missing);
      engine.zero_grad();
      if (checkpoint) {
        engine.load_checkpoint(folder.path() + "/checkpoints");
      } else {
        engine.set_full_weight("a.weight", at::ones({kDim, kDim}));
        expect_said([&] { use(engine, model); }, "parameter 'b.weight' was built");
        engine.load_full_weights(folder.path() + "/weights");
      }
      EXPECT_EQ(use(engine, model), expected);
    }
  }));
  at::manual_seed(1);
  const Tensor before = at::rand({3});
  at::manual_seed(1);
  const Tensor undrawn = deferred_init([] { return empty().normal_().mul_(2); }, {.without_values = true});
  EXPECT_TRUE(at::rand({3}).equal(before));
  expect_said([&] { static_cast<void>(undrawn.sum()); }, "made under zero::DeferredInit without initial values");
  expect_said([] { train(deferred_init(make_layers, {.without_values = true}), Group(), json(0, "copying", false)); },
              "buffer 'noise' is drawn at random");
}

TEST(DeferredInit, BuildsInAnotherDtype) {
  const Layers model = deferred_init(make_layers, {.dtype = DType::kBFloat16});
  EXPECT_EQ(at::empty({1}).scalar_type(), at::kFloat);  // as before
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kBFloat16));
  const Layers whole = make_layers();
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
  EXPECT_EQ(train(model, Group(), json(3, "copying", true)), train(whole, Group(), json(3, "copying", true)));
  expect_said([] { const DeferredInit half({.dtype = DType::kFloat16}); }, "want fp32 or bf16");
  expect_said(
      [] {
        const DeferredInit open;
        train(make_layers(), Group(), json(0, "copying", false));
      },
      "a zero::DeferredInit is alive on this thread");
}

TEST(DeferredInit, UsesWeightsOfALivingEngineAsTheyAre) {
  const Layers first = make_layers();
  auto engine = initialize(first, json(3, "copying", false));
  Layers second = deferred_init([&] {
    at::NoGradGuard no_grad;
    Layers model(3, kDim);
    model->layers[0]->weight.copy_(first->layers[0]->weight);
    model->layers[1]->weight.add_(first->layers[1]->weight.to(at::kDouble));
    return model;
  });
  EXPECT_TRUE(second->layers[0]->weight.equal(engine.full_weight("layer0.weight")));
}

/// libtorch's own way to build without memory has no values to begin with, on any number of ranks.
TEST(DeferredInit, IsWhatInitializeWantsInPlaceOfMeta) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(spawn(ranks, [](Group group) {
      const auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("weight", at::empty({3, 9}, at::TensorOptions().device(at::kMeta)));
      for (const auto& device : {std::optional<at::Device>(), std::optional<at::Device>(at::kCPU)})
        expect_said([&] { initialize(module, json(3, "copying", false), {.group = group, .device = device}); },
                    "deferred_init");
      // A CPU with a number is the CPU.
      auto engine =
          initialize(make_layers(), json(2, "copying", false), {.group = group, .device = at::Device(at::kCPU, 0)});
      EXPECT_EQ(engine.device(), at::Device(at::kCPU));
    }));
  }
}

}  // namespace
}  // namespace zero::testing::deferred_init_test
