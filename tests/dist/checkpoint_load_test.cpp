// Engine::load_checkpoint and its options: renamed, extended and otherwise shaped models, parts of a
// checkpoint, other precisions, damage, hostile manifests, and how many bytes a rank reads.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/folder.h"
#include "checkpoint/tools.h"
#include "engine/checkpoints.h"
#include "support/odd_model.h"
#include "support/resume.h"
#include "support/spawn.h"
#include "support/watched_files.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct Shape {
  std::string first = "first", second = "second", buffer = "seen";
  std::int64_t out = 4;
  bool added = false;
  bool freeze_second = false;
};

/// Two layers whose names, sizes and company can be chosen.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const Shape& shape) {
    first = register_module(shape.first, torch::nn::Linear(6, 5));
    second = register_module(shape.second, torch::nn::Linear(5, shape.out));
    if (shape.added) added = register_module("added", torch::nn::Linear(5, shape.out));
    for (auto& parameter : second->parameters()) parameter.requires_grad_(!shape.freeze_second);
    seen = register_buffer(shape.buffer, at::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::tanh(first(x));
    seen.add_(1);
    return added ? second(hidden) + added(hidden) : second(hidden);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, added{nullptr};
  at::Tensor seen;
};
TORCH_MODULE(Layers);

std::string layers_json(bool bf16 = false, int accumulation = 1, int stage = 3) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}},
    "scheduler": {{"type": "WarmupLR",
                   "params": {{"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 9}}}},
    "bf16": {{"enabled": {}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"seed": 5}}}})",
                     accumulation, bf16, stage);
}

using LayersEngine = ModuleEngine<Layers>;

LayersEngine layers_engine(Group group, std::uint64_t seed, const Shape& shape = {},
                           const std::string& json = layers_json()) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return initialize(Layers(shape), json, {.group = std::move(group)});
}

void train(LayersEngine& engine, int micro_batches) {
  for (int i = 0; i < micro_batches; ++i) {
    const double index = static_cast<double>(engine.micro_steps() * engine.world_size() + engine.rank());
    at::Tensor x = at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(index));
    x = x.to(engine.module().parameters().front().scalar_type());
    engine.backward(engine(x).to(at::kFloat).square().sum());
    engine.step();
  }
}

using Values = std::map<std::string, at::Tensor>;

/// Everything that has a name: "weight/...", "exp_avg/...", "exp_avg_sq/...", "buffer/...".
Values values_of(Engine& engine) {
  Values values;
  for (const auto& item : engine.module().named_parameters()) {
    values["weight/" + item.key()] = engine.full_weight(item.key());
    if (!item.value().requires_grad()) continue;
    values["exp_avg/" + item.key()] = engine.full_optimizer_state(item.key(), OptimizerState::kExpAvg);
    values["exp_avg_sq/" + item.key()] = engine.full_optimizer_state(item.key(), OptimizerState::kExpAvgSq);
  }
  for (const auto& item : engine.module().named_buffers()) {
    values["buffer/" + item.key()] = item.value().clone().to(at::kFloat);
  }
  return values;
}

/// Those of `names` that are not equal in both; "-name" where one has none.
Names differing(const Values& a, const Values& b) {
  Names names;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      names.push_back("-" + name);
    } else if (!at::equal(value, other->second)) {
      names.push_back(name);
    }
  }
  for (const auto& [name, value] : b) {
    if (!a.contains(name)) names.push_back("-" + name);
  }
  return names;
}

/// With the names of another model.
Values renamed(const Values& values, const std::map<std::string, std::string>& parts) {
  Values result;
  for (const auto& [key, value] : values) {
    std::string name = key;
    for (const auto& [from, to] : parts) {
      if (const auto at = name.find("/" + from); at != std::string::npos)
        name.replace(at + 1, from.size(), to);
    }
    result[name] = value;
  }
  return result;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }
bool any_mentions(const Names& texts, std::string_view part) {
  return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return mentions(text, part); });
}

