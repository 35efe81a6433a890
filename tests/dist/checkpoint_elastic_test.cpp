// Loads into other precisions, numbers of ranks, orders in memory and accumulations; what else makes a run
// the same; and how many bytes of a checkpoint each rank reads.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "persistence/checkpoints.h"
#include "support/layers.h"
#include "support/odd_model.h"
#include "support/resume.h"
#include "support/spawn.h"
#include "support/watched_files.h"

namespace zero::testing::checkpoint_elastic_test {
namespace {

namespace fs = std::filesystem;

class CheckpointElastic : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  const std::string folder = fs::temp_directory_path() / fmt::format("checkpoint_elastic_test_{}", ::getpid());
};

// ---- precision, ranks, accumulation --------------------------------------------------------------------

TEST_F(CheckpointElastic, Fp32AndBf16LoadEachOther) {
  expect_all_ok(spawn(3, [&](Group group) {
    at::set_num_threads(1);
    for (const bool bf16 : {false, true}) {
      const std::string tag = bf16 ? "bf16" : "fp32";
      const ResumePlace place{3, 3, false, bf16};
      train_and_save(place, group, kResumeWindow * 2, folder, tag);
      // As it was, in its own precision; then in the other one, at another stage and in the other store.
      Values want, got;
      for (const bool other : {false, true}) {
        at::manual_seed(9);
        OddModel model;
        auto engine = initialize(model, resume_json({3, other ? 1 : 3, other, other ? !bf16 : bf16}), {.group = group});
        const LoadReport report = engine.load_checkpoint(folder, tag);
        EXPECT_EQ(report.global_steps, 2);
        (other ? got : want) = values_of(engine);
        const auto low = bf16 != other ? at::kBFloat16 : at::kFloat;
        for (const auto& item : model->named_parameters()) {
          EXPECT_EQ(item.value().scalar_type(), low);
          if (!other) continue;
          // What the module reads is the master, rounded.
          const GatheredParameters gathered(engine, {item.value()});
          EXPECT_TRUE(at::equal(item.value(), engine.full_weight(item.key()).to(low))) << item.key();
        }
        if (other) {
          engine.backward(model->loss(micro_batch_tokens(48 + group.rank(), 1, 5)));
          engine.step();
        }
      }
      // Masters and moments to the last bit. What has no master, frozen parameters and buffers, is rounded.
      for (auto& [name, value] : want) {
        const bool no_master = name.starts_with("buffer/") || mentions(name, "/frozen.");
        if (no_master && !bf16) value = value.to(at::kBFloat16).to(at::kFloat);
      }
      EXPECT_EQ(differing(got, want), Names()) << tag;
    }
  }));
}

TEST_F(CheckpointElastic, FiveSixAndSevenRanks) {
  constexpr std::int64_t kWindow = 210;
  const auto place = [](int ranks, int stage, bool node_shared) {
    return ResumePlace{
        .ranks = ranks, .stage = stage, .node_shared = node_shared, .bf16 = true, .window = kWindow, .steps = 3};
  };
  const Trajectory expected = [&] {
    Trajectory result;
    const std::string path = folder + "_hash";
    expect_all_ok(spawn(1, [&](Group) {
      const auto all = train_and_save(place(1, 0, false), Group(), 3 * kWindow, "", "");
      std::ofstream file(path);
      file << all.final_hash;
    }));
    std::ifstream(path) >> result.final_hash;
    fs::remove(path);
    return result;
  }();
  const struct { int from, to; } ways[] = {{6, 5}, {5, 7}, {7, 6}};
  for (const auto& [from, to] : ways) {
    const std::string tag = fmt::format("{}_{}", from, to);
    expect_all_ok(
        spawn(from, [&](Group group) { train_and_save(place(from, 3, from == 5), group, 2 * kWindow, folder, tag); }));
    expect_all_ok(spawn(to, [&](Group group) {
      const auto got = load_and_train(place(to, to == 7 ? 2 : 3, to == 6), group, folder, tag);
      EXPECT_EQ(got.final_hash, expected.final_hash) << tag;
    }));
  }
}

TEST_F(CheckpointElastic, WithAnotherAccumulationTheOpenWindowStartsAgain) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1, {}, layers_json(false, 3));
    train(saved, 5);  // a step, and two thirds of the next
    saved.save_checkpoint(folder, "a");
    auto engine = layers_engine(group, 2, {}, layers_json(false, 2));
    const LoadReport report = engine.load_checkpoint(folder);
    EXPECT_EQ(report.micro_batches, 6);
    EXPECT_EQ(engine.micro_steps(), 3);
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(report.notices,
              Names{"6 micro-batches made a step when the checkpoint was written, 4 do now: the data, which had "
                    "come to micro-batch 10, goes on at 6, without the gradients of the step that was not over"});
    train(engine, 2);
    EXPECT_EQ(engine.global_steps(), 2);
  }));
}

