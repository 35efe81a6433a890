// A module on an accelerator, whose shards, sums and states are in host memory or in the device's: the same bits
// whatever the stage, the number of ranks and the order in which the device's streams run. The device is simulated
// (support/simulated_device.h): it runs late, in random legal orders, and host code cannot touch its memory.
//
//   ZERO_TEST_SLOW=1        100 orders in place of 4
//   ZERO_TEST_DEVICE=cuda   on a GPU, which all ranks share, in place of the simulated device: what is compared there
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>

#include "dist/accelerator.h"
#include "optim/device_kernels.h"
#include "support/bits.h"
#include "support/errors.h"
#include "support/odd_model.h"
#include "support/parity.h"
#include "support/simulated_device.h"
#include "support/simulated_nccl.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "support/to_device.h"
#include "zero/plan.h"
#include "zero/zero.h"

namespace zero::testing::accelerator_test {
namespace {

namespace fs = std::filesystem;

bool is_of_whole_tensors(const std::string& curve) {
  return mentions(curve, "Lamb") || mentions(curve, "Adafactor") || mentions(curve, "Muon");
}

TEST(Accelerator, EveryStageAndNumberOfRanksGivesOneCurve) {
  std::map<std::string, std::pair<std::string, std::string>> first;  // curve: case, result
  int compared = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      use_kernels(true);
      std::vector<std::string> results;
      std::uint64_t seed = 100 * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(group.rank());
      int number = 0;
      for (auto one : parity_cases(/*reduced=*/true)) {
        if (one.node_shared) continue;
        if (!is_slow() && number++ % 3 != (one.nvme_parameters ? 0 : ranks % 3)) continue;
        const auto run = [&] {
          const auto result = run_parity_case(one, group, device_with(++seed));
          finish();
          results.push_back(one.curve() + "\t" + one.name() + "\t" + result.text());
        };
        run();
        // Where there are kernels for it, the device updates with the bits of the host.
        one.on_device = !one.nvme && !one.nvme_parameters;
        // What a GPU makes of whole tensors are its own numbers.
        if (on_gpu() && is_of_whole_tensors(one.curve())) one.on_device = false;
        if (one.on_device && optim::device_kernels(device_with(++seed))) run();
      }
      return results;
    });
    for (const auto& line : lines) {
      const auto a = line.find('\t'), b = line.find('\t', a + 1);
      const std::string curve = line.substr(0, a),
                        name = fmt::format("{} ranks, {}", ranks, line.substr(a + 1, b - a - 1));
      const auto [found, is_new] = first.try_emplace(curve, name, line.substr(b + 1));
      compared += !is_new;
      EXPECT_EQ(found->second.second, line.substr(b + 1)) << name << " and " << found->second.first;
    }
  }
  EXPECT_GE(compared, on_gpu() ? 20 : 40);
}

/// settings(), and those that need states in host memory.
std::map<std::string, Setting> settings_of_host() {
  auto all = settings();
  // Of a single rank, too, which otherwise keeps them whole on the device.
  all["stage 3, parameters in host memory"] = {.stage = 3, .zero = kParametersOnHost};
  all["stage 3, updated in backward, parameters in host memory"] = {
      .stage = 3, .more = R"(, "gradient_clipping": 0)", .zero = kParametersOnHost, .in_backward = true};
  for (const char* const ratio : {"0", "0.3", "0.6"}) {
    const std::string divided = fmt::format(R"(, "ratio": {})", ratio);
    all[fmt::format("stage 1, {} there", ratio)] = {.stage = 1, .offload = divided};
    all[fmt::format("stage 3, {} there", ratio)] = {.stage = 3, .live_numel = 5000, .offload = divided};
    all[fmt::format("stage 2, bf16, {} there", ratio)] = {
        .stage = 2, .more = R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true})", .offload = divided};
    all[fmt::format("stage 3, 8 bits, {} there", ratio)] = {
        .stage = 3,
        .more = R"(, "bf16": {"enabled": true}, "gradient_clipping": 0.05)",
        .own_stream = true,
        .offload = divided,
        .optimizer = R"({"type": "AdamW8bit", "params": {"lr": 0.01}})"};
    all[fmt::format("stage 2, fp16, {} there", ratio)] = {
        .stage = 2, .more = R"(, "fp16": {"enabled": true, "initial_scale_power": 8})", .offload = divided};
  }
  for (int stage = 1; stage <= 3; ++stage) {
    all[fmt::format("stage {}, updated late", stage)] = {
        .stage = stage, .more = R"(, "gradient_clipping": 0.05)", .delayed = true};
  }
  return all;
}

