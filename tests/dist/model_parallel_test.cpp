// Promise: where a model is split over model-parallel ranks, ZeRO over the others goes on as it does without: one norm
// and one decision to skip for all, clipping, checkpoints that any other split can read, random streams. Against plain
// libtorch with the whole model, within a tolerance: a row-parallel product adds its parts in another order.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::model_parallel_test {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kIn = 6, kHidden = 7, kMicroBatches = 4, kSteps = 4;
constexpr double kClip = 0.5;

/// This thread's model-parallel group.
Group* g_model_parallel = nullptr;

Tensor summed(Tensor x) {
  x = x.contiguous().clone();
  g_model_parallel->all_reduce(x.mutable_data_ptr(), x.numel(), DType::kFloat32).wait();
  return x;
}

/// What every rank has goes into products of which each rank has a part.
struct IntoParts : torch::autograd::Function<IntoParts> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& g) { return {summed(g[0])}; }
};
/// And comes out of them as a sum.
struct OutOfParts : torch::autograd::Function<OutOfParts> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return summed(x); }
  static variable_list backward(AutogradContext*, const variable_list& g) { return {g[0]}; }
};

struct MlpImpl : torch::nn::Module {
  /// This rank's part of a hidden layer that is split over `parts`; `forgets`: the sum in backward.
  MlpImpl(int rank, int parts, bool forgets = false) : parts(parts), forgets(forgets) {
    at::manual_seed(11);
    const std::int64_t begin = kHidden * rank / parts, size = kHidden * (rank + 1) / parts - begin;
    const auto part = [&](Tensor whole, std::int64_t dim) { return whole.narrow(dim, begin, size).clone(); };
    norm = register_parameter("norm", at::ones({kIn}));
    up = register_parameter("up", part(at::randn({kHidden, kIn}), 0));
    up_bias = register_parameter("up_bias", part(at::randn({kHidden}), 0));
    down = register_parameter("down", part(at::randn({kIn, kHidden}), 1));
    down_bias = register_parameter("down_bias", at::randn({kIn}));
    scale = register_buffer("scale", part(at::arange(1, kHidden + 1).to(at::kFloat).div(kHidden), 0));
    seen = register_buffer("seen", at::zeros({1}));
  }
  Tensor forward(const Tensor& x) {  // [B, kIn]
    seen.add_(1);
    const Tensor in = x * norm;
    const Tensor entering = parts > 1 && !forgets ? IntoParts::apply(in) : in;
    const Tensor hidden = at::relu(at::addmm(up_bias, entering, up.t())) * scale;
    const Tensor out = at::matmul(hidden, down.t());
    return (parts > 1 ? OutOfParts::apply(out) : out) + down_bias;
  }
  int parts;
  bool forgets;
  Tensor norm, up, up_bias, down, down_bias, scale, seen;
};
TORCH_MODULE(Mlp);

Placement placement(std::string_view name) {
  if (name == "up" || name == "up_bias" || name == "scale") return {.split_dim = 0};
  if (name == "down") return {.split_dim = -1};
  return {};
}

struct Where {
  int data, model, stage;
  const char* store = "auto";
  std::string text() const { return fmt::format("{} x {} ranks, stage {}, {}", data, model, stage, store); }
};

std::string json_of(const Where& where, double lr = 0.05) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
    "gradient_clipping": {}, "optimizer": {{"type": "AdamW", "params": {{"lr": {}, "eps": 1e-3}}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "timeout_s": 20}}}})",
                     kMicroBatches / where.data, kClip, lr, where.stage, where.store);
}

struct Made {
  Group all, model_parallel;
  Mlp model{nullptr};
};

Made make(Group all, const Where& where, bool forgets = false) {
  at::set_num_threads(1);
  Made made{all, all.split(all.rank() / where.model)};
  static Group kept;
  kept = made.model_parallel;
  g_model_parallel = &kept;
  made.model = Mlp(made.model_parallel.rank(), where.model, forgets);
  return made;
}

InitializeOptions options_of(const Made& made) {
  return {.group = made.all, .model_parallel = made.model_parallel, .placement = placement};
}

