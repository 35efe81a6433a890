// Buffers of every kind are trained with, saved and loaded as plain libtorch does, or refused by name; ranks
// that write their own come together as zerotorch.buffers says.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <filesystem>

#include "engine/buffers.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::buffers_test {
namespace {

constexpr std::int64_t kDim = 8;

/// A folder of its own, removed at the end.
struct Folder {
  std::string path = fmt::format("/tmp/zerotorch_buffers_{}", ::getpid());
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string json(int stage, bool bf16 = false, const std::string& own = "") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
    "bf16": {{"enabled": {}}}, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"unit_numel": 1024{}{}}}}})",
                     bf16, stage, own.empty() ? "" : ", ", own);
}

/// A linear layer and whatever buffers a test registers.
struct HolderImpl : torch::nn::Module {
  HolderImpl() {
    at::set_num_threads(1);
    at::manual_seed(5);
    linear = register_module("linear", torch::nn::Linear(kDim, kDim));
  }
  at::Tensor add(const std::string& name, const at::Tensor& tensor) { return register_buffer(name, tensor); }
  at::Tensor buffer(const std::string& name) { return named_buffers()[name]; }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }

  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Holder);

template <class Engine>
void train_one(Engine& engine, Holder model) {
  const auto x = at::ones({2, kDim}).to(model->linear->bias.scalar_type());
  engine.backward(model->forward(x).to(at::kFloat).square().mean());
  engine.step();
}

std::string message_of(Holder model, const std::string& text, Group group) {
  try {
    initialize(model, text, InitializeOptions{.group = group});
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const at::Tensor& tensor, std::string_view part, int ranks = 1) {
  expect_all_ok(spawn(ranks, [&](Group group) {
    Holder model;
    model->add("odd", tensor);
    const std::string message = message_of(model, json(0), group);
    EXPECT_NE(message.find("buffer 'odd'"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }));
}

TEST(Buffers, KindsThatNoFileHoldsAreRefusedByName) {
  for (const int ranks : {1, 2}) {
    expect_refused(at::eye(4).to_sparse(), "sparse", ranks);
    expect_refused(at::eye(4).to_sparse_csr(), "sparse", ranks);
    expect_refused(at::quantize_per_tensor(at::ones({4}), 0.1, 0, at::kQInt8), "quantised", ranks);
    expect_refused(at::empty({4}, at::TensorOptions().device(at::kMeta)), "meta", ranks);
    expect_refused(at::ones({4}).to(at::kFloat8_e4m3fn), "Float8", ranks);
  }
}

TEST(Buffers, MemoryOfAParameterIsRefused) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    model->add("row", model->linear->weight.detach()[0]);
    const std::string message = message_of(model, json(3), group);
    EXPECT_NE(message.find("buffer 'row' shares memory with parameter 'linear.weight'"), std::string::npos) << message;
  }));
}

/// What a model may register; `scale` 0: the same shapes with other values.
void add_kinds(Holder model, double scale) {
  const auto values = [&](at::IntArrayRef sizes, at::ScalarType type) {
    std::int64_t numel = 1;
    for (const auto size : sizes) numel *= size;
    return at::arange(numel, at::kDouble).mul(1.0 / 3).add(0.1).mul(scale).to(type).view(sizes);
  };
  model->add("expanded", values({1, 4}, at::kFloat).expand({3, 4}));
  model->add("expanded_scalar", values({1}, at::kFloat).expand({2, 3}));
  model->add("complex", at::complex(values({2, 3}, at::kFloat), values({2, 3}, at::kFloat).neg()));
  model->add("complex128", at::complex(values({3}, at::kDouble), values({3}, at::kDouble)));
  model->add("conjugate", at::complex(values({3}, at::kFloat), values({3}, at::kFloat)).conj());
  model->add("negative", at::imag(at::complex(values({3}, at::kFloat), values({3}, at::kFloat)).conj()));
  model->add("int64", values({4}, at::kDouble).mul(1e3).to(at::kLong));
  model->add("int8", values({4}, at::kDouble).to(at::kChar));
  model->add("bool", values({4}, at::kDouble) > 0.5);
  model->add("fp64", values({4}, at::kDouble));
  model->add("fp16", values({4}, at::kHalf));
  model->add("fp32", values({4}, at::kFloat).add(1000 * scale));
  model->add("transposed", values({3, 4}, at::kFloat).t());
  model->add("column", values({3, 4}, at::kFloat).select(1, 1));
  model->add("windows", values({6}, at::kFloat).unfold(0, 3, 1));
  model->add("scalar", values({1}, at::kFloat)[0]);
  model->add("empty", at::empty({0, 3}));
  model->add("nan", at::full({2}, NAN));
  const auto tied = model->add("tied", values({4}, at::kFloat));
  model->add("tied_again", tied);
  const auto table = values({8}, at::kFloat);
  model->add("low_half", table.narrow(0, 0, 4));
  model->add("high_half", table.narrow(0, 4, 4));
  model->register_buffer("undefined", at::Tensor());
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0) return true;
  return ((a == b) | ((a != a) & (b != b))).all().item<bool>();
}