TEST_F(CheckpointElastic, AnotherOrderInMemory) {
  for (const int ranks : {1, 3}) {
    for (const bool turned : {false, true}) {
      const std::string tag = fmt::format("{}_{}", ranks, turned);
      expect_all_ok(spawn(2, [&](Group group) {
        auto saved = layers_engine(group, 1, {.turned = turned});
        train(saved, 3);
        saved.save_checkpoint(folder, tag);
      }));
      expect_all_ok(spawn(ranks, [&](Group group) {
        auto same = layers_engine(group, 2, {.turned = turned});
        same.load_checkpoint(folder, tag);
        auto other = layers_engine(group, 3, {.turned = !turned});
        other.load_checkpoint(folder, tag);
        EXPECT_NE(same.typed_module()->first->weight.strides(), other.typed_module()->first->weight.strides());
        EXPECT_EQ(differing(values_of(other), values_of(same)), Names());
        train(other, 1);
      }));
    }
  }
}

TEST_F(CheckpointElastic, AWindowGoesOnUnderOtherNamesAndStartsAgainInAnotherModel) {
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string json = layers_json(false, 2);
    auto saved = layers_engine(group, 1, {}, json);
    train(saved, 3);
    saved.save_checkpoint(folder, "a");
    train(saved, 1);
    auto engine = layers_engine(group, 2, {.first = "body"}, json);
    engine.load_checkpoint(folder, "", {.names = {{"body.weight", "first.weight"}, {"body.bias", "first.bias"}}});
    EXPECT_EQ(engine.micro_steps(), 3);
    train(engine, 1);
    EXPECT_EQ(differing(values_of(engine), renamed(values_of(saved), {{"first", "body"}})), Names());

    auto more = layers_engine(group, 3, {.added = true}, json);
    const LoadReport report = more.load_checkpoint(folder, "", {.strict = false});
    EXPECT_TRUE(any_mentions(report.notices, "the accumulated gradients of the checkpoint are of another model"));
    EXPECT_EQ(more.micro_steps(), 2);
    EXPECT_EQ(report.micro_batches, 4);
    train(more, 2);
    EXPECT_EQ(more.global_steps(), 2);
  }));
}

// ---- what else makes a run the same --------------------------------------------------------------------

TEST_F(CheckpointElastic, RandomStreamsAndTheDataGoOn) {
  // Dropout draws from the ranks' own streams here, which only the checkpoint can bring back.
  auto json = nlohmann::json::parse(resume_json({2, 3, false, false}));
  json["zerotorch"]["reseed_per_micro_batch"] = false;
  expect_all_ok(spawn(2, [&](Group group) {
    const auto run = [&](OddModel& model, auto& engine, int count) {
      std::vector<float> losses;
      for (int i = 0; i < count; ++i) {
        const at::Tensor loss = model->loss(micro_batch_tokens(engine.micro_steps() * 2 + group.rank(), 1, 5));
        engine.backward(loss);
        engine.step();
        losses.push_back(loss.template item<float>());
      }
      return losses;
    };
    at::set_num_threads(1);
    at::manual_seed(21 + group.rank());
    OddModel model;
    auto engine = initialize(model, json.dump(), {.group = group});
    run(model, engine, 14);  // two micro-batches into the second window
    engine.save_checkpoint(folder, "a");
    const auto want = run(model, engine, 14);
    const float next = at::rand({1}).item<float>();

    at::manual_seed(77);
    OddModel other;
    auto again = initialize(other, json.dump(), {.group = group});
    at::manual_seed(78);
    const LoadReport report = again.load_checkpoint(folder);
    EXPECT_EQ(report.micro_batches, 28);
    EXPECT_EQ(again.micro_steps(), 14);
    EXPECT_EQ(run(other, again, 14), want);
    EXPECT_EQ(at::rand({1}).item<float>(), next);
    // Buffers are rank 0's, as saved: those of other ranks have a history of their own.
    for (const auto& name : differing(values_of(again), values_of(engine))) {
      EXPECT_TRUE(group.rank() > 0 && name.starts_with("buffer/")) << name;
    }
  }));
  // Another number of ranks has no such streams, and says so.
  expect_all_ok(spawn(3, [&](Group group) {
    at::set_num_threads(1);
    OddModel other;
    auto again = initialize(other, json.dump(), {.group = group});
    const LoadReport report = again.load_checkpoint(folder);
    EXPECT_TRUE(any_mentions(report.notices, "random streams belong to ranks"));
  }));
}