Tensor batch(std::int64_t index) {
  return at::sin(at::arange(2 * kIn).to(at::kFloat).mul(1.7).add(static_cast<double>(index))).view({2, kIn});
}
Tensor loss_of(const Tensor& out) { return (out - 1).pow(2).mean(); }

/// Norms by step, then the last parameters.
struct Curve {
  std::vector<double> losses, norms;
};

template <class EngineLike>
void train(EngineLike& engine, std::int64_t from, std::int64_t to, Curve& curve) {
  const int ranks = engine.world_size();
  for (std::int64_t i = from + engine.rank(); i < to; i += ranks) {
    const Tensor loss = loss_of(engine(batch(i)));
    engine.backward(loss);
    engine.step();
    if (engine.rank() == 0) curve.losses.push_back(loss.template item<double>());
    if ((i / ranks + 1) % (kMicroBatches / ranks) == 0) curve.norms.push_back(engine.grad_norm());
  }
}

Curve train_plain() {
  at::set_num_threads(1);
  Mlp model(0, 1);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.05).eps(1e-3).weight_decay(0));
  Curve curve;
  for (std::int64_t i = 0; i < kSteps * kMicroBatches; ++i) {
    const Tensor loss = loss_of(model(batch(i)));
    loss.div(kMicroBatches).backward();
    curve.losses.push_back(loss.item<double>());
    if ((i + 1) % kMicroBatches != 0) continue;
    curve.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), kClip));
    optimizer.step();
    optimizer.zero_grad();
  }
  return curve;
}

void in_place(const Where& where, const std::function<void(Group)>& check) {
  SCOPED_TRACE(where.text());
  expect_all_ok(spawn(where.data * where.model, check, {.timeout = std::chrono::seconds(60)}));
}

constexpr Where kPlaces[] = {
    {1, 2, 0}, {1, 3, 3}, {2, 2, 1}, {2, 2, 2, "copying"}, {2, 2, 3, "copying"}, {2, 2, 3, "node_shared"},
    {2, 1, 3}, {1, 1, 2}};

TEST(ModelParallel, OneNormAndOneCurveWhateverIsSplit) {
  for (const Where& where : kPlaces) {
    in_place(where, [&](Group all) {
      Made made = make(all, where);
      auto engine = initialize(made.model, json_of(where), options_of(made));
      EXPECT_EQ(engine.world_size(), where.data);
      EXPECT_EQ(engine.model_parallel_size(), where.model);
      Curve curve;
      train(engine, 0, kSteps * kMicroBatches, curve);
      const Curve plain = train_plain();
      ASSERT_EQ(curve.norms.size(), plain.norms.size());
      for (std::size_t s = 0; s < plain.norms.size(); ++s) {
        EXPECT_NEAR(curve.norms[s], plain.norms[s], 1e-5 * plain.norms[s]) << "step " << s;
        EXPECT_GT(plain.norms[s], kClip) << "the test wants clipping to act";
      }
      for (std::size_t i = 0; i < curve.losses.size(); ++i) {
        const std::size_t global = i * static_cast<std::size_t>(where.data);
        EXPECT_NEAR(curve.losses[i], plain.losses[global], 1e-5 * plain.losses[global]) << "micro-batch " << global;
      }
      // The same bits everywhere, or ranks would clip apart.
      std::vector<double> all_norms(curve.norms.size() * static_cast<std::size_t>(all.size()));
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(all.size()),
                                             static_cast<std::int64_t>(curve.norms.size()));
      all.all_gather(curve.norms.data(), all_norms.data(), counts, DType::kFloat64).wait();
      for (std::size_t i = 0; i < all_norms.size(); ++i) EXPECT_EQ(all_norms[i], curve.norms[i % curve.norms.size()]);
    });
  }
}

