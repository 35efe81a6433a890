// A model's whole weights into and out of a sharded engine: safetensors, torch.save of Python and of C++.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "support/odd_model.h"
#include "support/peak_memory.h"
#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::full_weights_test {
namespace {

namespace fs = std::filesystem;

class FullWeights : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  const fs::path folder = fs::temp_directory_path() / fmt::format("full_weights_test_{}", ::getpid());
  static std::string data(const char* name) { return std::string(ZERO_SOURCE_DIR) + "/tests/data/" + name; }
};

std::string json(int stage, const char* store = "auto", bool bf16 = false) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 3, "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "unit_numel": 2000}}}})",
                     bf16, stage, store);
}

OddModel odd_model(std::uint64_t seed) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return OddModel();
}

using Values = std::map<std::string, at::Tensor>;

template <class Module>
Values values_of(Engine& engine, Module& module) {
  Values values;
  for (const auto& item : module->named_parameters()) values[item.key()] = engine.full_weight(item.key());
  for (const auto& item : module->named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

/// Each rank has buffers of its own; those of rank 0 are written.
void take_buffers_of_rank_0(Values& values, OddModel& module, Group group) {
  for (const auto& item : module->named_buffers()) {
    at::Tensor& buffer = values.at(item.key());
    group.broadcast(buffer.mutable_data_ptr(), static_cast<std::int64_t>(buffer.nbytes()), DType::kByte, 0).wait();
  }
}

void expect_equal(const Values& got, const Values& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
}

/// What the call throws, on this rank.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

template <class Engine>
void one_step(Engine& engine, int index) {
  engine.backward(engine.typed_module()->loss(micro_batch_tokens(index * engine.world_size() + engine.rank())));
  engine.step();
}

TEST_F(FullWeights, WrittenAndReadByAnyRanksStageAndStore) {
  const std::string path = folder;
  for (const bool bf16 : {false, true}) {
    for (const std::string dtype : {"module", "fp32"}) {
      expect_all_ok(spawn(3, [&](Group group) {
        auto model = odd_model(1);
        auto engine = initialize(model, json(3, "copying", bf16), {.group = group});
        one_step(engine, 0);
        checkpoint::ExportOptions options{.dtype = dtype, .max_file_nbytes = 20'000};
        const auto report = engine.save_16bit_model(path, options);
        EXPECT_GT(report.nbytes, 0u);
        EXPECT_EQ(report.files.size() > 2, group.rank() == 0);
        Values values = values_of(engine, model);
        take_buffers_of_rank_0(values, model, group);
        if (bf16 && dtype == "module") {
          for (auto& [name, tensor] : values) {
            if (model->named_parameters().contains(name)) tensor = tensor.to(at::kBFloat16).to(at::kFloat);
          }
        }
        // The same ranks, another engine, other initial values.
        auto other = odd_model(2);
        auto again = initialize(other, json(3, "auto", bf16), {.group = group});
        EXPECT_FALSE(at::equal(again.full_weight("up.weight"), values.at("up.weight")));
        const LoadReport loaded = again.load_full_weights(path);
        EXPECT_TRUE(loaded.missing.empty() && loaded.unexpected.empty());
        expect_equal(values_of(again, other), values);
        if (group.rank() == 0) {
          torch::serialize::OutputArchive archive;
          for (const auto& [name, tensor] : values) archive.write(name, tensor);
          archive.save_to(path + "/want.pt");
        }
        one_step(again, 1);
      }));
      expect_all_ok(spawn(2, [&](Group group) {
        auto model = odd_model(7);
        auto engine = initialize(model, json(1, "auto", bf16), {.group = group});
        engine.load_full_weights(path + "/model.safetensors.index.json");
        torch::serialize::InputArchive archive;
        archive.load_from(path + "/want.pt");
        Values want;
        for (const auto& [name, tensor] : values_of(engine, model)) archive.read(name, want[name]);
        expect_equal(values_of(engine, model), want);
      }));
    }
  }
}

TEST_F(FullWeights, TakeTheMemoryOfOneParameterNotOfTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  constexpr std::int64_t kLayers = 16, kDim = 1024;
  constexpr std::int64_t kParameter = kDim * kDim * 4;  // of 67 MB in all
  // Sampled after each parameter, when its values and their conversion are in memory. What other ranks'
  // shards take is theirs.
  const std::string path = folder;
  for (const bool writing : {true, false}) {
    expect_all_ok(spawn(2, [&](Group group) {
      at::set_num_threads(1);
      DeepModel model(kLayers, kDim);
      auto engine = initialize(model, json(3, "copying"), {.group = group});
      const std::int64_t before = PeakMemory::status("RssAnon");
      std::int64_t most = 0;
      if (writing) {
        engine.save_16bit_model(path, {.dtype = "fp32"}, [&](std::uint64_t, std::uint64_t) {
          most = std::max(most, PeakMemory::status("RssAnon") - before);
        });
      } else {
        const PeakMemory memory;
        engine.load_full_weights(path);
        most = memory.grown();
      }
      EXPECT_LE(most, 6 * kParameter) << (writing ? "writing" : "reading");
      if (group.rank() == 0) {
        std::fprintf(stderr, "%.1f MB of memory to %s %lld MB of weights\n", static_cast<double>(most) / 1e6,
                     writing ? "write" : "read", static_cast<long long>(kLayers * kParameter / 1'000'000));
      }
    }));
  }
}

TEST_F(FullWeights, ArchiveOfTorchSaveInCpp) {
  const std::string path = folder / "module.pt";
  auto saved = odd_model(5);
  torch::save(saved, path);
  Values want;
  for (const auto& item : saved->named_parameters()) want[item.key()] = item.value().detach().clone();
  for (const auto& item : saved->named_buffers()) want[item.key()] = item.value().clone();
  expect_all_ok(spawn(2, [&](Group group) {
    auto model = odd_model(6);
    auto engine = initialize(model, json(3), {.group = group});
    engine.load_full_weights(path);
    expect_equal(values_of(engine, model), want);
  }));
}

/// One tensor under two names, or two tensors.
struct PairImpl : torch::nn::Module {
  at::Tensor left = register_parameter("left", at::full({8}, 1.0)), right;
  explicit PairImpl(bool tied) { right = register_parameter("right", tied ? left : at::full({8}, 2.0)); }
};
TORCH_MODULE(Pair);

TEST_F(FullWeights, ATiedParameterHasOneValueUnderAllItsNames) {
  const std::string path = folder / "pair.pt";
  torch::save(Pair(false), path);
  for (const auto& result : spawn(2, [&](Group group) {
         Pair model(true);
         auto engine = initialize(model, json(3), {.group = group});
         engine.load_full_weights(path);
       })) {
    EXPECT_NE(result.error.find("'left' and 'right' are one parameter of the model, and differ in the file"),
              std::string::npos)
        << result.error;
  }
  // What fits: the first name's.
  expect_all_ok(spawn(2, [&](Group group) {
    at::set_num_threads(1);
    Pair model(true);
    auto engine = initialize(model, json(3), {.group = group});
    const LoadReport report = engine.load_full_weights(path, {.strict = false});
    EXPECT_TRUE(report.unexpected.empty());
    EXPECT_TRUE(at::equal(engine.full_weight("left"), at::full({8}, 1.0)));
  }));
}

torch::nn::Sequential python_model() {
  at::set_num_threads(1);
  at::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
}

TEST_F(FullWeights, StateDictsOfPython) {
  for (const char* name : {"state_dict.pt", "wrapped.pt", "bf16.pt"}) {
    expect_all_ok(spawn(2, [&](Group group) {
      auto model = python_model();
      auto engine = initialize(model, json(3, "copying"), {.group = group});
      engine.load_full_weights(data(name));
      EXPECT_TRUE(at::equal(engine.full_weight("0.weight"), at::arange(12, at::kFloat).view({3, 4}).t()));
      EXPECT_TRUE(at::equal(engine.full_weight("0.bias"), at::arange(4, at::kFloat) + 10));
      EXPECT_TRUE(at::equal(model->named_buffers()["1.running_var"], at::arange(4, at::kFloat) + 50));
      EXPECT_EQ(model->named_buffers()["1.num_batches_tracked"].item<std::int64_t>(), 60);
    }));
  }
}

TEST_F(FullWeights, WhatDoesNotMatchIsNamedAndChangesNothing) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto model = torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
    auto engine = initialize(model, json(3), {.group = group});
    const Values before = values_of(engine, model);
    const std::string path = data("state_dict.pt");
    const std::string error = error_of([&] { engine.load_full_weights(path); });
    EXPECT_NE(error.find("2.weight"), std::string::npos) << error;
    EXPECT_NE(error.find("FullWeightsOptions::strict"), std::string::npos) << error;
    expect_equal(values_of(engine, model), before);

    const LoadReport report = engine.load_full_weights(path, {.strict = false, .names = {}});
    EXPECT_EQ(report.missing, (std::vector<std::string>{"2.weight", "2.bias"}));
    EXPECT_TRUE(at::equal(engine.full_weight("0.bias"), at::arange(4, at::kFloat) + 10));
    EXPECT_TRUE(at::equal(engine.full_weight("2.weight"), before.at("2.weight")));

    // Another name, and a shape that does not fit.
    const LoadReport renamed =
        engine.load_full_weights(path, {.strict = false, .names = {{"0.bias", "1.weight"}, {"2.weight", "0.weight"}}});
    EXPECT_TRUE(at::equal(engine.full_weight("0.bias"), at::arange(4, at::kFloat) + 20));
    ASSERT_EQ(renamed.mismatched.size(), 1u);
    EXPECT_EQ(renamed.mismatched[0], "2.weight: [2, 4] in the model, [4, 3] in the file");
  }));
}