TEST_F(CheckpointElastic, TheManifestHasAllThatARunNeeds) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 1, {}, layers_json(true, 2));
    engine.set_learning_rate(0.004);
    train(engine, 3);
    engine.save_checkpoint(folder, "a", R"({"mine": [1, 2]})");
    if (group.rank() != 0) return;
    const auto found = checkpoint::inspect(folder);
    const auto state = nlohmann::json::parse(found.state);
    const bool in_fp32 = faster_cpu_products(DType::kBFloat16) == CpuProducts::kFp32;
    const nlohmann::json want = {{"global_steps", 1},
                                 {"micro_batches", 6},
                                 {"window_micro_batches", 2},
                                 {"gradient_accumulation_steps", 2},
                                 {"data_parallel_size", 2},
                                 {"model_parallel_size", 1},
                                 {"optimizer", "Adam"},
                                 {"optimizer_steps", 1},
                                 {"seed", "5"},
                                 {"loss_scaler", {{"scale", 1.0}, {"skipped_steps", 0}}},
                                 {"stage", 3},
                                 {"precision", "bf16"},
                                 {"threads_per_rank", 1},
                                 {"cpu_capability", at::get_cpu_capability()},
                                 {"cpu_products", in_fp32 ? "fp32" : "native"},
                                 {"learning_rate_override", 0.004}};
    EXPECT_EQ(state, want) << found.state;
    EXPECT_EQ(nlohmann::json::parse(found.client_state), nlohmann::json::parse(R"({"mine": [1, 2]})"));
    EXPECT_EQ(nlohmann::json::parse(found.config).at("scheduler").at("type"), "WarmupLR") << found.config;
    const auto versions = nlohmann::json::parse(found.versions);
    EXPECT_TRUE(versions.contains("torch") && versions.contains("zerotorch")) << found.versions;
    std::map<std::string, int> kinds;
    for (const auto& tensor : found.tensors) ++kinds[tensor.kind];
    const std::map<std::string, int> counts = {{"weight", 4},       {"exp_avg", 4}, {"exp_avg_sq", 4},
                                               {"gradient_sum", 4}, {"buffer", 1},  {"random_state", 2}};
    EXPECT_EQ(kinds, counts);
  }));
}

// ---- how much is read ----------------------------------------------------------------------------------

TEST_F(CheckpointElastic, EachRankReadsOnlyWhatItNeeds) {
  const auto json = layers_json();
  const auto big = [](Group group) {
    at::set_num_threads(1);
    at::manual_seed(1);
    return initialize(DeepModel(3, 1024), layers_json(), {.group = std::move(group)});  // 12.6 MB of weights
  };
  expect_all_ok(spawn(3, [&](Group group) {
    auto engine = big(group);
    engine.backward(engine(at::ones({1, 1024})).sum());
    engine.step();
    engine.save_checkpoint(folder, "a");
  }));
  std::uint64_t payload = 0;
  for (const auto& tensor : checkpoint::inspect(folder).tensors) payload += tensor.nbytes;
  for (const int ranks : {1, 2, 4}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      WatchedFiles files(io::system_files());
      auto engine = big(group);
      persistence::use_files(engine.impl(), files);
      engine.load_checkpoint(folder);
      const auto share = payload / static_cast<std::uint64_t>(ranks);
      // Blocks are read whole, two of them per run of elements more than is wanted; and the headers.
      const std::uint64_t most = share + (ranks == 1 ? 1 : 24) * (1ull << 20);
      EXPECT_GE(files.nbytes_read(), share * 9 / 10);
      EXPECT_LE(files.nbytes_read(), most) << "of " << payload;
      if (group.rank() == 0) {
        std::fprintf(stderr, "%d ranks: rank 0 reads %.1f of %.1f MB\n", ranks,
                     static_cast<double>(files.nbytes_read()) / 1e6, static_cast<double>(payload) / 1e6);
      }
      files.reset();
      engine.load_checkpoint(folder, "", {.module_only = true});
      EXPECT_LE(files.nbytes_read(), share / 3 + (ranks == 1 ? 1 : 8) * (1ull << 20));
    }));
  }
}

}  // namespace
}  // namespace zero::testing::checkpoint_elastic_test