TEST(ModelParallel, AnOverflowOnOnePartIsSkippedOnAll) {
  const Where where{2, 2, 2};
  in_place(where, [&](Group all) {
    Made made = make(all, where);
    std::string json = json_of(where);
    json.insert(1, R"("bf16": {"enabled": true, "check_grad_overflow": true}, )");
    auto engine = initialize(made.model, json, options_of(made));
    for (int i = 0; i < 2; ++i) {
      Tensor loss = (made.model->up.sum() + made.model->down.sum() + made.model->norm.sum()).to(at::kFloat);
      if (all.rank() == 3) loss = loss + made.model->up.sum().to(at::kFloat) * INFINITY;
      engine.backward(loss);
      engine.step();
    }
    EXPECT_EQ(engine.skipped_steps(), 1) << "rank " << all.rank();
  });
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ModelParallel, ACheckpointGoesFromAnySplitToAnyOther) {
  const TemporaryFolder folder;
  const Where places[] = {{2, 2, 3}, {1, 1, 0}, {1, 3, 2}, {2, 1, 3}, {2, 2, 3}};
  const std::int64_t half = kSteps / 2 * kMicroBatches;
  for (std::size_t p = 0; p < std::size(places); ++p) {
    in_place(places[p], [&](Group all) {
      Made made = make(all, places[p]);
      auto engine = initialize(made.model, json_of(places[p]), options_of(made));
      Curve curve;
      if (p == 0) {
        train(engine, 0, half, curve);
      } else {
        const LoadReport report = engine.load_checkpoint(folder.path(), fmt::format("step{}", p - 1));
        EXPECT_EQ(report.micro_batches, half);
      }
      engine.save_checkpoint(folder.path(), fmt::format("step{}", p));
      engine.save_16bit_model(folder.file(fmt::format("weights{}", p)), {.dtype = "fp32"});
      EXPECT_EQ(made.model->seen.item<float>(), static_cast<float>(half / places[0].data));
      train(engine, half, 2 * half, curve);
      const Curve plain = train_plain();
      for (std::size_t s = 0; s < kSteps / 2; ++s)
        EXPECT_NEAR(curve.norms[curve.norms.size() - 2 + s], plain.norms[2 + s], 1e-5 * plain.norms[2 + s]);
    });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  for (std::size_t p = 1; p < std::size(places); ++p) {
    const auto report = checkpoint::diff(folder.file("step0"), folder.file(fmt::format("step{}", p)));
    for (const auto& tensor : report.different)
      EXPECT_EQ(tensor.kind, "random_state") << p << ": " << tensor.name << ": " << tensor.note;
    EXPECT_GE(report.identical, 17) << p;  // five weights, ten states, two buffers
  }
  // Whole, they are the same: what checkpoints export, what engines write, from any split.
  for (std::size_t p = 0; p < std::size(places); ++p) {
    checkpoint::export_weights(folder.file(fmt::format("step{}", p)), folder.file("exported"), {.dtype = "fp32"});
    const std::string exported = bytes_of(folder.file("exported/model.safetensors"));
    EXPECT_GT(exported.size(), 400u);
    EXPECT_EQ(exported, bytes_of(folder.file(fmt::format("weights{}/model.safetensors", p)))) << p;
    EXPECT_EQ(exported, bytes_of(folder.file("weights0/model.safetensors"))) << p;
  }
  in_place({1, 3, 1}, [&](Group all) {
    Made made = make(all, {1, 3, 1});
    auto engine = initialize(made.model, json_of({1, 3, 1}), options_of(made));
    engine.load_full_weights(folder.file("weights0"));
    engine.save_16bit_model(folder.file("again"), {.dtype = "fp32"});
  });
  EXPECT_EQ(bytes_of(folder.file("again/model.safetensors")), bytes_of(folder.file("weights0/model.safetensors")));
}

/// The lines of a run's record, parsed.
std::vector<nlohmann::json> record_of(const TemporaryFolder& folder) {
  std::ifstream file(folder.file("run/metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// Trains until the end or a stop; `stop_at`: a step at which the last of all ranks gets a stop signal.
void run_until(TrainingRun& run, Engine& engine, Mlp& model, std::int64_t stop_at = -1) {
  while (engine.global_steps() < kSteps && !run.should_stop()) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    const Tensor loss = loss_of(model(batch(index)));
    engine.backward(loss);
    engine.step();
    const Group& all = engine.all_ranks();
    if (engine.global_steps() == stop_at && all.rank() == all.size() - 1) ::raise(SIGTERM);
    run.after_step(loss.item<double>());
    run.save_if_due();
  }
  run.finish();
}

TEST(ModelParallel, ARunIsOneRunWhateverIsSplit) {
  const Curve plain = train_plain();
  const TemporaryFolder folder;
  const Where places[] = {{2, 2, 3}, {1, 3, 1}, {1, 1, 2}};
  for (std::size_t p = 0; p < std::size(places); ++p) {
    in_place(places[p], [&](Group all) {
      Made made = make(all, places[p]);
      auto engine = initialize(made.model, json_of(places[p]), options_of(made));
      set_up_process(engine.all_ranks(), engine.config(), {.announce_stop = false, .quiet = true});
      at::set_num_threads(1);
      TrainingRun run(engine, {.folder = folder.file("run"), .state = [] { return "{}"; }});
      const LoadReport report = run.resume();
      EXPECT_EQ(engine.global_steps(), static_cast<std::int64_t>(p)) << report.folder;
      EXPECT_EQ(run.metrics() != nullptr, all.rank() == 0);
      const bool last = p + 1 == std::size(places);
      run_until(run, engine, made.model, last ? -1 : static_cast<std::int64_t>(p) + 1);
      EXPECT_EQ(run.stop_signal(), last ? 0 : SIGTERM) << "rank " << all.rank();
      EXPECT_EQ(engine.global_steps(), last ? kSteps : static_cast<std::int64_t>(p) + 1);
    });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  const auto lines = record_of(folder);
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t s = 0; s < lines.size(); ++s) {
    double mean = 0;
    for (std::size_t j = 0; j < kMicroBatches; ++j) mean += plain.losses[s * kMicroBatches + j] / kMicroBatches;
    EXPECT_EQ(lines[s]["step"], s + 1);
    EXPECT_NEAR(lines[s]["loss"].get<double>(), mean, 1e-5 * mean);
    EXPECT_NEAR(lines[s]["grad_norm"].get<double>(), plain.norms[s], 1e-5 * plain.norms[s]);
  }
}

TEST(ModelParallel, ALossThatIsNotTheCopysIsAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  in_place({2, 2, 1}, [&](Group all) {
    Made made = make(all, {2, 2, 1});
    auto engine = initialize(made.model, json_of({2, 2, 1}), options_of(made));
    TrainingRun run(engine, {.folder = folder.file("run")});
    run.resume();
    for (int i = 0; i < kMicroBatches / 2; ++i) {
      const Tensor loss = loss_of(made.model(batch(engine.rank())));
      engine.backward(loss);
      engine.step();
      const double told = all.rank() == 3 ? 0 : loss.item<double>();
      if (i == 0) {
        run.after_step(told);
      } else {
        expect_said([&] { run.after_step(told); },
                    "ranks 2 and 3 have parts of one copy of the model and give other losses");
      }
    }
  });
}

TEST(ModelParallel, WhatWouldDriftApartIsToldByName) {
  in_place({1, 2, 1}, [&](Group all) {
    Made made = make(all, {1, 2, 1});
    auto options = options_of(made);
    options.placement = nullptr;
    expect_said([&] { initialize(made.model, json_of({1, 2, 1}), options); }, "without a placement");
    options.placement = [](std::string_view) { return Placement{.split_dim = 3}; };
    expect_said(
        [&] {
          initialize(made.model, json_of({1, 2, 1}), options);
        },
        "'norm' has 1 dimensions and cannot be split along 3");
  });
  in_place({1, 2, 1}, [&](Group all) {
    Made made = make(all, {1, 2, 1});
    auto options = options_of(made);
    options.placement = [](std::string_view name) { return name == "up" ? Placement{} : placement(name); };
    expect_said([&] { initialize(made.model, json_of({1, 2, 1}), options); }, "parameter 'up'");
  });
  in_place({2, 2, 1}, [&](Group all) {
    Made made = make(all, {2, 2, 1});
    auto options = options_of(made);
    options.data_parallel = all;
    expect_said([&] { initialize(made.model, json_of({2, 2, 1}), options); }, "whose product is not");
  });
  in_place({2, 2, 1}, [&](Group all) {
    Made made = make(all, {2, 2, 1}, /*forgets=*/true);
    auto engine = initialize(made.model, json_of({2, 2, 1}), options_of(made));
    Curve curve;
    expect_said([&] { train(engine, 0, kMicroBatches, curve); }, "sum their gradients");
  });
  in_place({1, 2, 1}, [&](Group all) {
    Made made = make(all, {1, 2, 1});
    auto engine = initialize(made.model, json_of({1, 2, 1}), options_of(made));
    engine.set_learning_rate(all.rank() == 0 ? 0.1 : 0.2);
    Curve curve;
    expect_said([&] { train(engine, 0, kMicroBatches, curve); }, "would update differently");
  });
  in_place({1, 2, 1}, [&](Group all) {
    Made made = make(all, {1, 2, 1});
    if (all.rank() == 1) made.model->norm.data().fill_(7);
    std::string json = json_of({1, 2, 1});
    auto engine = initialize(made.model, json, options_of(made));
    EXPECT_EQ(engine.full_weight("norm")[0].item<float>(), 1) << "the first rank's";
  });
  in_place({1, 2, 1}, [&](Group all) {
    Made made = make(all, {1, 2, 1});
    if (all.rank() == 1) made.model->norm.data().fill_(7);
    std::string json = json_of({1, 2, 1});
    json.replace(json.find("\"timeout_s\""), 0, R"("verify_parameters": "verify", )");
    expect_said([&] { initialize(made.model, json, options_of(made)); }, "other initial values");
  });
}

/// Each rank uses its half of the rows now and then, as experts are used.
struct HalvesImpl : torch::nn::Module {
  HalvesImpl(int rank, int parts) {
    at::manual_seed(5);
    const Tensor whole = at::randn({4, 3});
    w = register_parameter("w", parts == 1 ? whole : whole.narrow(0, 2 * rank, 2).clone());
  }
  Tensor w;
};
TORCH_MODULE(Halves);

TEST(ModelParallel, APartThatOneRankDidNotUseHasAGradientOfZero) {
  const TemporaryFolder folder;
  const Where where{1, 2, 1};
  const std::string json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.1}},
    "zero_optimization": {"stage": 1}})";
  const auto is_used = [](int half, int step) { return half == 0 ? step != 3 : step % 2 == 0; };
  in_place(where, [&](Group all) {
    at::set_num_threads(1);
    Halves plain(0, 1);
    torch::optim::AdamW optimizer({plain->w}, torch::optim::AdamWOptions(0.1).eps(1e-3).weight_decay(0.1));
    for (int step = 0; step < 6; ++step) {
      Tensor loss = at::zeros({});
      for (int half = 0; half < 2; ++half) {
        if (is_used(half, step)) loss = loss + plain->w.narrow(0, 2 * half, 2).pow(2).sum() * (step + 1);
      }
      optimizer.zero_grad();
      if (!loss.requires_grad()) continue;  // nobody has used it
      loss.backward();
      optimizer.step();
    }
    const InitializeOptions options{
        .group = all, .model_parallel = all, .placement = [](std::string_view) { return Placement{.split_dim = 0}; }};
    const auto train_from = [&](Halves& model, auto& engine, int from) {
      for (int step = from; step < 6; ++step) {
        if (step == 3 && from == 0) engine.save_checkpoint(folder.path(), "a");
        if (is_used(all.rank(), step)) engine.backward(model->w.pow(2).sum() * (step + 1));
        engine.step();
      }
      const Tensor want = plain->w.detach().narrow(0, 2 * all.rank(), 2);
      EXPECT_TRUE(at::allclose(engine.full_weight("w"), want, 1e-5, 1e-6)) << engine.full_weight("w") << want;
    };
    Halves model(all.rank(), 2);
    auto engine = initialize(model, json, options);
    train_from(model, engine, 0);
    Halves again(all.rank(), 2);
    auto resumed = initialize(again, json, options);
    resumed.load_checkpoint(folder.path());
    train_from(again, resumed, 3);
  });
}