TEST(Accelerator, EveryOrderOfItsStreamsGivesTheSameBits) {
  const int seeds = on_gpu() ? 2 : is_slow() ? 100 : 4;
  std::set<std::string> distinct;
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> results;
      if (!on_gpu()) simulated::start({});
      use_kernels(true);
      for (const auto& [name, setting] : settings_of_host()) {
        // A GPU's operators round as they like.
        results.push_back(name + "\t" + train(group, on_gpu() ? device_with(0) : at::kCPU, setting));
        for (int seed = 0; seed < seeds; ++seed) {
          const auto device = device_with(static_cast<std::uint64_t>(1000 * seed + group.rank()));
          results.push_back(name + "\t" + train(group, device, setting));
          finish();
        }
      }
      return results;
    });
    ASSERT_EQ(lines.size(), settings_of_host().size() * static_cast<std::size_t>(seeds + 1));
    std::map<std::string, std::set<std::string>> by_name;
    for (const auto& line : lines) by_name[line.substr(0, line.find('\t'))].insert(line.substr(line.find('\t') + 1));
    for (const auto& [name, results] : by_name) EXPECT_EQ(results.size(), 1u) << name << ", " << ranks << " ranks";
    distinct.insert(*by_name["stage 1"].begin());
    EXPECT_EQ(by_name["stage 1"], by_name["stage 3"]) << ranks;
    EXPECT_EQ(by_name["stage 2"], by_name["stage 3, no overlap"]) << ranks;
    EXPECT_EQ(by_name["stage 0"], by_name["stage 3, one bucket, all live"]) << ranks;
    EXPECT_EQ(by_name["stage 3"], by_name["stage 3, parts run again"]) << ranks;
    EXPECT_EQ(by_name["stage 3"], by_name["stage 3, parameters in host memory"]) << ranks;
    EXPECT_EQ(by_name["stage 3, updated in backward"],
              by_name["stage 3, updated in backward, parameters in host memory"])
        << ranks;
    for (const char* const ratio : {"0", "0.3", "0.6"}) {
      for (const char* const stage : {"stage 1", "stage 3"})
        EXPECT_EQ(by_name[stage], by_name[fmt::format("{}, {} there", stage, ratio)]) << ranks;
      EXPECT_EQ(by_name["stage 2, fp16"], by_name[fmt::format("stage 2, fp16, {} there", ratio)]) << ranks;
    }
    EXPECT_EQ(by_name["stage 1, updated late"], by_name["stage 2, updated late"]) << ranks;
    EXPECT_EQ(by_name["stage 1, updated late"], by_name["stage 3, updated late"]) << ranks;
    EXPECT_NE(by_name["stage 2, updated late"], by_name["stage 2, clipped"]) << ranks;
    EXPECT_EQ(by_name["stage 3"], by_name["stage 3, on another stream"]) << ranks;
  }
  EXPECT_EQ(distinct.size(), 1u) << "the number of ranks changes the result";
}

/// Without offload all that ZeRO divides is there. With kernels of our own it is updated with the bits of the host;
/// without by libtorch's operators, which sum in their own order. Either way the same at every stage, on any number of
/// ranks and in every order.
TEST(Accelerator, StatesMayBeThereToo) {
  const int seeds = on_gpu() ? 1 : is_slow() ? 50 : 2;
  std::map<std::string, std::set<std::string>> curves;  // by what the stage does not change
  int by_kernels = 0;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> results;
      for (const auto& [name, on_host] : settings()) {
        Setting there = on_host;
        there.states = "none";
        const std::string curve = there.in_backward ? there.more + std::to_string(group.size()) : there.more;
        const at::Device host = on_gpu() ? device_with(0) : at::Device(at::kCPU);
        if (!on_gpu()) simulated::start({});
        results.push_back(curve + "\thost\t" + train(group, host, on_host));
        for (int seed = 0; seed < 2 * seeds; ++seed) {
          const auto device = device_with(static_cast<std::uint64_t>(1000 * seed + group.rank()));
          use_kernels(seed % 2 == 0);
          const bool has_kernels = optim::device_kernels(device) != nullptr;
          results.push_back(curve + (has_kernels ? " by kernels" : " by operators") + "\t" + name + "\t" +
                            train(group, device, there));
          finish();
        }
      }
      return results;
    });
    const auto norm_of = [](const std::string& line) { return std::stod(line.substr(line.rfind(' '))); };
    std::string on_host;
    for (const auto& line : lines) {
      const auto a = line.find('\t'), b = line.find('\t', a + 1);
      const std::string curve = line.substr(0, a), name = line.substr(a + 1, b - a - 1), result = line.substr(b + 1);
      if (name == "host") {
        on_host = result;
      } else if (mentions(curve, "by kernels")) {
        ++by_kernels;
        EXPECT_EQ(result, on_host) << name << ", " << ranks << " ranks";
      } else {
        const bool is_low = mentions(curve, "fp16") || mentions(curve, "bf16");
        EXPECT_NEAR(norm_of(result), norm_of(on_host), (is_low ? 3e-2 : 1e-4) * norm_of(on_host))
            << name << ", " << ranks << " ranks";
        curves[curve].insert(result);
        EXPECT_EQ(curves[curve].size(), 1u) << name << ", " << ranks << " ranks";
      }
    }
  }
  if (!on_gpu()) {
    EXPECT_EQ(by_kernels, 4 * seeds * static_cast<int>(settings().size()));
  }
}