/// One bit of a rank file's data.
void flip(const std::string& path, std::int64_t index = 7) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::int64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  file.seekg(8 + header + index);
  const int byte = file.get();
  file.seekp(8 + header + index);
  file.put(static_cast<char>(byte ^ 4));
}

class CheckpointLoad : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }
  const std::string folder = fs::temp_directory_path() / fmt::format("checkpoint_load_test_{}", ::getpid());
};

// ---- names and shapes ----------------------------------------------------------------------------------

const std::map<std::string, std::string> kNames = {{"body.weight", "first.weight"},
                                                   {"body.bias", "first.bias"},
                                                   {"head.weight", "second.weight"},
                                                   {"head.bias", "second.bias"},
                                                   {"count", "seen"}};

TEST_F(CheckpointLoad, ARenamedModelByAMapOfNames) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1);
    train(saved, 3);
    saved.save_checkpoint(folder, "a");
    const Values want = renamed(values_of(saved), {{"first", "body"}, {"second", "head"}, {"seen", "count"}});

    auto engine = layers_engine(group, 2, {.first = "body", .second = "head", .buffer = "count"});
    const Values before = values_of(engine);
    const std::string error = error_of([&] { engine.load_checkpoint(folder); });
    for (const char* part : {"is of another model", "5 missing there: ", "body.weight", "count",
                             "5 not in the model: ", "first.bias", "LoadOptions::names"}) {
      EXPECT_TRUE(mentions(error, part)) << part << ": " << error;
    }
    EXPECT_EQ(differing(values_of(engine), before), Names());

    const LoadReport report = engine.load_checkpoint(folder, "", {.names = kNames});
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.mismatched.empty());
    EXPECT_EQ(report.global_steps, 3);
    EXPECT_EQ(differing(values_of(engine), want), Names());
    // And goes on as the other one does.
    train(saved, 2);
    train(engine, 2);
    EXPECT_EQ(
        differing(values_of(engine),
                  renamed(values_of(saved), {{"first", "body"}, {"second", "head"}, {"seen", "count"}})),
        Names());

    // A name that this model has not would do nothing, silently.
    const std::string unknown = error_of([&] {
      engine.load_checkpoint(folder, "", {.strict = false, .names = {{"boddy.weight", "first.weight"}}});
    });
    EXPECT_TRUE(mentions(unknown, "boddy.weight") && mentions(unknown, "LoadOptions::names")) << unknown;
  }));
}

TEST_F(CheckpointLoad, AnExtendedModelSaysWhatWasNotThere) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1);
    train(saved, 3);
    saved.save_checkpoint(folder, "a");
    const Values want = renamed(values_of(saved), {{"first", "body"}, {"second", "head"}, {"seen", "count"}});

    auto engine =
        layers_engine(group, 2, {.first = "body", .second = "head", .buffer = "count", .added = true});
    train(engine, 1);
    const Values before = values_of(engine);
    const std::string error = error_of([&] { engine.load_checkpoint(folder, "", {.names = kNames}); });
    EXPECT_TRUE(mentions(error, "2 missing there: added.weight, added.bias")) << error;
    EXPECT_FALSE(mentions(error, "not in the model")) << error;
    EXPECT_EQ(differing(values_of(engine), before), Names());

    const LoadReport report = engine.load_checkpoint(folder, "", {.strict = false, .names = kNames});
    EXPECT_EQ(report.missing, (Names{"added.weight", "added.bias"}));
    EXPECT_EQ(report.unexpected, Names());
    EXPECT_TRUE(any_mentions(report.notices, "2 parameters are not in the checkpoint"))
        << report.notices.size();
    Values expected = want;
    for (const auto& [name, value] : before) {
      if (mentions(name, "added")) expected[name] = value;
    }
    EXPECT_EQ(differing(values_of(engine), expected), Names());
    train(engine, 1);

    // The other way: the checkpoint has more than the model.
    engine.save_checkpoint(folder, "more");
    auto smaller = layers_engine(group, 3, {.first = "body", .second = "head", .buffer = "count"});
    const LoadReport less = smaller.load_checkpoint(folder, "more", {.strict = false});
    EXPECT_EQ(less.unexpected, (Names{"added.bias", "added.weight"}));
    EXPECT_EQ(less.missing, Names());
  }));
}