TEST(ModelParallel, WhatAProgramWritesIntoWhatIsNotSplitIsTheSameOrAnError) {
  const auto with_engine = [](const std::function<void(Group, Made&, ModuleEngine<Mlp>&)>& check) {
    in_place({2, 2, 1}, [&](Group all) {
      Made made = make(all, {2, 2, 1});
      auto engine = initialize(made.model, json_of({2, 2, 1}), options_of(made));
      check(all, made, engine);
    });
  };
  with_engine([](Group all, Made& made, ModuleEngine<Mlp>& engine) {
    {
      GatheredParameters gathered(engine, {made.model->norm}, /*modifier_rank=*/0);
      const at::NoGradGuard no_grad;
      if (all.rank() == 0) made.model->norm.fill_(3);
    }
    EXPECT_EQ(engine.full_weight("norm")[0].item<float>(), 3) << all.rank();
  });
  with_engine([](Group all, Made&, ModuleEngine<Mlp>& engine) {
    const double value = all.rank() % 2 + 1;
    expect_said([&] { engine.set_full_weight("norm", at::full({kIn}, value)); }, "give it different values");
  });
  with_engine([](Group all, Made& made, ModuleEngine<Mlp>& engine) {
    {
      const at::NoGradGuard no_grad;
      made.model->norm.add_(all.rank() % 2);
    }
    Curve curve;
    expect_said([&] { train(engine, 0, kMicroBatches, curve); }, "written into a parameter that is not split");
  });
}