/// Who waits for whom: -1 the host, 0 the stream that computes, 1 and 2 those of copies, in the order in which an
/// engine takes them.
using Kind = std::pair<int, int>;

/// Trains while a kind of wait is left out; which kinds there are.
std::string train_without(Group group, const Setting& setting, std::optional<Kind> left_out, std::uint64_t seed,
                          std::set<Kind>* kinds) {
  simulated::use_nccl(true);
  simulated::start({.seed = seed, .leave_out = [=](const simulated::Wait& wait) {
                      const Kind kind{wait.waiting, wait.awaited};
                      if (kinds) kinds->insert(kind);
                      return left_out && *left_out == kind;
                    }});
  const std::string result = train(group, simulated::device(), setting, 2);
  simulated::finish();
  return result;
}

/// Expects of each kind of wait that one of the trainings gives something else without it.
void expect_each_kind_of_wait_needed(const std::vector<Setting>& trainings, std::size_t fewest) {
  std::map<Kind, bool> caught;
  for (const Setting& setting : trainings) {
    const auto first = lines_of(2, [&](Group group) {
      std::set<Kind> kinds;
      std::vector<std::string> lines{train_without(group, setting, {}, 0, &kinds)};
      for (const auto& [waiting, awaited] : kinds) lines.push_back(fmt::format("{} {}", waiting, awaited));
      return lines;
    });
    for (std::size_t i = 1; i < first.size(); ++i) {
      Kind kind;
      std::istringstream(first[i]) >> kind.first >> kind.second;
      bool& is_caught = caught[kind];
      for (int seed = 0; seed < 40 && !is_caught; ++seed) {
        const auto results = spawn(2, [&](Group group) {
          if (train_without(group, setting, kind, static_cast<std::uint64_t>(seed), nullptr) != first[0])
            throw std::logic_error("");
        });
        is_caught = !results[0].ok || !results[1].ok;  // other bits, or an error or a fault of what has read garbage
      }
    }
  }
  EXPECT_GE(caught.size(), fewest);
  for (const auto& [kind, is_caught] : caught) {
    EXPECT_TRUE(is_caught) << "nothing is lost without the waits of " << kind.first << " for " << kind.second
                           << ", states: " << trainings[0].states;
  }
}

TEST(Accelerator, EachKindOfWaitIsNeeded) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const Setting there{.stage = 3, .states = "none"};
  Setting in_backward = there;
  in_backward.more = R"(, "gradient_clipping": 0)";
  in_backward.in_backward = true;
  Setting writes = there;  // masters are not the parameters, and follow what is written
  writes.more = R"(, "bf16": {"enabled": true})";
  writes.writes = true;
  expect_each_kind_of_wait_needed({there, in_backward, writes}, 5);
  std::vector<Setting> by_nccl{there, in_backward, writes};
  for (Setting& setting : by_nccl) setting.own = kByNccl;
  expect_each_kind_of_wait_needed(by_nccl, 2);
  // Ranks that count as being on hosts of their own copy what they gather into memory that they use again.
  const OneHostAsSeveral hosts(1);
  expect_each_kind_of_wait_needed({{.stage = 3}}, 5);
}