TEST_F(CheckpointLoad, OtherShapesAreNamedAndLeftAlone) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1);
    train(saved, 2);
    saved.save_checkpoint(folder, "a");
    auto engine = layers_engine(group, 2, {.out = 3});
    const Values before = values_of(engine);
    const std::string error = error_of([&] { engine.load_checkpoint(folder); });
    EXPECT_TRUE(mentions(error,
                         "2 of another shape: second.weight: [3, 5] in the model, [4, 5] in the "
                         "checkpoint, second.bias: [3] in the model, [4] in the checkpoint"))
        << error;
    EXPECT_EQ(differing(values_of(engine), before), Names());
    const LoadReport report = engine.load_checkpoint(folder, "", {.strict = false});
    EXPECT_EQ(report.mismatched, (Names{"second.weight: [3, 5] in the model, [4, 5] in the checkpoint",
                                        "second.bias: [3] in the model, [4] in the checkpoint"}));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    EXPECT_EQ(differing(values_of(engine), before),
              (Names{"buffer/seen", "exp_avg/first.bias", "exp_avg/first.weight", "exp_avg_sq/first.bias",
                     "exp_avg_sq/first.weight", "weight/first.bias", "weight/first.weight"}));
    train(engine, 1);
  }));
}

// ---- parts of a checkpoint -----------------------------------------------------------------------------

TEST_F(CheckpointLoad, TheOptionsLoadWhatTheySay) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1);
    train(saved, 5);
    saved.save_checkpoint(folder, "a");
    const Values there = values_of(saved);
    const auto only = [](const Values& values, bool states) {
      Values result;
      for (const auto& [name, value] : values) {
        if (name.starts_with("exp_avg") == states) result[name] = value;
      }
      return result;
    };
    struct Case {
      LoadOptions options;
      bool states, counters;
    };
    for (const Case& which :
         {Case{{}, true, true}, Case{{.module_only = true}, false, false},
          Case{{.load_optimizer_states = false}, false, true},
          Case{{.load_lr_scheduler_states = false}, true, false},
          Case{{.load_optimizer_states = false, .load_lr_scheduler_states = false}, false, false}}) {
      SCOPED_TRACE(fmt::format("module only {}, states {}, counters {}", which.options.module_only,
                               which.states, which.counters));
      auto engine = layers_engine(group, 2);
      train(engine, 2);
      const Values before = values_of(engine);
      const double lr = engine.learning_rate();
      const LoadReport report = engine.load_checkpoint(folder, "", which.options);
      const Values after = values_of(engine);
      EXPECT_EQ(differing(only(after, false), only(there, false)), Names());
      EXPECT_EQ(differing(only(after, true), only(which.states ? there : before, true)), Names());
      EXPECT_EQ(engine.global_steps(), which.counters ? 5 : 2);
      EXPECT_EQ(engine.micro_steps(), which.counters ? 5 : 2);
      EXPECT_EQ(report.global_steps, engine.global_steps());
      EXPECT_EQ(report.micro_batches, engine.micro_steps() * 2);
      EXPECT_EQ(engine.learning_rate(), which.counters ? saved.learning_rate() : lr);
      EXPECT_NE(lr, saved.learning_rate());
      EXPECT_EQ(any_mentions(report.notices, "optimizer states were not loaded: they stay as they are"),
                !which.states && !which.options.module_only);
      // What Adam divides by belongs to its states: with both, the next step is that of the other engine.
      if (which.states && which.counters) {
        auto same = layers_engine(group, 3);
        same.load_checkpoint(folder);
        train(same, 1);
        train(engine, 1);
        EXPECT_EQ(differing(values_of(engine), values_of(same)), Names());
      } else {
        train(engine, 1);
      }
    }
  }));
}