TEST(ModelParallel, PartsOfOneColumnInColumnOrder) {
  const TemporaryFolder folder;
  for (const bool second : {false, true}) {
    in_place({1, 3, 1}, [&](Group all) {
      at::set_num_threads(1);
      const std::int64_t sizes[] = {4, 0, 1};
      struct Turned : torch::nn::Module {
        explicit Turned(std::int64_t columns) {
          at::manual_seed(2);
          w = register_parameter("w", at::randn({columns, 5}).t());
        }
        Tensor w;
      };
      auto model = std::make_shared<Turned>(sizes[second ? 2 - all.rank() : all.rank()]);
      auto engine = initialize(model, R"({"train_batch_size": 1, "zero_optimization": {"stage": 1}})",
                               {.group = all, .model_parallel = all, .placement = [](std::string_view) {
                                  return Placement{.split_dim = 1};
                                }});
      if (second) engine.load_checkpoint(folder.path());
      engine.save_checkpoint(folder.path(), second ? "b" : "a");
    });
  }
  const auto report = checkpoint::diff(folder.file("a"), folder.file("b"));
  for (const auto& tensor : report.different) EXPECT_EQ(tensor.kind, "random_state") << tensor.name << tensor.note;
}

/// A layer whose weights carry the names of the guide, split by row, then by column.
struct NetImpl : torch::nn::Module {
  struct Part : torch::nn::Module {
    Part(at::IntArrayRef sizes, std::int64_t bias) {
      weight = register_parameter("weight", at::randn(sizes));
      if (bias > 0) this->bias = register_parameter("bias", at::zeros({bias}));
    }
    Tensor weight, bias;
  };
  explicit NetImpl(Group group) : group(std::move(group)) {
    at::manual_seed(1 + this->group.rank());
    up = register_module("up", std::make_shared<Part>(at::IntArrayRef{4, kIn}, 4));
    down = register_module("down", std::make_shared<Part>(at::IntArrayRef{kIn, 4}, 0));
  }
  Group group;
  std::shared_ptr<Part> up, down;
};
TORCH_MODULE(Net);

