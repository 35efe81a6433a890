// A run: metrics that are cut back, checkpoints when they are due, going on, stopping, what ranks agree on.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/errors.h"
#include "zero/lm/models.h"
#include "zero/train.h"

namespace zero::testing::training_run_test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Config config(const std::string& checkpoint = R"("every_steps": 2, "every_minutes": 0, "async": false)",
              int accumulation = 1) {
  return Config::from_text(fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
           "zerotorch": {{"checkpoint": {{{}}}}}}})",
      accumulation, checkpoint));
}

ModuleEngine<torch::nn::Linear> make_engine(const Config& config) {
  at::set_num_threads(1);
  at::manual_seed(1);
  return initialize(torch::nn::Linear(3, 1), config, {.group = Group()});
}

/// One micro-batch; its data depend on its index.
std::optional<StepOutcome> train(ModuleEngine<torch::nn::Linear>& engine, TrainingRun& run) {
  const at::Tensor loss = engine(at::full({1, 3}, 1.0 / (1 + engine.micro_steps()))).sum();
  engine.backward(loss);
  engine.step();
  return run.after_step(loss.item<double>());
}

std::vector<std::string> checkpoints_of(const TemporaryFolder& folder) {
  std::vector<std::string> tags;
  for (const auto& one : checkpoint::list(folder.file("checkpoints"))) tags.push_back(one.tag);
  return tags;
}

// ---- MetricsRecord ----