TEST(Accelerator, WhatAProgramWritesArrivesEverywhere) {
  std::map<int, std::set<std::string>> there_by_ranks;  // states on the device: other roundings than the host's
  for (int ranks = 1; ranks <= 3; ++ranks) {
    for (const int stage : {1, 3}) {
      const auto run = [&](bool simulate, const std::string& states = "cpu", int seed = 7) {
        return lines_of(ranks, [&](Group group) {
          const bool is_there = simulate || on_gpu();
          const at::Device device = is_there ? device_with(static_cast<std::uint64_t>(group.rank() + seed)) : at::kCPU;
          Small model = make_small(device);
          Setting setting{.stage = stage, .accumulation = 1, .states = states};
          auto engine = initialize(model, json_of(setting), {.group = group});
          std::string norms;
          const auto step = [&](int number) {
            const at::Tensor loss = model->loss(tokens_of(number, 0, device));
            engine.backward(loss);
            engine.step();
            norms += fmt::format("{:a} ", engine.grad_norm());
          };
          step(0);
          {
            GatheredParameters scope(engine, {model->first->weight, model->twice->bias}, group.size() - 1);
            if (group.rank() == group.size() - 1) {
              const at::NoGradGuard no_grad;
              model->first->weight.mul_(0.5);
              model->twice->bias.fill_(0.25);
            }
          }
          step(1);
          try {
            GatheredParameters scope(engine, {model->first->weight}, 0);
            if (group.rank() == 0) {
              const at::NoGradGuard no_grad;
              model->first->weight.zero_();
            }
            throw std::runtime_error("a scope that fails");
          } catch (const std::runtime_error&) {
          }
          group.barrier().wait();  // the modifier has taken back what it wrote
          step(2);
          {
            const at::NoGradGuard no_grad;
            model->last->weight.clamp_(-0.1, 0.1);  // in place, outside of a scope, on every rank
          }
          step(3);
          engine.set_full_weight("twice.weight", engine.full_weight("twice.weight").mul(0.75));
          for (auto& parameter : model->frozen->parameters()) parameter.requires_grad_(true);
          step(4);
          std::vector<std::string> results;
          results.push_back(norms);
          results.push_back(outcome_of(engine, model, {engine.grad_norm()}));
          for (const auto& buffer : model->buffers())
            results.push_back(fmt::format("{:016x}", hash_with(kNoBits, buffer.cpu().to(at::kFloat))));
          at::Tensor whole;
          {
            GatheredParameters scope(engine, {model->first->weight});
            whole = model->first->weight.detach().cpu().clone();
          }
          results.push_back(fmt::format("{}", whole.equal(engine.full_weight("first.weight").cpu())));
          if (simulate) finish();
          return results;
        });
      };
      EXPECT_EQ(run(true), run(false)) << ranks << " ranks, stage " << stage;
      const auto there = run(true, "none");
      if (on_gpu()) {  // kernels have the host's bits
        EXPECT_EQ(there, run(false)) << ranks << " ranks, stage " << stage;
      }
      EXPECT_EQ(there.back(), "true");
      EXPECT_EQ(run(true, "none", 70), there) << ranks << " ranks, stage " << stage;
      there_by_ranks[ranks].insert(there[0] + there[1]);
      EXPECT_EQ(there_by_ranks[ranks].size(), 1u) << ranks << " ranks, stage " << stage;
    }
  }
}

/// A program may take the address of a parameter that is whole, as kernels of its own do.
TEST(Accelerator, WhatGoesPastOperatorsIsReady) {
  const auto lines = lines_of(2, [&](Group group) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const int stage = seed % 2 == 0 ? 1 : 3;
      const auto device = device_with(seed);
      Small model = make_small(device);
      const std::string states = seed % 4 < 2 ? "cpu" : "none";
      auto engine = initialize(model, json_of({.stage = stage, .accumulation = 1, .states = states}), {.group = group});
      for (int step = 0; step < 2; ++step) {
        engine.backward(model->loss(tokens_of(step, group.rank(), device)));
        engine.step();
        std::optional<GatheredParameters> scope;
        if (stage == 3) scope.emplace(engine, std::vector<at::Tensor>{model->twice->weight});
        const at::Tensor& weight = model->twice->weight;
        const at::Tensor there = at::for_blob(weight.data_ptr(), weight.sizes())
                                     .options(at::TensorOptions(at::kFloat).device(device))
                                     .target_device(device)
                                     .make_tensor()
                                     .cpu();
        scope.reset();
        wrong += !there.equal(engine.full_weight("twice.weight").cpu());
      }
      finish();
    }
    return std::vector<std::string>{std::to_string(wrong)};
  });
  EXPECT_EQ(lines, std::vector<std::string>{"0"});
}