TEST(ModelParallel, TheGuide) {
  in_place({1, 2, 3}, [&](Group all) {
    at::set_num_threads(1);
    const auto config = Config::from_text(json_of({1, 2, 3}));
    // [guide: initialize]
    auto tensor_parallel = all.split(all.rank() / 2);  // every two ranks have one copy
    Net net(tensor_parallel);                          // this rank's part; moves activations over the group
    auto engine = zero::initialize(
        net, config,
        {.group = all, .model_parallel = tensor_parallel, .placement = [](std::string_view name) -> zero::Placement {
           if (name.ends_with("up.weight") || name.ends_with("up.bias")) return {.split_dim = 0};
           if (name.ends_with("down.weight")) return {.split_dim = 1};
           return {};  // the same on all ranks
         }});
    // [end]
    g_model_parallel = &tensor_parallel;
    for (int i = 0; i < kMicroBatches; ++i) {
      Tensor hidden = at::relu(at::linear(IntoParts::apply(batch(i)), net->up->weight, net->up->bias));
      // [guide: random]
      {
        zero::ModelParallelRandom random(engine);  // this rank's own numbers
        hidden = at::dropout(hidden, 0.1, /*train=*/true);
      }
      // [end]
      engine.backward(loss_of(OutOfParts::apply(at::matmul(hidden, net->down->weight.t()))));
      engine.step();
    }
    EXPECT_EQ(engine.full_weight("up.weight").sizes(), (at::IntArrayRef{4, kIn})) << "this rank's part";
    EXPECT_GT(engine.grad_norm(), 0);
  });
}