std::vector<std::string> names_of(Holder model) {
  std::vector<std::string> names;
  for (const auto& item : model->named_buffers()) {
    if (item.value().defined()) names.push_back(item.key());
  }
  return names;
}

void save_and_load(int ranks_before, int ranks_after, int stage, bool bf16) {
  SCOPED_TRACE(fmt::format("{} to {} ranks, stage {}, bf16 {}", ranks_before, ranks_after, stage, bf16));
  const Folder folder;
  expect_all_ok(spawn(ranks_before, [&](Group group) {
    Holder model, plain;
    add_kinds(model, group.rank() == 0 ? 1.0 : 2.0);  // rank 0's count
    add_kinds(plain, 1.0);
    auto engine = initialize(model, json(stage, bf16), InitializeOptions{.group = group});
    train_one(engine, model);
    for (const auto& name : names_of(plain)) {
      EXPECT_TRUE(same(model->buffer(name), plain->buffer(name))) << name << " rank " << group.rank();
    }
    EXPECT_EQ(model->buffer("expanded").stride(0), 0) << "takes no more memory than it had";
    engine.save_checkpoint(folder.path + "/checkpoints", "t");
    engine.save_16bit_model(folder.path + "/export");
  }));
  expect_all_ok(spawn(ranks_after, [&](Group group) {
    Holder plain;
    add_kinds(plain, 1.0);
    for (const bool from_export : {false, true}) {
      Holder model;
      add_kinds(model, 0.0);
      auto engine = initialize(model, json(stage, bf16), InitializeOptions{.group = group});
      if (from_export) {
        engine.load_full_weights(folder.path + "/export");
      } else {
        engine.load_checkpoint(folder.path + "/checkpoints", "t");
      }
      for (const auto& name : names_of(plain)) {
        EXPECT_TRUE(same(model->buffer(name), plain->buffer(name)))
            << name << " from_export " << from_export << " rank " << group.rank() << "\n"
            << model->buffer(name) << plain->buffer(name);
      }
      train_one(engine, model);
    }
  }));
}

TEST(Buffers, EveryKindComesBackAsItWas) {
  save_and_load(1, 2, 0, false);
  save_and_load(2, 1, 3, false);
  save_and_load(2, 3, 0, true);
  save_and_load(3, 2, 3, true);
}

TEST(Buffers, AnExpandedBufferTakesValuesThatDiffer) {
  // Saved by a model that has a value for each element.
  const Folder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    Holder model;
    model->add("mask", at::arange(12, at::kFloat).view({3, 4}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    engine.save_checkpoint(folder.path, "t");
  }));
  expect_all_ok(spawn(2, [&](Group group) {
    Holder model;
    const auto mask = model->add("mask", at::ones({1, 4}).expand({3, 4}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    engine.load_checkpoint(folder.path, "t");
    EXPECT_TRUE(same(mask, at::arange(12, at::kFloat).view({3, 4})));
  }));
}

TEST(Buffers, LibtorchsArchiveOfAModuleWithComplexBuffersLoads) {
  const Folder folder;
  std::filesystem::create_directories(folder.path);
  expect_all_ok(spawn(1, [&](Group group) {
    Holder plain, model;
    plain->add("rotation", at::polar(at::ones({4}), at::arange(4, at::kFloat)));
    model->add("rotation", at::polar(at::ones({4}), at::zeros({4})));
    torch::save(plain, folder.path + "/plain.pt");
    auto engine = initialize(model, json(3), InitializeOptions{.group = group});
    engine.load_full_weights(folder.path + "/plain.pt");
    EXPECT_TRUE(same(model->buffer("rotation"), plain->buffer("rotation")));
  }));
}

// ---- dtypes under bf16 -----------------------------------------------------------------------------------

TEST(Buffers, KeepTheModulesDtypeUnderBf16) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    const auto position = model->add("position", at::arange(1024).to(at::kFloat));
    const auto third = model->add("third", at::full({2}, 1.0 / 3, at::kDouble));
    auto engine = initialize(model, json(0, true), InitializeOptions{.group = group});
    EXPECT_EQ(position.scalar_type(), at::kFloat);
    EXPECT_EQ(position[999].item<double>(), 999);
    EXPECT_EQ(third.scalar_type(), at::kDouble);
    bool said = false;
    for (const auto& notice : engine.config().notices) {
      said |= notice.find("buffer_dtype") != std::string::npos && notice.find("position") != std::string::npos;
    }
    EXPECT_TRUE(said);
  }));
}