TEST_F(FullWeights, OtherFilesAreRefusedOnEveryRank) {
  std::ofstream(folder / "text.pt") << "not an archive";
  std::ofstream(folder / "short.safetensors") << "abc";
  std::ofstream(folder / "hostile.safetensors.index.json") << R"({"weight_map": {"a": "../../etc/passwd"}})";
  std::ofstream(folder / "lying.safetensors.index.json") << R"({"weight_map": {"a": "gone.safetensors"}})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {folder / "nowhere.pt", "does not exist"},
      {folder / "text.pt", "torch.save"},
      {folder / "short.safetensors", "short.safetensors"},
      {folder / "hostile.safetensors.index.json", "beside the index"},
      {folder / "lying.safetensors.index.json", "gone.safetensors"},
      {folder, "Engine::load_checkpoint"},
      {data("whole_module.pt"), "plain tensors"},
      {data("list.pt"), "state dict"},
      {data("legacy.pt"), "saved again"},
  };
  expect_all_ok(spawn(2, [&](Group group) {
    auto model = python_model();
    auto engine = initialize(model, json(3), {.group = group});
    for (const auto& [path, want] : cases) {
      const std::string error = error_of([&] { engine.load_full_weights(path); });
      EXPECT_NE(error.find(want), std::string::npos) << path << ": " << error;
      EXPECT_NE(error.find("rank 0"), std::string::npos) << path << ": " << error;
    }
    // Still usable.
    engine.backward(model->forward(at::ones({2, 3})).sum());
    engine.step();
  }));
}