TEST_F(CheckpointLoad, OptimizerStatesComeAndGoWithAWord) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto without = layers_engine(group, 1, {.freeze_second = true});
    train(without, 3);
    without.save_checkpoint(folder, "without");
    auto with = layers_engine(group, 2);
    train(with, 2);
    with.save_checkpoint(folder, "with");

    // Frozen there, trained here.
    LoadReport report = with.load_checkpoint(folder, "without");
    EXPECT_TRUE(any_mentions(report.notices,
                             "2 parameters have no optimizer states in the checkpoint; theirs start at zero: "
                             "second.weight, second.bias"));
    Values want = values_of(without);
    for (const char* state : {"exp_avg/second.", "exp_avg_sq/second."}) {
      want[std::string(state) + "weight"] = at::zeros({4, 5});
      want[std::string(state) + "bias"] = at::zeros({4});
    }
    EXPECT_EQ(differing(values_of(with), want), Names());
    train(with, 1);

    // Trained there, frozen here.
    report = without.load_checkpoint(folder, "with");
    EXPECT_TRUE(
        any_mentions(report.notices,
                     "2 parameters are frozen in this model, their optimizer states in the checkpoint "
                     "are not used: second.weight, second.bias"));
    train(without, 1);
    report = without.load_checkpoint(folder, "without");
    EXPECT_EQ(report.notices, Names());
  }));
}

// ---- precision, ranks, accumulation --------------------------------------------------------------------