TEST(ModelParallel, RandomNumbersAreAlikeButInsideAScope) {
  in_place({2, 2, 1}, [&](Group all) {
    Made made = make(all, {2, 2, 1});
    auto engine = initialize(made.model, json_of({2, 2, 1}), options_of(made));
    const auto drawn_by_all = [&](double mine) {
      std::vector<double> draws(4);
      const std::vector<std::int64_t> counts(4, 1);
      all.all_gather(&mine, draws.data(), counts, DType::kFloat64).wait();
      return draws;
    };
    const auto draw = [] { return at::rand({1}, at::kDouble).item<double>(); };
    at::manual_seed(5);
    const auto own = drawn_by_all(draw());
    EXPECT_EQ(own, std::vector<double>(4, own[0])) << "the program's numbers, from the same seed";
    (void)made.model->forward(batch(0));  // the micro-batch's stream begins
    const auto outside = drawn_by_all(draw());
    EXPECT_EQ(outside[0], outside[1]);
    EXPECT_EQ(outside[2], outside[3]);
    EXPECT_NE(outside[0], outside[2]) << "data-parallel ranks";
    std::vector<double> inside;
    for (int i = 0; i < 2; ++i) {
      const ModelParallelRandom random(engine);
      const auto draws = drawn_by_all(draw());
      inside.insert(inside.end(), draws.begin(), draws.end());
    }
    std::sort(inside.begin(), inside.end());
    EXPECT_EQ(std::adjacent_find(inside.begin(), inside.end()), inside.end()) << "eight different numbers";
    const auto after = drawn_by_all(draw());
    EXPECT_EQ(after[0], after[1]);
    EXPECT_NE(after[0], outside[0]);
  });
}

TEST(ModelParallel, RandomNumbersOfPartsThatRunTwice) {
  in_place({1, 2, 1}, [&](Group all) {
    const auto norms = [&](bool again) {
      Made made = make(all, {1, 2, 1});
      at::manual_seed(5);
      auto engine = initialize(made.model, json_of({1, 2, 1}), options_of(made));
      const auto part = [&](const Tensor& in) {
        const auto noisy = [&](const Tensor& x) {
          const Tensor all_same = at::dropout(x, 0.3, true);
          const ModelParallelRandom random(engine);
          return all_same + 0.1 * OutOfParts::apply(at::dropout(IntoParts::apply(x), 0.5, true));
        };
        return made.model(again ? recompute(noisy, noisy(in)) : noisy(noisy(in)));
      };
      std::vector<double> norms;
      for (std::int64_t i = 0; i < 2 * kMicroBatches; ++i) {
        const Tensor out = again ? recompute(part, part(batch(i))) : part(part(batch(i)));
        engine.backward(loss_of(out));
        engine.step();
        norms.push_back(engine.grad_norm());
      }
      return norms;
    };
    EXPECT_EQ(norms(true), norms(false));
  });
}

}  // namespace
}  // namespace zero::testing::model_parallel_test