TEST(Buffers, FollowTheParametersWhereAsked) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    const auto position = model->add("position", at::arange(1024).to(at::kFloat));
    const auto count = model->add("count", at::zeros({1}, at::kLong));
    const auto table = at::arange(8, at::kFloat);
    const auto low = model->add("low", table.narrow(0, 0, 4)), all = model->add("all", table);
    auto engine =
        initialize(model, json(3, true, R"("buffer_dtype": "parameters")"), InitializeOptions{.group = group});
    EXPECT_EQ(position.scalar_type(), at::kBFloat16);
    EXPECT_EQ(count.scalar_type(), at::kLong);
    low.add_(1);
    EXPECT_EQ(all[3].item<double>(), 4) << "views of one memory stay views of one memory";
  }));
}

/// Layers that libtorch hands buffers to together with weights.
struct NormsImpl : torch::nn::Module {
  NormsImpl() {
    at::set_num_threads(1);
    at::manual_seed(5);
    linear = register_module("linear", torch::nn::Linear(kDim, kDim));
    norm1 = register_module("norm1", torch::nn::BatchNorm1d(kDim));
    plain = register_module("plain", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(kDim).affine(false)));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(2));
    instance = register_module(
        "instance",
        torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(2).affine(true).track_running_stats(true)));
    layer = register_module("layer", torch::nn::LayerNorm(std::vector<std::int64_t>{kDim}));
    mask = register_buffer("mask", at::ones({kDim, kDim}).tril() > 0);
    weights = register_buffer("weights", at::linspace(0, 1, kDim));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = plain(norm1(linear(x)));
    y = norm2(y.view({-1, 2, 2, 2})).view({-1, 2, 4});
    y = layer(instance(y).view({-1, kDim}));
    y = y.masked_fill(mask[0].logical_not(), 0.5);
    return (y + weights.to(y.scalar_type())).to(at::kFloat);
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm1{nullptr}, plain{nullptr};
  torch::nn::BatchNorm2d norm2{nullptr};
  torch::nn::InstanceNorm1d instance{nullptr};
  torch::nn::LayerNorm layer{nullptr};
  at::Tensor mask, weights;
};
TORCH_MODULE(Norms);

TEST(Buffers, NormsAndMasksTrainInEveryPrecision) {
  for (const int stage : {0, 3}) {
    for (const bool bf16 : {false, true}) {
      for (const char* dtype : {"module", "parameters"}) {
        expect_all_ok(spawn(2, [&](Group group) {
          Norms model;
          auto engine = initialize(model, json(stage, bf16, fmt::format(R"("buffer_dtype": "{}")", dtype)),
                                   InitializeOptions{.group = group});
          for (int step = 0; step < 3; ++step) {
            const auto x = at::sin(at::arange(4 * kDim, at::kFloat).add(step + 7 * group.rank()));
            engine.backward(engine(x.view({4, kDim}).to(bf16 ? at::kBFloat16 : at::kFloat)).square().mean());
            engine.step();
          }
          EXPECT_EQ(model->norm1->num_batches_tracked.item<std::int64_t>(), 3);
          EXPECT_GT(model->norm1->running_mean.abs().sum().item<double>(), 0);
          if (std::string_view(dtype) == "module") {
            EXPECT_EQ(model->weights.scalar_type(), at::kFloat);
            EXPECT_EQ(model->plain->running_var.scalar_type(), at::kFloat);
            EXPECT_EQ(model->norm1->running_var.scalar_type(), bf16 ? at::kBFloat16 : at::kFloat)
                << "the kernel wants one dtype";
          }
        }));
      }
    }
  }
}