TEST_F(CheckpointLoad, Fp32AndBf16LoadEachOther) {
  expect_all_ok(spawn(3, [&](Group group) {
    at::set_num_threads(1);
    for (const bool bf16 : {false, true}) {
      const std::string tag = bf16 ? "bf16" : "fp32";
      const Place place{3, 3, false, bf16};
      train_and_save(place, group, kResumeWindow * 2, folder, tag);
      // As it was, in its own precision; then in the other one, at another stage and in the other store.
      Values want, got;
      for (const bool other : {false, true}) {
        at::manual_seed(9);
        OddModel model;
        auto engine =
            initialize(model, resume_json({3, other ? 1 : 3, other, other ? !bf16 : bf16}), {.group = group});
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

TEST_F(CheckpointLoad, FiveSixAndSevenRanks) {
  constexpr std::int64_t kWindow = 210;
  const auto place = [](int ranks, int stage, bool node_shared) {
    return Place{.ranks = ranks,
                 .stage = stage,
                 .node_shared = node_shared,
                 .bf16 = true,
                 .window = kWindow,
                 .steps = 3};
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
    expect_all_ok(spawn(from, [&](Group group) {
      train_and_save(place(from, 3, from == 5), group, 2 * kWindow, folder, tag);
    }));
    expect_all_ok(spawn(to, [&](Group group) {
      const auto got = load_and_train(place(to, to == 7 ? 2 : 3, to == 6), group, folder, tag);
      EXPECT_EQ(got.final_hash, expected.final_hash) << tag;
    }));
  }
}

TEST_F(CheckpointLoad, AnotherAccumulationStartsAtItsOwnStep) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto saved = layers_engine(group, 1, {}, layers_json(false, 3));
    train(saved, 5);  // a step, and two thirds of the next
    saved.save_checkpoint(folder, "a");
    auto engine = layers_engine(group, 2, {}, layers_json(false, 2));
    const LoadReport report = engine.load_checkpoint(folder);
    // The step that was not over began at 6; steps of 4 begin at 8.
    EXPECT_EQ(report.micro_batches, 8);
    EXPECT_EQ(engine.micro_steps(), 4);
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_EQ(
        report.notices,
        Names{"6 micro-batches made a step when the checkpoint was written, 4 do now: the data, which had "
              "come to micro-batch 10, goes on at 8, without the gradients of the step that was not over"});
    train(engine, 2);
    EXPECT_EQ(engine.global_steps(), 2);
  }));
}

// ---- what else makes a run the same --------------------------------------------------------------------

TEST_F(CheckpointLoad, RandomStreamsAndTheDataGoOn) {
  // Dropout draws from the ranks' own streams here, which only the checkpoint can bring back.
  auto json = nlohmann::json::parse(resume_json({2, 3, false, false}));
  json["zerotorch"]["reseed_per_micro_batch"] = false;
  expect_all_ok(spawn(2, [&](Group group) {
    const auto run = [&](OddModel& model, auto& engine, int count) {
      std::vector<float> losses;
      for (int i = 0; i < count; ++i) {
        const at::Tensor loss =
            model->loss(micro_batch_tokens(engine.micro_steps() * 2 + group.rank(), 1, 5));
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

TEST_F(CheckpointLoad, TheManifestHasAllThatARunNeeds) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 1, {}, layers_json(true, 2));
    engine.set_learning_rate(0.004);
    train(engine, 3);
    engine.save_checkpoint(folder, "a", R"({"mine": [1, 2]})");
    if (group.rank() != 0) return;
    const auto found = checkpoint::inspect(folder);
    const auto state = nlohmann::json::parse(found.state);
    const nlohmann::json want = {{"global_steps", 1},
                                 {"skipped_steps", 0},
                                 {"micro_batches", 6},
                                 {"window_micro_batches", 2},
                                 {"gradient_accumulation_steps", 2},
                                 {"world_size", 2},
                                 {"optimizer_steps", 1},
                                 {"seed", "5"},
                                 {"loss_scale", 1.0},
                                 {"stage", 3},
                                 {"precision", "bf16"},
                                 {"threads_per_rank", 1},
                                 {"cpu_capability", at::get_cpu_capability()},
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

// ---- damage --------------------------------------------------------------------------------------------

TEST_F(CheckpointLoad, VerifyFirstLeavesTheEngineAsItWas) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 1);
    train(engine, 1);
    engine.save_checkpoint(folder, "good");
    train(engine, 1);
    engine.save_checkpoint(folder, "bad");
    group.barrier().wait();
    if (group.rank() == 0) flip(folder + "/bad/rank_00001.safetensors");
    group.barrier().wait();
    train(engine, 1);
    const Values before = values_of(engine);
    const std::string error =
        error_of([&] { engine.load_checkpoint(folder, "bad", {.verify_first = true}); });
    EXPECT_TRUE(mentions(error, "rank_00001.safetensors")) << error;
    EXPECT_EQ(differing(values_of(engine), before), Names());
    EXPECT_EQ(engine.global_steps(), 3);
    train(engine, 1);

    // Without it the engine may be half this and half that: it does nothing more until a load succeeds.
    EXPECT_NE(error_of([&] { engine.load_checkpoint(folder, "bad"); }), "");
    EXPECT_TRUE(mentions(error_of([&] { engine.step(); }), "load another one"));
    EXPECT_TRUE(mentions(error_of([&] { engine.save_checkpoint(folder, "never"); }), "load another one"));
    engine.load_checkpoint(folder, "good");
    train(engine, 3);
    EXPECT_EQ(differing(values_of(engine), before).size(), before.size());
    auto same = layers_engine(group, 4);
    same.load_checkpoint(folder, "good", {.verify_first = true});
    train(same, 3);
    EXPECT_EQ(differing(values_of(engine), values_of(same)), Names());
  }));
}

TEST_F(CheckpointLoad, FallsBackToTheNewestThatIsIntactWhenAsked) {
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 1);
    std::map<int, Values> at_step;
    for (int step = 1; step <= 3; ++step) {
      train(engine, 1);
      engine.save_checkpoint(folder, fmt::format("step{}", step));
      at_step[step] = values_of(engine);
    }
    const auto damage = [&](auto work) {
      group.barrier().wait();
      if (group.rank() == 0) work();
      group.barrier().wait();
    };
    damage([&] { flip(folder + "/step3/rank_00001.safetensors"); });
    EXPECT_TRUE(mentions(error_of([&] { engine.load_checkpoint(folder); }), "step3/rank_00001.safetensors"));
    // A tag means this one.
    EXPECT_NE(error_of([&] { engine.load_checkpoint(folder, "step3", {.fall_back = true}); }), "");
    LoadReport report = engine.load_checkpoint(folder, "", {.fall_back = true});
    EXPECT_EQ(report.tag, "step2");
    EXPECT_EQ(report.global_steps, 2);
    ASSERT_EQ(report.notices.size(), 1u);
    EXPECT_TRUE(mentions(report.notices[0], "fell back to another checkpoint: ") &&
                mentions(report.notices[0], "step3/rank_00001.safetensors"))
        << report.notices[0];
    EXPECT_EQ(differing(values_of(engine), at_step[2]), Names());
    train(engine, 1);
    EXPECT_EQ(differing(values_of(engine), at_step[3]), Names());

    // Two of them, in other ways; and `latest` names nothing.
    damage([&] {
      fs::remove(folder + "/step2/manifest.json");
      std::ofstream(folder + "/latest") << "nowhere\n";
    });
    report = engine.load_checkpoint(folder, "", {.fall_back = true, .verify_first = true});
    EXPECT_EQ(report.tag, "step1");
    EXPECT_EQ(differing(values_of(engine), at_step[1]), Names());

    // Nothing is intact: each one says why.
    damage([&] { flip(folder + "/step1/rank_00000.safetensors"); });
    const std::string error = error_of([&] { engine.load_checkpoint(folder, "", {.fall_back = true}); });
    EXPECT_TRUE(mentions(error, "step3/rank_00001") && mentions(error, "step1/rank_00000")) << error;
  }));
}