TEST(MetricsRecord, GoesBackToAPositionAndStartsOver) {
  const TemporaryFolder folder;
  const std::string events = folder.file("tensorboard");
  MetricsPosition position;
  {
    MetricsRecord record(folder.path(), events);
    record.add_line(R"({"step":1})");
    record.add_events(1, {{"loss", 2.0}});
    position = record.sync();
    EXPECT_EQ(position.lines_nbytes, 11);
    EXPECT_FALSE(position.events_file.empty());
    const auto nbytes = fs::file_size(fs::path(events) / position.events_file);
    EXPECT_EQ(position.events_nbytes, static_cast<std::int64_t>(nbytes));
    record.add_line(R"({"step":2})");
    record.add_events(2, {{"loss", 1.0}});
  }
  {
    MetricsRecord record(folder.path(), events);
    record.go_back_to(position);
    EXPECT_EQ(read(folder.file("metrics.jsonl")), "{\"step\":1}\n");
    record.add_line(R"({"step":2})");
    EXPECT_EQ(record.sync().events_nbytes, position.events_nbytes);  // the file that was there goes on
  }
  EXPECT_EQ(read(folder.file("metrics.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
  MetricsRecord record(folder.path(), events);
  record.start_over(folder.file("before.1"));
  EXPECT_EQ(read(folder.file("metrics.jsonl")), "");
  EXPECT_TRUE(fs::is_empty(events));
  EXPECT_EQ(read(folder.file("before.1/metrics.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_TRUE(fs::exists(folder.file("before.1/tensorboard/") + position.events_file));
}

TEST(MetricsRecord, LeavesEventFilesOutsideOfTheRunAlone) {
  const TemporaryFolder folder, elsewhere;
  MetricsRecord record(folder.path(), elsewhere.path());
  record.add_events(1, {{"loss", 2.0}});
  record.start_over(folder.file("before.1"));
  EXPECT_FALSE(fs::is_empty(elsewhere.path()));
  EXPECT_FALSE(fs::exists(folder.file("before.1"))) << "there was nothing to keep";
}

TEST(MetricsRecord, HasOneWriter) {
  const TemporaryFolder folder;
  const MetricsRecord record(folder.path());
  EXPECT_THROW(MetricsRecord(folder.path()), ConfigError);
}

// ---- What ranks tell each other ----

TEST(Agreement, MeanLossDoesNotDependOnTheNumberOfRanks) {
  // Four micro-batches whose sum depends on the order.
  const std::vector<double> losses = {1e16, 1.0, -1e16, 1.0};
  const double alone = mean_loss(Group(), losses);
  expect_all_ok(spawn(2, [&](Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const std::vector<double> mine = {losses[rank], losses[2 + rank]};
    EXPECT_EQ(mean_loss(group, mine), alone);
  }));
}

TEST(Agreement, OneStopSignalIsEverybodys) {
  expect_all_ok(spawn(3, [&](Group group) {
    set_up_process(group, config(), {.announce_stop = false, .quiet = true});
    EXPECT_EQ(agreed_stop_signal(group), 0);
    if (group.rank() == 1) ::raise(SIGTERM);
    EXPECT_EQ(agreed_stop_signal(group), SIGTERM);
    EXPECT_EQ(received_stop_signal(), group.rank() == 1 ? SIGTERM : 0);
    EXPECT_EQ(seconds_since_stop_signal() > 0, group.rank() == 1);
  }));
  EXPECT_STREQ(stop_signal_name(SIGTERM), "SIGTERM");
}

TEST(Agreement, TextAndErrorsOfRank0ArriveOnEveryRank) {
  expect_all_ok(spawn(3, [&](Group group) {
    EXPECT_EQ(from_rank_0(group, [&] { return "made on " + std::to_string(group.rank()); }), "made on 0");
    EXPECT_EQ(from_rank_0(group, [] { return ""; }), "");
    EXPECT_THROW(from_rank_0(group, []() -> std::string { throw ConfigError("wrong"); }), ConfigError);
    try {
      from_rank_0(group, []() -> std::string { throw IoError("no disk"); });
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no disk"), std::string::npos);
      EXPECT_EQ(dynamic_cast<const IoError*>(&error) != nullptr, group.rank() == 0);
    }
    group.barrier().wait();
  }));
}

// ---- TrainingRun ----

TEST(TrainingRun, SavesWhenDueKeepsTheLastAndGoesOn) {
  const TemporaryFolder folder;
  std::vector<std::string> notices;
  RunOptions options{.folder = folder.path(),
                     .state = [] { return R"({"epoch": 3})"; },
                     .notice = [&](const RunNotice& notice) { notices.push_back(notice.text); }};
  const Config two_kept = config(R"("every_steps": 2, "every_minutes": 0, "keep_last": 2, "async": false)");
  at::Tensor weight;
  {
    auto engine = make_engine(two_kept);
    TrainingRun run(engine, options);
    EXPECT_EQ(run.resume().folder, "");
    for (int i = 0; i < 7; ++i) {
      const auto outcome = train(engine, run);
      ASSERT_TRUE(outcome);
      EXPECT_EQ(outcome->step, i + 1);
      EXPECT_FALSE(outcome->skipped);
      run.save_if_due();
    }
    EXPECT_EQ(checkpoints_of(folder), (std::vector<std::string>{"global_step4", "global_step6"}));
    EXPECT_EQ(notices, std::vector<std::string>(3, "checkpoint written"));
    run.finish();
    run.finish();  // this step has one
    EXPECT_EQ(checkpoints_of(folder), (std::vector<std::string>{"global_step6", "global_step7"}));
    EXPECT_EQ(run.last_checkpoint(), folder.file("checkpoints/global_step7"));
    train(engine, run);  // is lost
    weight = engine.full_weight("weight");
  }
  auto engine = make_engine(two_kept);
  TrainingRun run(engine, options);
  const LoadReport report = run.resume();
  EXPECT_EQ(report.global_steps, 7);
  EXPECT_EQ(report.client_state, R"({"epoch":3})");
  EXPECT_EQ(run.last_checkpoint(), report.folder);
  const std::string lines = read(folder.file("metrics.jsonl"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 7);
  EXPECT_EQ(train(engine, run)->step, 8);
  EXPECT_TRUE(engine.full_weight("weight").equal(weight));
}

TEST(TrainingRun, ActsAtAccumulationBoundariesOnly) {
  const TemporaryFolder folder;
  auto engine = make_engine(config(R"("every_steps": 1, "every_minutes": 0)", 3));
  TrainingRun run(engine, {.folder = folder.path()});
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(train(engine, run).has_value(), i % 3 == 2);
    run.save_if_due();
  }
  run.finish();
  EXPECT_EQ(checkpoints_of(folder), (std::vector<std::string>{"global_step1", "global_step2"}));
  EXPECT_TRUE(read(folder.file("metrics.jsonl")).starts_with(R"({"step":1,"loss":)"));
}

/// A run of four steps that has ended: global_step2 and global_step4.
void leave_two_checkpoints(const TemporaryFolder& folder) {
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path()});
  for (int i = 0; i < 4; ++i) {
    train(engine, run);
    run.save_if_due();
  }
}

TEST(TrainingRun, FallsBackFromADamagedCheckpoint) {
  const TemporaryFolder folder;
  leave_two_checkpoints(folder);
  for (const auto& entry : fs::directory_iterator(folder.file("checkpoints/global_step4"))) {
    if (entry.path().extension() != ".json") fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  }
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path()});
  EXPECT_EQ(run.resume().global_steps, 2);
  const std::string lines = read(folder.file("metrics.jsonl"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

TEST(TrainingRun, NeverStartsOverWhereCheckpointsAreThatCannotBeLoaded) {
  const TemporaryFolder folder;
  leave_two_checkpoints(folder);
  const std::string lines = read(folder.file("metrics.jsonl"));
  const fs::path newest = folder.file("checkpoints/global_step4"), older = folder.file("checkpoints/global_step2");
  const auto cut = [](const fs::path& checkpoint) {
    fs::resize_file(checkpoint / "manifest.json", fs::file_size(checkpoint / "manifest.json") / 2);
  };
  cut(newest);
  {
    auto engine = make_engine(config());
    std::string told;
    TrainingRun run(engine, {.folder = folder.path(), .notice = [&](const RunNotice& notice) { told += notice.text; }});
    EXPECT_EQ(run.resume().global_steps, 2);
    EXPECT_NE(told.find("checkpoint 'global_step4' is left out"), std::string::npos) << told;
  }
  cut(older);
  const std::string kept = read(folder.file("metrics.jsonl"));
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path()});
  try {
    run.resume();
    FAIL() << "started over";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'global_step2'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("start the run over"), std::string::npos) << error.what();
  }
  EXPECT_EQ(read(folder.file("metrics.jsonl")), kept);
  EXPECT_FALSE(lines.empty());
}

/// What resume() says, and that it leaves the record alone.
std::string refusal_of(const TemporaryFolder& folder) {
  const std::string before = read(folder.file("metrics.jsonl"));
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path()});
  std::string said;
  try {
    run.resume();
  } catch (const CheckpointError& error) {
    said = error.what();
  }
  EXPECT_EQ(read(folder.file("metrics.jsonl")), before);
  return said;
}