/// What the ranks of GPUs hold there, by kind, and at most.
std::string describe(const MemoryUse& use) {
  return fmt::format("{} of them {} on the device, at most {} and {}", use.current_nbytes, use.device_nbytes,
                     use.peak_nbytes, use.peak_device_nbytes);
}

/// Where the ledger is not what was planned. What depends on times is planned as the most.
std::vector<std::string> differences(const MemoryReport& planned, const MemoryReport& begun, const MemoryReport& seen) {
  std::vector<std::string> wrong;
  for (const MemoryKind kind :
       {MemoryKind::kParameters, MemoryKind::kGather, MemoryKind::kMaster, MemoryKind::kOptimizer,
        MemoryKind::kGradients, MemoryKind::kBuckets, MemoryKind::kStaging, MemoryKind::kOffload}) {
    MemoryUse is = seen[kind];
    is.current_nbytes = begun[kind].current_nbytes;
    is.device_nbytes = begun[kind].device_nbytes;
    const MemoryUse& plan = planned[kind];
    const bool is_bound = kind == MemoryKind::kBuckets;
    const auto agrees = [&](std::int64_t peak, std::int64_t most) { return is_bound ? peak <= most : peak == most; };
    if (is.current_nbytes == plan.current_nbytes && is.device_nbytes == plan.device_nbytes &&
        agrees(is.peak_nbytes, plan.peak_nbytes) && agrees(is.peak_device_nbytes, plan.peak_device_nbytes)) {
      continue;
    }
    wrong.push_back(fmt::format("{}: {}; planned {}", memory_kind_name(kind), describe(is), describe(plan)));
  }
  return wrong;
}

TEST(Accelerator, MemoryIsAsPlanned) {
  const TemporaryFolder folder;
  const std::map<std::string, Setting> places = {
      {"states there", {.states = "none"}},
      {"by NCCL", {.states = "none", .own = kByNccl}},
      {"states on the host", {.states = "cpu"}},
      {"states and parameters on the host", {.zero = kParametersOnHost, .states = "cpu"}},
      {"divided states", {.states = "cpu", .offload = R"(, "ratio": 0.5)"}},
      {"states on NVMe", {.states = "nvme", .offload = fmt::format(R"(, "nvme_path": "{}")", folder.path())}}};
  for (const auto& [ranks, per_host] : {std::pair{1, 1}, {2, 2}, {3, 3}, {2, 1}}) {
    const OneHostAsSeveral hosts(per_host);
    const auto lines = lines_of(ranks, [&](Group group) {
      std::vector<std::string> wrong;
      for (const auto& [name, place] : places) {
        for (const int stage : {0, 1, 2, 3}) {
          if (per_host < group.size() && mentions(place.offload, "ratio")) continue;
          const bool by_nccl = place.own == kByNccl || (place.states == "none" && per_host < group.size());
          if (by_nccl && !has_nccl()) continue;
          if (stage < 3 && place.zero == kParametersOnHost) continue;
          for (const std::string& more : {std::string(), std::string(R"(, "bf16": {"enabled": true})")}) {
            const auto device = device_with(5);
            use_kernels(true);
            use_nccl();
            Small model = make_small(device);
            Setting setting = place;
            setting.stage = stage;
            setting.more = more;
            if (stage == 0 && mentions(setting.offload, "ratio")) setting.offload.clear();
            Config config = Config::from_text(json_of(setting));
            config.resolve_batch(group.size());
            const auto shape = plan::shape_of(ModelView::of(model.ptr()));
            const MemoryReport planned =
                plan::engine_memory(shape, config, group.size(), group.rank(), per_host, /*gpus=*/true);
            auto engine = initialize(model, json_of(setting), {.group = group});
            const MemoryReport begun = engine.memory_report();
            for (int i = 0; i < 4; ++i) {
              engine.backward(model->loss(tokens_of(i, group.rank(), device)));
              engine.step();
            }
            finish();
            for (const std::string& line : differences(planned, begun, engine.memory_report())) {
              wrong.push_back(fmt::format("rank {} of {}, {} to a host, stage {}, {}{}: {}", group.rank(), group.size(),
                                          per_host, stage, name, more, line));
            }
          }
        }
      }
      if (group.rank() != 0 && !wrong.empty()) throw std::logic_error(wrong.front());
      return wrong;
    });
    EXPECT_TRUE(lines.empty()) << lines.front();
  }
}