/// A manifest of this state, with the right checksum.
void forge_state(const std::string& folder, const std::string& state) {
  auto manifest = checkpoint::read_manifest(io::system_files(), folder);
  manifest.state = state;
  std::ofstream(folder + "/manifest.json", std::ios::trunc) << checkpoint::to_text(manifest);
}

TEST_F(CheckpointLoad, HostileStatesAreRefusedAndChangeNothing) {
  expect_all_ok(spawn(1, [&](Group group) {
    auto engine = layers_engine(group, 1);
    train(engine, 2);
    engine.save_checkpoint(folder, "a");
    const auto good = nlohmann::json::parse(checkpoint::inspect(folder).state);
    train(engine, 1);
    const Values before = values_of(engine);
    std::vector<std::string> states = {"null", "[]", "7", "\"text\"", "{}"};
    const std::pair<const char*, nlohmann::json> changes[] = {
        {"seed", "not a number"},
        {"seed", "99999999999999999999999"},
        {"seed", ""},
        {"global_steps", -1},
        {"global_steps", "2"},
        {"global_steps", nullptr},
        {"skipped_steps", 3},
        {"micro_batches", 1e300},
        {"micro_batches", 9223372036854775807LL},
        {"window_micro_batches", 3},
        {"window_micro_batches", 9223372036854775807LL},
        {"world_size", 9223372036854775807LL},
        {"gradient_accumulation_steps", 9223372036854775807LL},
        {"optimizer_steps", 9223372036854775807LL},
        {"learning_rate_override", "high"}};
    for (const auto& [key, value] : changes) {
      auto state = good;
      state[key] = value;
      states.push_back(state.dump());
    }
    for (const auto& state : states) {
      forge_state(folder + "/a", state);
      EXPECT_TRUE(mentions(error_of([&] { engine.load_checkpoint(folder); }), "/a'")) << state;
      EXPECT_EQ(differing(values_of(engine), before), Names()) << state;
      EXPECT_EQ(engine.global_steps(), 3) << state;
    }
    forge_state(folder + "/a", good.dump());
    engine.load_checkpoint(folder);
    EXPECT_EQ(engine.global_steps(), 2);
    train(engine, 1);
    EXPECT_EQ(differing(values_of(engine), before), Names());
  }));
}

// ---- how much is read ----------------------------------------------------------------------------------

TEST_F(CheckpointLoad, EachRankReadsOnlyWhatItNeeds) {
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
      engine::use_files(engine.impl(), files);
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
}  // namespace zero::testing