TEST(TrainingRun, KnowsOfCheckpointsThatAreGone) {
  const TemporaryFolder folder;
  leave_two_checkpoints(folder);
  EXPECT_EQ(find_run(folder.path()).problem, "");
  EXPECT_EQ(find_run(folder.path()).recorded_steps, 4);
  fs::rename(folder.file("checkpoints/global_step4"), folder.file("elsewhere"));
  EXPECT_NE(refusal_of(folder).find("is 'global_step4', which is not there"), std::string::npos) << refusal_of(folder);
  fs::remove_all(folder.file("checkpoints"));
  EXPECT_NE(refusal_of(folder).find("the last one was 'global_step4'"), std::string::npos) << refusal_of(folder);
  EXPECT_FALSE(find_run(folder.path()).is_fresh());
}

TEST(TrainingRun, BeginsAnewWhereNoCheckpointWasWrittenAndKeepsTheRecord) {
  const TemporaryFolder folder;
  {
    auto engine = make_engine(config());
    TrainingRun run(engine, {.folder = folder.path()});
    train(engine, run);
  }
  const std::string lines = read(folder.file("metrics.jsonl"));
  EXPECT_TRUE(find_run(folder.path()).is_fresh());
  EXPECT_EQ(find_run(folder.path()).recorded_steps, 1);
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path()});
  EXPECT_EQ(run.resume().folder, "");
  EXPECT_EQ(read(folder.file("metrics.jsonl")), "");
  EXPECT_EQ(read(folder.file("before.1/metrics.jsonl")), lines);
}