/// What programs of libtorch do: copy_() and torch::load() straight into the module, on every rank.
TEST_F(FullWeights, StraightIntoTheModuleIsTakenOver) {
  const std::string path = folder / "module.pt";
  auto saved = python_model();
  torch::save(saved, path);
  expect_all_ok(spawn(2, [&](Group group) {
    at::manual_seed(99);
    auto model = python_model();
    auto engine = initialize(model, json(3), {.group = group});
    {
      at::NoGradGuard no_grad;
      model->named_parameters()["0.weight"].copy_(at::full({4, 3}, 0.5));
      EXPECT_TRUE(at::equal(engine.full_weight("0.weight"), at::full({4, 3}, 0.5)));
      torch::load(model, path);
    }
    for (const auto& item : saved->named_parameters()) {
      EXPECT_TRUE(at::equal(engine.full_weight(item.key()), item.value())) << item.key();
    }
    engine.backward(model->forward(at::ones({2, 3})).sum());
    engine.step();
    bool trains = false;
    for (const auto& item : saved->named_parameters())
      trains = !at::equal(engine.full_weight(item.key()), item.value()) || trains;
    EXPECT_TRUE(trains);
    auto other = python_model();
    auto again = initialize(other, json(3), {.group = group});
    const std::string loaded = error_of([&] { again.load_checkpoint(path); });
    EXPECT_NE(loaded.find("Engine::load_full_weights"), std::string::npos) << loaded;
  }));
}

TEST_F(FullWeights, AFolderThatCannotBeWrittenIsAnErrorOnEveryRank) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto model = odd_model(1);
    auto engine = initialize(model, json(3), {.group = group});
    const std::string error = error_of([&] { engine.save_16bit_model("/proc/nowhere"); });
    EXPECT_NE(error.find("/proc/nowhere"), std::string::npos) << error;
    const std::string dtype = error_of([&] { engine.save_16bit_model(folder, {.dtype = "int4"}); });
    EXPECT_NE(dtype.find("want fp32, bf16, fp16 or module"), std::string::npos) << dtype;
    one_step(engine, 0);
  }));
}

}  // namespace
}  // namespace zero::testing::full_weights_test
