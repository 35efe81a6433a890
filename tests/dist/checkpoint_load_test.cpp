// Engine::load_checkpoint and its options: renamed, extended and otherwise shaped models, parts of a
// checkpoint, damage, hostile manifests.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/folder.h"
#include "checkpoint/tools.h"
#include "support/layers.h"
#include "support/spawn.h"
#include "zero/errors.h"

namespace zero::testing::checkpoint_load_test {
namespace {

namespace fs = std::filesystem;

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
    EXPECT_EQ(differing(values_of(engine),
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

    auto engine = layers_engine(group, 2, {.first = "body", .second = "head", .buffer = "count", .added = true});
    train(engine, 1);
    const Values before = values_of(engine);
    const std::string error = error_of([&] { engine.load_checkpoint(folder, "", {.names = kNames}); });
    EXPECT_TRUE(mentions(error, "2 missing there: added.weight, added.bias")) << error;
    EXPECT_FALSE(mentions(error, "not in the model")) << error;
    EXPECT_EQ(differing(values_of(engine), before), Names());

    const LoadReport report = engine.load_checkpoint(folder, "", {.strict = false, .names = kNames});
    EXPECT_EQ(report.missing, (Names{"added.weight", "added.bias"}));
    EXPECT_EQ(report.unexpected, Names());
    EXPECT_TRUE(any_mentions(report.notices, "2 parameters are not in the checkpoint")) << report.notices.size();
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
      bool states, counters, schedule;
    };
    for (const Case& which :
         {Case{{}, true, true, true}, Case{{.module_only = true}, false, false, false},
          Case{{.load_optimizer_states = false}, false, true, true},
          Case{{.load_lr_scheduler_states = false}, true, true, false},
          Case{{.load_optimizer_states = false, .load_lr_scheduler_states = false}, false, true, false}}) {
      SCOPED_TRACE(fmt::format("module only {}, states {}, counters {}", which.options.module_only, which.states,
                               which.counters));
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
      EXPECT_EQ(engine.learning_rate(), which.schedule ? saved.learning_rate() : lr);
      EXPECT_NE(lr, saved.learning_rate());
      EXPECT_EQ(any_mentions(report.notices, "optimizer states were not loaded: they stay as they are"),
                !which.states && !which.options.module_only);
      // What Adam divides by belongs to its states: with both, the next step is that of the other engine.
      if (!which.schedule && which.counters) {
        // The schedule goes on from where it was, also through another checkpoint, which replaces none of the first
        // run's.
        train(engine, 1);
        auto other = layers_engine(group, 2);
        train(other, 3);
        EXPECT_EQ(engine.learning_rate(), other.learning_rate());
        engine.save_checkpoint(folder + "/again");
        EXPECT_TRUE(std::filesystem::exists(folder + "/again/global_step6"));
        auto third = layers_engine(group, 4);
        third.load_checkpoint(folder + "/again");
        EXPECT_EQ(third.learning_rate(), other.learning_rate());
      } else if (which.states && which.counters) {
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
                             "2 parameters have no optimizer states in the checkpoint; theirs start anew: "
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
    EXPECT_TRUE(any_mentions(report.notices,
                             "2 parameters are frozen in this model, their optimizer states in the checkpoint "
                             "are not used: second.weight, second.bias"));
    train(without, 1);
    report = without.load_checkpoint(folder, "without");
    EXPECT_EQ(report.notices, Names());
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
    const std::string error = error_of([&] { engine.load_checkpoint(folder, "bad", {.verify_first = true}); });
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
    const std::pair<const char*, nlohmann::json> changes[] = {{"seed", "not a number"},
                                                              {"seed", "99999999999999999999999"},
                                                              {"seed", ""},
                                                              {"global_steps", -1},
                                                              {"global_steps", "2"},
                                                              {"global_steps", nullptr},
                                                              {"loss_scaler", {{"scale", 1}, {"skipped_steps", 3}}},
                                                              {"loss_scaler", {{"scale", 1}}},
                                                              {"loss_scaler", 7},
                                                              {"micro_batches", 1e300},
                                                              {"micro_batches", 9223372036854775807LL},
                                                              {"window_micro_batches", 3},
                                                              {"window_micro_batches", 9223372036854775807LL},
                                                              {"data_parallel_size", 9223372036854775807LL},
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
    // As it is now, and as version 1 of the format had it.
    auto older = good;
    for (const char* key : {"loss_scaler", "data_parallel_size", "model_parallel_size"}) older.erase(key);
    older.update({{"skipped_steps", 0}, {"loss_scale", 1.0}, {"world_size", 1}});
    for (const auto& state : {good, older}) {
      forge_state(folder + "/a", state.dump());
      engine.load_checkpoint(folder);
      EXPECT_EQ(engine.global_steps(), 2);
      train(engine, 1);
      EXPECT_EQ(differing(values_of(engine), before), Names());
    }
  }));
}

}  // namespace
}  // namespace zero::testing::checkpoint_load_test