TEST(TrainingRun, StartsOverAndKeepsWhatThereWas) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 2; ++i) {
    leave_two_checkpoints(folder);
    const std::string lines = read(folder.file("metrics.jsonl"));
    auto engine = make_engine(config());
    TrainingRun run(engine, {.folder = folder.path()});
    const std::string kept = run.restart();
    EXPECT_EQ(kept, folder.file("before.") + std::to_string(i));
    EXPECT_EQ(read(kept + "/metrics.jsonl"), lines);
    EXPECT_TRUE(fs::exists(kept + "/checkpoints/global_step4/manifest.json"));
    EXPECT_TRUE(find_run(folder.path()).is_fresh());
  }
  const TemporaryFolder fresh;
  auto engine = make_engine(config());
  EXPECT_EQ(TrainingRun(engine, {.folder = fresh.path()}).restart(), "");
}

/// Three steps of which the second has a loss that is not a number.
void diverge(ModuleEngine<torch::nn::Linear>& engine, TrainingRun& run) {
  for (int i = 0; i < 3; ++i) {
    const at::Tensor loss = engine(at::full({1, 3}, i == 1 ? std::nan("") : 1.0)).sum();
    engine.backward(loss);
    engine.step();
    run.after_step(loss.item<double>());
    run.save_if_due();
  }
}

TEST(TrainingRun, StopsWhereTheLossIsNotANumberAndKeepsTheGoodCheckpoints) {
  const TemporaryFolder folder;
  const Config every_step = config(R"("every_steps": 1, "every_minutes": 0, "keep_last": 1, "async": false)");
  std::string told;
  {
    auto engine = make_engine(every_step);
    TrainingRun run(engine, {.folder = folder.path(), .notice = [&](const RunNotice& notice) { told += notice.text; }});
    EXPECT_FALSE(run.diverged());
    diverge(engine, run);
    EXPECT_TRUE(run.diverged());
    EXPECT_TRUE(run.should_stop());
    EXPECT_EQ(run.stop_signal(), 0);
    run.finish();
  }
  EXPECT_EQ(checkpoints_of(folder), std::vector<std::string>{"global_step1"});
  EXPECT_NE(told.find("the run has diverged"), std::string::npos) << told;
  const TemporaryFolder other;
  auto engine = make_engine(every_step);
  TrainingRun run(engine, {.folder = other.path(), .stop_when_diverged = false});
  diverge(engine, run);
  EXPECT_FALSE(run.should_stop());
  EXPECT_EQ(checkpoints_of(other), std::vector<std::string>{"global_step3"});
}

TEST(TrainingRun, AGradientThatIsNotANumberEndsItBeforeACheckpoint) {
  const TemporaryFolder folder;
  std::string told;
  auto engine = make_engine(config(R"("every_steps": 1, "every_minutes": 0, "keep_last": 1, "async": false)"));
  TrainingRun run(engine, {.folder = folder.path(), .notice = [&](const RunNotice& notice) { told += notice.text; }});
  for (int i = 0; i < 2; ++i) {
    at::Tensor loss = engine(at::ones({1, 3})).sum();
    if (i == 1) loss = loss + at::sqrt(loss * 0);  // 0, and its derivative is not a number
    engine.backward(loss);
    engine.step();
    ASSERT_TRUE(std::isfinite(loss.item<double>()));
    run.after_step(loss.item<double>());
    run.save_if_due();
  }
  EXPECT_TRUE(run.diverged());
  run.finish();
  EXPECT_EQ(checkpoints_of(folder), std::vector<std::string>{"global_step1"});
  EXPECT_NE(told.find("the norm of the gradient is"), std::string::npos) << told;
}

