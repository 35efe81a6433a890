// zerotorch.trace: the files hold every piece of the steps' time, every call with its bytes, and the memory of the
// ledger; training is the same with and without; what cannot be written or does not fit is said, and training goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/trace.h"
#include "support/layers.h"
#include "support/odd_model.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::trace_test {
namespace {

using nlohmann::json;

struct Case {
  int stage = 0;
  std::string store = "copying";
  bool step_in_backward = false;
  bool nvme = false;

  std::string text(const std::string& folder, const std::string& trace) const {
    const std::string disk = fmt::format(R"({{"device": "{}", "nvme_path": "{}"}})", nvme ? "nvme" : "none", folder);
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
      "gradient_clipping": 0, "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0, "sub_group_size": 2000,
        "offload_optimizer": {}, "offload_param": {}}},
      "zerotorch": {{"store": "{}", "update": "{}", "trace": {}}}}})",
                       step_in_backward ? 1 : 2, stage, disk, stage == 3 && store == "copying" ? disk : "null", store,
                       step_in_backward ? "in_backward" : "after_backward", trace);
  }
  std::string name() const {
    return fmt::format("stage {} {}{}{}", stage, store, step_in_backward ? " step in backward" : "",
                       nvme ? " nvme" : "");
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* store : {"copying", "node_shared"}) {
      cases.push_back({.stage = stage, .store = store});
      cases.push_back({.stage = stage, .store = store, .nvme = true});
      if (stage > 0) cases.push_back({.stage = stage, .store = store, .step_in_backward = true});
    }
  }
  return cases;
}

constexpr int kFirst = 2, kSteps = 2, kAll = 5;

std::string trace_of(const std::string& folder, std::int64_t most = 100000) {
  return fmt::format(R"({{"enabled": true, "path": "{}", "first_step": {}, "steps": {}, "max_events": {}}})", folder,
                     kFirst, kSteps, most);
}

json read(const std::string& folder, int rank) {
  std::ifstream file(fmt::format("{}/rank{}.json", folder, rank));
  return json::parse(file);
}

/// Of a thread: each span ends before the next begins, or lies within another.
void expect_nested(const json& events, const std::string& where) {
  std::map<int, std::vector<std::pair<double, double>>> spans;
  for (const auto& event : events) {
    if (event["ph"] == "X")
      spans[event["tid"]].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  ASSERT_TRUE(spans.contains(1)) << where;
  constexpr double kRounded = 0.002;  // us
  for (auto& [thread, of_thread] : spans) {
    std::sort(of_thread.begin(), of_thread.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [begin, end] : of_thread) {
      while (!open.empty() && open.back() <= begin + kRounded) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back() + kRounded) << where << ", thread " << thread;
      open.push_back(end);
    }
  }
}

int count(const json& events, const std::string& phase, const std::string& name) {
  return static_cast<int>(std::count_if(events.begin(), events.end(), [&](const json& event) {
    return event["ph"] == phase && event["name"].get<std::string>().starts_with(name);
  }));
}

/// Seconds of the parts.
StepBreakdown times_in(const json& events) {
  StepBreakdown times;
  const std::map<std::string, double StepBreakdown::*> parts = {{"gradient_copy", &StepBreakdown::gradient_copy},
                                                                {"reduce", &StepBreakdown::reduce},
                                                                {"gather", &StepBreakdown::gather},
                                                                {"wait", &StepBreakdown::wait},
                                                                {"norm", &StepBreakdown::norm},
                                                                {"update", &StepBreakdown::update},
                                                                {"publish", &StepBreakdown::publish}};
  for (const auto& event : events) {
    if (event["ph"] != "X" || event["cat"] != "part") continue;
    times.*parts.at(event["name"]) += event["dur"].get<double>() * 1e-6;
  }
  return times;
}

void expect_times(const StepBreakdown& seen, const StepBreakdown& told, std::size_t events, const std::string& where) {
  const double rounded = 1e-9 * static_cast<double>(events);
  EXPECT_NEAR(seen.gradient_copy, told.gradient_copy, rounded) << where;
  EXPECT_NEAR(seen.reduce, told.reduce, rounded) << where;
  EXPECT_NEAR(seen.gather, told.gather, rounded) << where;
  EXPECT_NEAR(seen.wait, told.wait, rounded) << where;
  EXPECT_NEAR(seen.norm, told.norm, rounded) << where;
  EXPECT_NEAR(seen.update, told.update, rounded) << where;
  EXPECT_NEAR(seen.publish, told.publish, rounded) << where;
}