/// Also of split masters and 8-bit states, which a checkpoint has whole.
TEST(Accelerator, CheckpointsGoFromAndToTheHost) {
  const TemporaryFolder folder;
  const std::vector<Setting> kept = {
      {.accumulation = 1},
      {.accumulation = 1, .states = "none"},
      {.more = R"(, "bf16": {"enabled": true})", .accumulation = 1, .states = "none"},
      {.more = R"(, "bf16": {"enabled": true})",
       .accumulation = 1,
       .states = "none",
       .optimizer = R"({"type": "AdamW8bit", "params": {"lr": 0.01, "weight_decay": 0.1}})"},
      {.more = R"(, "bf16": {"enabled": true, "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true})",
       .accumulation = 1,
       .states = "none"}};
  int saved = 0;
  for (const Setting& setting : kept) {
    for (const int ranks : {1, 2, 3}) {
      const auto train_with = [&](bool first_there, bool second_there) {
        const std::string to = folder.file(fmt::format("{}", ++saved));
        return lines_of(ranks, [&](Group group) {
          const at::Device there = device_with(static_cast<std::uint64_t>(group.rank()));
          use_kernels(true);
          std::string result;
          for (const bool saves : {true, false}) {
            const at::Device device = (saves ? first_there : second_there) ? there : at::Device(at::kCPU);
            Small model = make_small(device);
            Setting own = setting;
            own.stage = saves ? 3 : 2;
            auto engine = initialize(model, json_of(own), {.group = group});
            if (!saves) engine.load_checkpoint(to);
            for (int step = 0; step < 2; ++step) {
              engine.backward(model->loss(tokens_of(step + 2 * !saves, group.rank(), device)));
              engine.step();
            }
            if (saves) engine.save_checkpoint(to);
            result = outcome_of(engine, model, {engine.grad_norm()});
          }
          finish();
          return std::vector<std::string>{result};
        });
      };
      if (on_gpu()) {  // whose operators give other bits than the host's
        EXPECT_EQ(train_with(true, true), train_with(true, true)) << ranks;
        continue;
      }
      const auto on_host = train_with(false, false);
      EXPECT_EQ(train_with(true, true), on_host) << ranks << json_of(setting);
      EXPECT_EQ(train_with(true, false), on_host) << ranks << json_of(setting);
      EXPECT_EQ(train_with(false, true), on_host) << ranks << json_of(setting);
    }
  }
}

TEST(Accelerator, DividedStatesAreSavedLoadedAndChanged) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    const auto train_with = [&](const std::string& first, const std::string& second) {
      const std::string to = folder.file(fmt::format("{}{}{}", ranks, first, second));
      return lines_of(ranks, [&](Group group) {
        simulated::start({.seed = static_cast<std::uint64_t>(group.rank() + 10)});
        use_kernels(true);
        std::string result;
        for (const std::string& ratio : {first, second}) {
          const bool saves = &ratio == &first || !std::filesystem::exists(to);
          const at::Device device = ratio == "host" ? at::Device(at::kCPU) : simulated::device();
          Small model = make_small(device);
          Setting setting{.stage = saves ? 3 : 2, .more = R"(, "bf16": {"enabled": true})", .accumulation = 1};
          if (ratio != "host") setting.offload = R"(, "ratio": )" + ratio;
          auto engine = initialize(model, json_of(setting), {.group = group});
          if (!saves) engine.load_checkpoint(to);
          const auto train_step = [&](int step) {
            engine.backward(model->loss(tokens_of(step, group.rank(), device)));
            engine.step();
          };
          train_step(saves ? 0 : 3);
          {
            const GatheredParameters scope(engine, {model->twice->weight, model->last->bias}, 0);
            const at::NoGradGuard no_grad;
            if (group.rank() == 0) model->twice->weight.mul_(0.5), model->last->bias.add_(0.25);
          }
          const at::Tensor squares = engine.full_optimizer_state("first.weight", "exp_avg_sq").cpu();
          engine.set_full_optimizer_state("first.weight", "exp_avg_sq", squares.mul(1.5).to(device));
          train_step(saves ? 1 : 4);
          for (auto& parameter : model->frozen->parameters()) parameter.requires_grad_(true);
          train_step(saves ? 2 : 5);
          if (saves) engine.save_checkpoint(to);
          result = outcome_of(engine, model, {engine.grad_norm()});
        }
        finish();
        return std::vector<std::string>{result};
      });
    };
    const auto on_host = train_with("host", "host");
    for (const char* const ratio : {"0", "0.5"}) {
      EXPECT_EQ(train_with(ratio, ratio), on_host) << ranks;
      EXPECT_EQ(train_with(ratio, "1"), on_host) << ranks;
      EXPECT_EQ(train_with("host", ratio), on_host) << ranks;
    }
  }
}