TEST(TrainingRun, StopsWhenItsTimeIsUp) {
  const TemporaryFolder folder;
  auto engine = make_engine(config());
  TrainingRun run(engine, {.folder = folder.path(), .max_minutes = 0.2 / 60});
  EXPECT_FALSE(run.should_stop());
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_FALSE(run.should_stop()) << "it is asked for after a step only";
  train(engine, run);
  EXPECT_TRUE(run.should_stop() && run.time_is_up());
  EXPECT_FALSE(run.stop_signal() != 0 || run.diverged());
  run.finish();
  EXPECT_EQ(fs::path(run.last_checkpoint()).filename(), "global_step1");
  for (const double minutes : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(TrainingRun(engine, {.folder = folder.path(), .max_minutes = minutes}), ConfigError);
  }
}

TEST(TrainingRun, ACheckpointThatFailsIsToldAndTrainingGoesOn) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("checkpoints")) << "a file in the way";
  std::vector<std::string> notices;
  auto engine = make_engine(config());
  TrainingRun run(
      engine, {.folder = folder.path(), .notice = [&](const RunNotice& notice) { notices.push_back(notice.text); }});
  for (int i = 0; i < 3; ++i) {
    train(engine, run);
    run.save_if_due();
  }
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(notices[0].starts_with("no checkpoint: ")) << notices[0];
  EXPECT_EQ(run.last_checkpoint(), "");
  EXPECT_THROW(run.finish(), CheckpointError);
  const TemporaryFolder spare;
  {
    auto other = make_engine(config());
    TrainingRun elsewhere(other, {.folder = spare.path()});
    train(other, elsewhere);
    elsewhere.finish_in(spare.file("spare"));
    EXPECT_EQ(elsewhere.last_checkpoint(), spare.file("spare/global_step1"));
    EXPECT_FALSE(fs::exists(spare.file("last_checkpoint"))) << "that is of the run's own folder";
  }
  fs::remove(folder.file("checkpoints"));
  run.finish();
  EXPECT_EQ(checkpoints_of(folder), std::vector<std::string>{"global_step3"});
}

TEST(TrainingRun, IsDueByTime) {
  const TemporaryFolder folder;
  auto engine = make_engine(config(R"("every_minutes": 1e-9, "async": false)"));
  TrainingRun run(engine, {.folder = folder.path()});
  train(engine, run);
  run.save_if_due();
  EXPECT_EQ(checkpoints_of(folder), std::vector<std::string>{"global_step1"});
}

TEST(TrainingRun, StopsWhereARankGotASignal) {
  expect_all_ok(spawn(2, [&](Group group) {
    static const TemporaryFolder* folder = nullptr;
    const std::string path = from_rank_0(group, [] { return (folder = new TemporaryFolder)->path(); });
    set_up_process(group, config(), {.announce_stop = false, .quiet = true});
    auto engine = initialize(torch::nn::Linear(3, 1), config("\"every_minutes\": 0"), {.group = group});
    TrainingRun run(engine, {.folder = path});
    EXPECT_FALSE(run.agree_on_stop());
    train(engine, run);
    EXPECT_FALSE(run.should_stop());
    if (group.rank() == 1) ::raise(SIGINT);
    EXPECT_FALSE(run.should_stop());  // not yet agreed
    train(engine, run);
    EXPECT_TRUE(run.should_stop());
    EXPECT_EQ(run.stop_signal(), SIGINT);
    EXPECT_TRUE(run.agree_on_stop());
    run.finish();
    EXPECT_TRUE(fs::exists(path + "/checkpoints/global_step2"));
    EXPECT_EQ(run.metrics() != nullptr, group.rank() == 0);
    group.barrier().wait();
    delete folder;
  }));
}