/// Calls that began have ended, each with its bytes.
void expect_calls(const json& events, const std::string& row, const std::string& where) {
  std::set<std::string> begun, ended;
  for (const auto& event : events) {
    if (!event.contains("cat") || event["cat"] != row) continue;
    if (event["ph"] == "b") {
      EXPECT_TRUE(begun.insert(event["id"]).second) << where;
      EXPECT_GE(event["args"]["nbytes"].get<std::int64_t>(), 0);
    } else {
      EXPECT_EQ(event["ph"], "e");
      ended.insert(event["id"]);
    }
  }
  EXPECT_EQ(begun, ended) << where;
}

void expect_memory(const json& events, const MemoryReport& report, const std::string& where) {
  MemoryReport most;
  int samples = 0;
  for (const auto& event : events) {
    if (event["ph"] != "C" || event["name"] != "memory by kind") continue;
    ++samples;
    for (int kind = 0; kind < kMemoryKinds; ++kind) {
      auto& peak = most.kinds[static_cast<std::size_t>(kind)].peak_nbytes;
      const std::string name(memory_kind_name(static_cast<MemoryKind>(kind)));
      peak = std::max(peak, event["args"].at(name).get<std::int64_t>());
    }
  }
  EXPECT_GT(samples, 2) << where;
  for (const MemoryKind kind : {MemoryKind::kMaster, MemoryKind::kOptimizer}) {
    EXPECT_EQ(most[kind].peak_nbytes, report[kind].current_nbytes) << where << memory_kind_name(kind);
  }
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const auto k = static_cast<MemoryKind>(kind);
    EXPECT_LE(most[k].peak_nbytes, report[k].peak_nbytes) << where << memory_kind_name(k);
  }
}

void expect_trace(const Case& one, Group group, const std::string& folder) {
  const std::string where = fmt::format("{}, rank {} of {}", one.name(), group.rank(), group.size());
  const int accumulation = one.step_in_backward ? 1 : 2;
  Values plain;
  {
    auto engine = layers_engine(group, 3, {}, one.text(folder, R"({"enabled": false})"));
    train(engine, kAll * accumulation);
    plain = values_of(engine);
  }
  auto engine = layers_engine(group, 3, {}, one.text(folder, trace_of(folder)));
  StepBreakdown told;
  CommunicationCounters before, after;
  for (int step = 1; step <= kAll; ++step) {
    if (step == kFirst) before = group.counters();
    train(engine, accumulation);
    if (step == kFirst + kSteps - 1) after = group.counters();
    if (step < kFirst || step >= kFirst + kSteps) continue;
    const StepBreakdown times = engine.step_breakdown();
    for (const auto part :
         {&StepBreakdown::gradient_copy, &StepBreakdown::reduce, &StepBreakdown::gather, &StepBreakdown::wait,
          &StepBreakdown::norm, &StepBreakdown::update, &StepBreakdown::publish})
      told.*part += times.*part;
  }
  EXPECT_EQ(differing(plain, values_of(engine)), Names()) << where;
  const json file = read(folder, group.rank());
  const json& events = file["traceEvents"];
  EXPECT_EQ(file["metadata"]["rank"], group.rank());
  EXPECT_EQ(file["metadata"]["events_left_out"], 0);
  expect_nested(events, where);
  EXPECT_EQ(count(events, "X", "forward"), kSteps * accumulation) << where;
  EXPECT_EQ(count(events, "X", "backward"), kSteps * accumulation) << where;
  EXPECT_EQ(count(events, "X", "step"), kSteps * accumulation) << where;
  expect_times(times_in(events), told, events.size(), where);
  expect_calls(events, "communication", where);
  expect_calls(events, "disk", where);
  EXPECT_EQ(count(events, "b", "reduce_scatter"), after.reduce_scatter.calls - before.reduce_scatter.calls) << where;
  expect_memory(events, engine.memory_report(), where);
}

TEST(StepTrace, HasEveryPieceOfTheStepsItRecords) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks,
                        [&](Group group) {
                          for (const Case& one : all_cases()) expect_trace(one, group, folder.path());
                        },
                        {.timeout = std::chrono::minutes(3)}));
  }
}