TEST(Accelerator, TheRatioSaysHowMuchIsThere) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const auto lines = lines_of(1, [&](Group group) {
    std::vector<std::string> live;
    for (const char* const ratio : {"1", "0.6", "0.3", "0"}) {
      const auto device = device_with(3);
      use_kernels(true);
      Small model = make_small(device);
      const auto engine =
          initialize(model, json_of({.stage = 1, .accumulation = 1, .offload = fmt::format(R"(, "ratio": {})", ratio)}),
                     {.group = group});
      finish();
      live.push_back(std::to_string(device_memory(device).allocated_nbytes));
    }
    return live;
  });
  ASSERT_EQ(lines.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_GT(std::stol(lines[i + 1]), std::stol(lines[i]) + 1000) << i;
}

TEST(Accelerator, AnOverflowOfAnOpenWindowIsNotTakenByAnEngineThatDoesNotSkip) {
  const TemporaryFolder folder;
  const auto lines = lines_of(2, [&](Group group) {
    const auto device = device_with(static_cast<std::uint64_t>(group.rank()));
    use_kernels(true);
    const auto backward = [&](Engine& engine, Small& model, double factor) {
      const at::Tensor loss = model->loss(tokens_of(0, group.rank(), device));
      engine.backward(loss * factor);
      engine.step();
    };
    const std::string to = folder.path();
    {
      Small model = make_small(device);
      auto engine = initialize(
          model, json_of({.more = R"(, "fp16": {"enabled": true, "initial_scale_power": 8})", .states = "none"}),
          {.group = group});
      backward(engine, model, std::numeric_limits<double>::infinity());
      engine.save_checkpoint(to, "overflow");
    }
    Small model = make_small(device);
    auto engine = initialize(model, json_of({.states = "none"}), {.group = group});
    engine.load_checkpoint(to, "overflow");
    for (int i = 0; i < 2; ++i) backward(engine, model, 1);
    const bool is_finite =
        std::isfinite(engine.grad_norm()) && engine.full_weight("first.weight").isfinite().all().item<bool>();
    finish();
    return std::vector<std::string>{is_finite ? "finite" : "not finite"};
  });
  EXPECT_EQ(lines, std::vector<std::string>{"finite"});
}

/// Ranks that read each other's memory learn as soon as ever that one of them is gone, and nobody waits for it.
TEST(Accelerator, ARankThatFailsEndsAll) {
  for (const std::string own : {"", kByNccl}) {
    if (!own.empty() && !has_nccl()) continue;
    for (const bool in_backward : {false, true}) {
      const auto began = std::chrono::steady_clock::now();
      const auto results = spawn(3, [&](Group group) {
        use_nccl();
        const auto device = device_with(static_cast<std::uint64_t>(group.rank()));
        Small model = make_small(device);
        auto engine =
            initialize(model, json_of({.stage = 3, .accumulation = 1, .states = "none", .own = own}), {.group = group});
        for (int step = 0; step < 3; ++step) {
          const at::Tensor loss = model->loss(tokens_of(step, group.rank(), device));
          if (group.rank() == 1 && step == 1 && !in_backward) throw std::runtime_error("out of luck");
          engine.backward(loss);
          if (group.rank() == 1 && step == 1 && in_backward) std::_Exit(7);
          engine.step();
        }
      });
      EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
      for (const auto& result : results) EXPECT_FALSE(result.ok);
      EXPECT_TRUE(in_backward || mentions(results[1].error, "out of luck")) << results[1].error;
      for (const int rank : {0, 2}) EXPECT_TRUE(mentions(results[rank].error, "rank 1")) << results[rank].error;
    }
  }
}