// ---- ranks that write their own ----------------------------------------------------------------------------

/// Writes its codebook in forward, as a moving average of its own batch.
struct CodebookImpl : HolderImpl {
  explicit CodebookImpl(bool past_counters = false) : past_counters(past_counters) {
    code = register_buffer("code", at::zeros({kDim}));
    count = register_buffer("count", at::zeros({1}, at::kLong));
    still = register_buffer("still", at::ones({100'000}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = linear(x);
    const at::Tensor target = past_counters ? code.data() : code;
    target.mul_(0.5).add_(y.detach().to(at::kFloat).mean(0), 0.5);
    count.add_(x.size(0));
    return y - code.to(y.scalar_type());
  }
  bool past_counters;
  at::Tensor code, count, still;
};
TORCH_MODULE(Codebook);

at::Tensor batch_of(int rank, int step, bool bf16) {
  return at::sin(at::arange(2 * kDim, at::kFloat).mul(0.3 * (rank + 1)).add(step))
      .view({2, kDim})
      .to(bf16 ? at::kBFloat16 : at::kFloat);
}

/// Every rank's values, [ranks, numel].
at::Tensor gathered(const at::Tensor& tensor, Group group) {
  const at::Tensor mine = tensor.detach().to(at::kDouble).contiguous().view({-1});
  at::Tensor all = at::empty({group.size(), mine.numel()}, at::kDouble);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), mine.numel());
  group.all_gather(mine.const_data_ptr(), all.mutable_data_ptr(), counts, DType::kFloat64).wait();
  return all;
}

bool alike(const at::Tensor& all) { return (all == all[0]).all().item<bool>(); }

TEST(Buffers, Rank0sAreTakenAfterEveryMicroBatch) {
  for (const int ranks : {1, 2, 3}) {
    for (const int stage : {0, 3}) {
      for (const bool bf16 : {false, true}) {
        for (const bool past_counters : {false, true}) {
          expect_all_ok(spawn(ranks, [&](Group group) {
            Codebook model(past_counters);
            auto text = json(stage, bf16);
            text.insert(1, R"("gradient_accumulation_steps": 2,)");
            auto engine = initialize(model, text, InitializeOptions{.group = group});
            for (int step = 0; step < 5; ++step) {
              at::Tensor before;
              engine.backward(engine(batch_of(group.rank(), step, bf16)).to(at::kFloat).square().mean());
              before = gathered(model->code, group);
              engine.step();
              const at::Tensor after = gathered(model->code, group);
              EXPECT_TRUE(alike(after)) << step;
              EXPECT_TRUE((after[0] == before[0]).all().item<bool>()) << "rank 0's, step " << step;
            }
            EXPECT_EQ(model->count.item<std::int64_t>(), 10);
          }));
        }
      }
    }
  }
}

TEST(Buffers, MeansAreOfAllRanks) {
  expect_all_ok(spawn(3, [](Group group) {
    Codebook model;
    auto engine = initialize(model, json(3, false, R"("buffers": "mean")"), InitializeOptions{.group = group});
    engine.backward(engine(batch_of(group.rank(), 0, false)).square().mean());
    const at::Tensor before = gathered(model->code, group);
    if (group.rank() == 1) model->count.add_(5);
    engine.step();
    const at::Tensor after = gathered(model->code, group);
    EXPECT_TRUE(alike(after));
    const at::Tensor mean = ((before[0] + before[1]) + before[2]).div(3).to(at::kFloat).to(at::kDouble);
    EXPECT_TRUE((after[0] == mean).all().item<bool>());
    EXPECT_EQ(model->count.item<std::int64_t>(), 2) << "whole numbers are rank 0's";
  }));
}

TEST(Buffers, EachRankKeepsItsOwnWhereAsked) {
  expect_all_ok(spawn(2, [](Group group) {
    Codebook model;
    auto engine = initialize(model, json(3, false, R"("buffers": "each")"), InitializeOptions{.group = group});
    engine.backward(engine(batch_of(group.rank(), 0, false)).square().mean());
    const at::Tensor before = gathered(model->code, group);
    engine.step();
    EXPECT_FALSE(alike(before));
    EXPECT_TRUE(gathered(model->code, group).equal(before));
  }));
}

TEST(Buffers, OneRanksWriteIsSeenByAll) {
  expect_all_ok(spawn(3, [](Group group) {
    Holder model;
    const auto own = model->add("own", at::zeros({4}));
    const auto replaced = model->add("replaced", at::zeros({4}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    if (group.rank() == 2) own.fill_(7);
    if (group.rank() == 1) replaced.set_data(at::ones({4}));
    train_one(engine, model);
    EXPECT_EQ(own.sum().item<double>(), 0);
    EXPECT_EQ(replaced.sum().item<double>(), 0);
    if (group.rank() == 0) own.fill_(3);
    train_one(engine, model);
    EXPECT_EQ(own.sum().item<double>(), 12);
  }));
}

TEST(Buffers, OtherSizesOnOneRankAreAnErrorOnAll) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    const auto cache = model->add("cache", at::zeros({4}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    cache.set_data(at::ones({6}));
    train_one(engine, model);  // the same everywhere
    EXPECT_EQ(cache.numel(), 6);
    if (group.rank() == 1) cache.set_data(at::ones({5}));
    try {
      train_one(engine, model);
      ADD_FAILURE() << "no error";
    } catch (const ModelError& error) {
      EXPECT_NE(std::string_view(error.what()).find("buffer 'cache'"), std::string_view::npos) << error.what();
    }
  }));
}

TEST(Buffers, NothingMovesForBuffersThatStay) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    model->add("table", at::ones({100'000}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    train_one(engine, model);
    const auto before = group.counters().broadcast.nbytes_received;
    train_one(engine, model);
    EXPECT_EQ(group.counters().broadcast.nbytes_received, before);
  }));
}