/// As many bytes as the report counts, but for what was under way where recording began or ended.
TEST(StepTrace, HasTheRequestsToTheDisk) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    for (const Case& one : {Case{.stage = 1, .nvme = true}, Case{.stage = 3, .nvme = true}}) {
      at::manual_seed(1);
      DeepModel model(9, 44);
      auto engine = initialize(model, one.text(folder.path(), trace_of(folder.path())), {.group = group});
      std::vector<OffloadReport> reports;
      for (int step = 1; step <= kAll; ++step) {
        for (int i = 0; i < 2; ++i) {
          engine.backward(engine(at::ones({2, 44})).square().mean());
          engine.step();
        }
        reports.push_back(engine.offload_report());
      }
      std::int64_t read_nbytes = 0, written_nbytes = 0;
      const json file = read(folder.path(), group.rank());
      expect_calls(file["traceEvents"], "disk", one.name());
      for (const auto& event : file["traceEvents"]) {
        if (event["ph"] != "b" || event["cat"] != "disk") continue;
        (event["name"] == "read" ? read_nbytes : written_nbytes) += event["args"]["nbytes"].get<std::int64_t>();
      }
      const std::int64_t a_step = reports[kAll - 1].written_nbytes - reports[kAll - 2].written_nbytes;
      EXPECT_GT(a_step, 0);
      EXPECT_GT(read_nbytes, 0);
      EXPECT_NEAR(written_nbytes, kSteps * a_step, 0.5 * a_step) << one.name();
    }
  }));
}

TEST(StepTrace, IsBounded) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, Case{.stage = 3}.text(folder.path(), trace_of(folder.path(), 10)));
    train(engine, 2 * kAll);
    const json file = read(folder.path(), group.rank());
    EXPECT_EQ(count(file["traceEvents"], "X", "") + count(file["traceEvents"], "b", ""), 10);
    EXPECT_LE(count(file["traceEvents"], "C", "memory by kind"), 10);
    EXPECT_GT(file["metadata"]["events_left_out"].get<int>(), 10);
  }));
}

TEST(StepTrace, ProgramsOwnBackwardAndTheEndOfTheEngine) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    {
      auto engine = layers_engine(group, 3, {}, Case{.stage = 2}.text(folder.path(), trace_of(folder.path())));
      train(engine, 2);
      engine.scale(engine(at::ones({2, 6})).sum()).backward();
      engine.step();
      EXPECT_FALSE(std::filesystem::exists(fmt::format("{}/rank{}.json", folder.path(), group.rank())));
    }
    const json file = read(folder.path(), group.rank());  // of a step that was not over
    EXPECT_EQ(count(file["traceEvents"], "X", "forward and backward"), 1);
    EXPECT_EQ(count(file["traceEvents"], "X", "step"), 1);
  }));
}

TEST(StepTrace, TrainingGoesOnWithoutOne) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/file") << "no folder";
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = layers_engine(group, 3, {}, Case{.stage = 1}.text(folder.path(), trace_of(folder.path() + "/file")));
    train(engine, 2 * kAll);
    EXPECT_EQ(engine.global_steps(), kAll);
  }));
}

TEST(Trace, TellsThreadsApartAndSamplesChangesOnly) {
  std::int64_t value = 1;
  base::Trace trace(100, 1, [&](std::span<std::int64_t> values) { values[0] = value; });
  trace.add_span("before", {}, 1, 2);
  trace.start();
  const std::int64_t now = trace.begin_ns();
  trace.add_span("began before", {}, now - 1, now + 1);
  trace.add_span("one", "a", now, now + 5);
  std::thread([&] { trace.add_span("two", "b", now + 1, now + 2); }).join();
  value = 2;
  trace.sample();
  trace.sample();
  trace.stop();
  trace.add_span("after", {}, now + 10, now + 12);
  ASSERT_EQ(trace.events().size(), 2u);
  EXPECT_EQ(trace.names()[trace.events()[1].name], "two");
  EXPECT_EQ(trace.names()[trace.events()[1].what], "b");
  EXPECT_EQ(trace.events()[0].thread, 0);
  EXPECT_EQ(trace.events()[1].thread, 1);
  ASSERT_EQ(trace.samples(), 2u);
  EXPECT_EQ(trace.sample_at(1).values[0], 2);
}

}  // namespace
}  // namespace zero::testing::trace_test