TEST(Accelerator, RefusesWhatItHasNot) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const auto lines = lines_of(1, [&](Group group) {
    const auto device = device_with(1);
    std::vector<std::string> errors;
    const auto refuse = [&](const std::string& json) {
      Small model = make_small(device);
      errors.push_back(error_of<ConfigError>([&] { initialize(model, json, {.group = group}); }));
    };
    const std::string batch = R"({"train_micro_batch_size_per_gpu": 1, )", adam = R"("optimizer": {"type": "Adam"}, )";
    refuse(batch + adam + R"("zerotorch": {"offload_activations": {"device": "nvme", "nvme_path": "/tmp"}}})");
    refuse(batch + adam + R"("zerotorch": {"store": "node_shared"}})");
    refuse(batch +
           R"("optimizer": {"type": "AdamW8bit"}})");  // states on the device, for which there is no such update
    const std::string own = R"("zerotorch": {"device_transport": ")";
    refuse(batch + adam + own + R"(nccl"}})");
    simulated::use_nccl(true);
    refuse(batch + adam + R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, )" + own +
           R"(nccl"}})");
    refuse(batch + adam + R"("zero_optimization": {"stage": 2}, "zerotorch": {"update": "delayed"}})");
    const std::string divided = R"("offload_optimizer": {"device": "cpu", "ratio": 0.5}})";
    refuse(batch + adam + R"("zero_optimization": {"stage": 2, )" + divided + "}");  // no kernels there
    use_kernels(true);
    refuse(batch + adam + R"("zero_optimization": {"stage": 0, )" + divided + "}");
    refuse(batch + adam + R"("zerotorch": {"update": "delayed"}, "zero_optimization": {"stage": 2, )" + divided + "}");
    refuse(batch + R"("optimizer": {"type": "Lamb"}, "zero_optimization": {"stage": 2, )" + divided + "}");
    use_kernels(false);
    errors.push_back(error_of<ConfigError>([&] {
      initialize(make_small(device), batch + adam + R"("steps_per_print": 1})", {.group = group, .device = at::kCPU});
    }));
    errors.push_back(error_of<ConfigError>([&] {
      initialize(make_small(at::kCPU), batch + adam + R"("steps_per_print": 1})",
                 {.group = group, .device = at::Device(device.type(), 5)});
    }));
    errors.push_back(error_of<ConfigError>(
        [&] { initialize(make_small(at::kCPU), batch + adam + own + R"(shared"}})", {.group = group}); }));
    simulated::finish();
    return errors;
  });
  ASSERT_EQ(lines.size(), 13u) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_TRUE(mentions(lines[3], "needs NCCL") && mentions(lines[3], "'nccl'")) << lines[3];
  EXPECT_TRUE(mentions(lines[4], "offload_optimizer")) << lines[4];
  EXPECT_TRUE(mentions(lines[5], "delayed") && mentions(lines[5], "'cpu'")) << lines[5];
  EXPECT_TRUE(mentions(lines[6], "ratio") && mentions(lines[6], "no kernels")) << lines[6];
  EXPECT_TRUE(mentions(lines[7], "ratio") && mentions(lines[7], "stage to 1, 2 or 3")) << lines[7];
  EXPECT_TRUE(mentions(lines[8], "ratio") && mentions(lines[8], "delayed")) << lines[8];
  EXPECT_TRUE(mentions(lines[9], "ratio") && mentions(lines[9], "Lamb")) << lines[9];
  EXPECT_TRUE(mentions(lines[10], "cpu") && mentions(lines[10], "sim:0")) << lines[10];
  EXPECT_TRUE(mentions(lines[11], "sim:5") && mentions(lines[11], "finds 1 such device")) << lines[11];
  EXPECT_TRUE(mentions(lines[12], "device_transport") && mentions(lines[12], "module on a GPU")) << lines[12];
  EXPECT_TRUE(mentions(lines[0], "offload_activations") && mentions(lines[0], "module on a GPU")) << lines[0];
  EXPECT_TRUE(mentions(lines[1], "node_shared")) << lines[1];
  EXPECT_TRUE(mentions(lines[2], "8bit") && mentions(lines[2], "'cpu'")) << lines[2];
}

TEST(Accelerator, SaysWhereShardsAre) {
  if (on_gpu()) GTEST_SKIP() << "of the simulated device";
  const auto lines = lines_of(2, [&](Group group) {
    const auto device = device_with(1);
    Small model = make_small(device);
    auto engine = initialize(model, json_of({.accumulation = 1}), {.group = group});
    EXPECT_EQ(engine.device(), device);
    simulated::finish();
    return std::vector<std::string>{notices_of(engine)};
  });
  EXPECT_TRUE(mentions(lines.at(0),
                       "the module is on sim:0; shards, sums of gradients and optimizer states are in host memory"))
      << lines[0];
}

}  // namespace
}  // namespace zero::testing::accelerator_test