TEST(Buffers, ChangesAreSeen) {
  expect_all_ok(spawn(2, [](Group group) {
    using Sync = engine::BufferSync;
    const at::Tensor table = at::ones({100'000});
    Sync sync({{"table", table}}, Sync::Mode::kRank0);
    EXPECT_TRUE(sync.needed());
    EXPECT_FALSE(sync.changed());
    table[5] = 2;
    EXPECT_TRUE(sync.changed());
    sync.synchronise(group);
    EXPECT_FALSE(sync.changed()) << "what was written there is no change";
    table[900] = 3;
    EXPECT_TRUE(sync.changed()) << "between the pieces that are looked at";
    sync.synchronise(group);
    table.data().mul_(2);
    EXPECT_TRUE(sync.changed()) << "past the version counter";
    sync.synchronise(group);
    table.set_data(table.clone());
    EXPECT_TRUE(sync.changed()) << "other memory";
    EXPECT_FALSE(Sync({{"table", table}}, Sync::Mode::kEach).needed());
    EXPECT_FALSE(Sync({}, Sync::Mode::kRank0).needed());
  }));
}

TEST(Buffers, FieldsByHandAreCheckedBeforeAnythingIsTouched) {
  expect_all_ok(spawn(2, [](Group group) {
    Holder model;
    auto config = Config::from_text(json(0));
    config.zerotorch.update = Config::Zerotorch::Update::kInBackward;
    try {
      initialize(model, config, InitializeOptions{.group = group});
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string_view(error.what())
                    .find("Config: zerotorch.update: in_backward with zero_optimization.stage 0: it needs sharded"),
                std::string_view::npos)
          << error.what();
    }
  }));
}

TEST(Buffers, SafetensorsKeepTheNameOfTheirNotes) {
  const Folder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    Holder model;
    model->add("__metadata__", at::ones({2}));
    auto engine = initialize(model, json(0), InitializeOptions{.group = group});
    try {
      engine.save_16bit_model(folder.path + "/export");
      ADD_FAILURE() << "no error";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string_view(error.what()).find("'__metadata__'"), std::string_view::npos) << error.what();
    }
  }));
}

}  // namespace
}  // namespace zero::testing::buffers_test