TEST(TrainingRun, RefusesWhatItCannotUse) {
  const TemporaryFolder folder;
  auto engine = make_engine(config());
  EXPECT_THROW(TrainingRun(engine, {}), ConfigError);
  const TrainingRun run(engine, {.folder = folder.path()});
  EXPECT_THROW(TrainingRun(engine, {.folder = folder.path()}), ConfigError);  // it has a writer
  engine.save_checkpoint(folder.file("other/checkpoints"));
  TrainingRun other(engine, {.folder = folder.file("other"), .state = [] { return "no JSON"; }});
  EXPECT_THROW(other.resume(), CheckpointError);  // of another program
  train(engine, other);
  EXPECT_THROW(other.save(), ConfigError);
}

TEST(TrainingRun, GuideOfALoopWithValidationAndAStateOfItsOwn) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  double best = 1e9;
  const auto validate = [](auto&) { return 0.5; };
  {
    auto engine = make_engine(config());
    // [guide: state]
    zero::TrainingRun run(engine, {.folder = folder, .state = [&] { return "[" + std::to_string(best) + "]"; }});
    const zero::LoadReport report = run.resume();
    if (!report.folder.empty()) best = std::stod(report.client_state.substr(1));
    // [end]
    while (engine.global_steps() < 4 && !run.should_stop()) {
      const at::Tensor loss = engine(at::ones({1, 3})).sum();
      engine.backward(loss);
      engine.step();
      // [guide: validation]
      const auto outcome = run.after_step(loss.item<double>());
      if (outcome && outcome->step % 2 == 0) {
        best = std::min(best, validate(engine));  // what is in the checkpoint of this step
        if (run.metrics()) run.metrics()->add_line("{\"step\":" + std::to_string(outcome->step) + ",\"best\":0.5}");
      }
      run.save_if_due();
      // [end]
    }
    run.finish();
  }
  auto engine = make_engine(config());
  best = 0;
  zero::TrainingRun run(engine, {.folder = folder});
  EXPECT_EQ(std::stod(run.resume().client_state.substr(1)), 0.5);
}

TEST(ModuleShape, GuideOfAnAnswerBeforeInitialize) {
  torch::nn::Linear model(3, 1);
  const Config config = training_run_test::config();
  const Group group;
  std::string said;
  const auto print = [&](const std::string& text) { said = text; };
  // [guide: fit]
  const zero::plan::Cluster host{.ranks = group.size(),
                                 .ranks_per_node = group.local_size(),
                                 .node_memory_nbytes = zero::available_memory_nbytes()};
  const auto shape = zero::plan::shape_of(zero::ModelView::of(model.ptr()));
  const std::string warning = zero::plan::check_fits(shape, config, host);
  if (!warning.empty()) print(warning);
  // [end]
  EXPECT_EQ(said, "");
}

TEST(ModuleShape, IsThatOfTheModule) {
  const GPTOptions options = gpt_preset("gpt-tiny");
  const plan::ModelShape found = plan::shape_of(ModelView::of(GPT(options).ptr())), wanted = gpt_shape(options);
  ASSERT_EQ(found.parameters.size(), wanted.parameters.size());
  for (std::size_t i = 0; i < found.parameters.size(); ++i) {
    EXPECT_EQ(found.parameters[i].name, wanted.parameters[i].name);
    EXPECT_EQ(found.parameters[i].numel, wanted.parameters[i].numel);
  }
  EXPECT_EQ(found.numel(), gpt_numel(options));
}

}  // namespace
}  // namespace zero::testing::training_run_test
