// The snippets of docs/moving_from_libtorch.md, run on two ranks at stage 0 and at stage 3 with the copying store. What
// lies between "// [guide: name]" and "// [end]" is in the document, word for word (tests/policy/guide_snippets.py).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "support/spawn.h"
#include "zero/zero.h"

namespace zero::testing::moving_guide_test {
namespace {

using at::Tensor;
using torch::nn::Linear;

Config config_of(int stage, const char* store) {
  return Config::from_text(fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}},
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "timeout_s": 20}}}})",
                                       stage, store));
}

/// Runs `check` on the ranks, with a configuration of each kind.
void everywhere(const std::function<void(Group group, Config config)>& check, int ranks = 2) {
  for (const auto& [stage, store] : {std::pair{0, "auto"}, {3, "copying"}}) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    expect_all_ok(spawn(ranks, [&check, stage = stage, store = store](Group group) {
      at::set_num_threads(1);
      at::manual_seed(5);
      check(group, config_of(stage, store));
    }));
  }
}

/// For a client optimizer.
Config without_optimizer(Config config) {
  config.optimizer = {};
  return config;
}

struct NetImpl : torch::nn::Module {
  Linear backbone = register_module("backbone", Linear(4, 8)), head = register_module("head", Linear(8, 4));
  Tensor forward(const Tensor& x) { return head(at::tanh(backbone(x))); }
};
TORCH_MODULE(Net);

Tensor input(const Group& group) { return at::linspace(-1, 1, 8).view({2, 4}) * (1 + group.rank()); }

/// What `call` complains of; empty when it does not.
std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void expect_complaint(const char* words, const std::function<void()>& call) {
  const std::string complaint = complaint_of(call);
  EXPECT_NE(complaint.find(words), std::string::npos) << "wanted: " << words << "\ngot: " << complaint;
}

/// A folder that all ranks name alike and that nobody else has.
std::string shared_folder(const char* name) {
  return (std::filesystem::temp_directory_path() / fmt::format("zero_guide_{}_{}", name, getppid())).string();
}

// ---- the loop ----------------------------------------------------------------------------------------------

TEST(MovingGuide, Loop) {
  expect_all_ok(spawn(1, [](Group) {
    at::set_num_threads(1);
    Config config = config_of(3, "auto");
    struct Batch {
      Tensor x, y;
    };
    const std::vector<Batch> batches(20, {at::ones({2, 4}), at::zeros({2, 4})});
    const auto criterion = [](const Tensor& a, const Tensor& b) { return at::mse_loss(a, b); };
    // [guide: start]
    auto group = zero::init_distributed();  // from the launcher; a program started alone is a group of one
    Net net;                                // a TORCH_MODULE holder, or std::make_shared<NetImpl>()
    auto engine = zero::initialize(net, config, {.group = group});
    // [end]
    const double before = criterion(net(batches[0].x), batches[0].y).item<double>();
    // [guide: loop]
    for (const auto& batch : batches) {
      auto loss = criterion(engine(batch.x), batch.y);  // or net(batch.x), net->forward(batch.x)
      engine.backward(loss);                            // was loss.backward()
      engine.step();                                    // was optimizer.step()
    }
    // [end]
    EXPECT_LT(criterion(net(batches[0].x), batches[0].y).item<double>(), before);
  }));
}

TEST(MovingGuide, PlainBackwardIsTaken) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    const Tensor before = engine.full_weight("head.weight").clone();
    auto loss = net(input(group)).pow(2).mean();
    // [guide: plain backward]
    loss.backward();  // also right: gradients reach their owners from any backward
    engine.step();
    // [end]
    EXPECT_FALSE(before.equal(engine.full_weight("head.weight")));
  });
}

// ---- gradients ---------------------------------------------------------------------------------------------

TEST(MovingGuide, ZeroGrad) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    const Tensor before = engine.full_weight("head.weight").clone();
    engine.backward(net(input(group)).pow(2).mean());
    // [guide: zero_grad]
    net->zero_grad();    // as before: drops what has come since the last update, at the next call of the engine
    engine.zero_grad();  // the same, now
    // [end]
    engine.step();
    EXPECT_TRUE(before.equal(engine.full_weight("head.weight")));
  });
}

TEST(MovingGuide, Accumulation) {
  everywhere([](Group group, Config config) {
    config.gradient_accumulation_steps = 4;
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    const auto loss_of = [&](int micro) { return net(input(group) + micro).pow(2).mean(); };
    // [guide: accumulation]
    for (int micro = 0; micro < 4; ++micro) {  // "gradient_accumulation_steps": 4
      engine.backward(loss_of(micro));         // not divided by 4: step() averages
      engine.step();                           // updates in the fourth call
    }
    // [end]
    EXPECT_EQ(engine.global_steps(), 1);
    const std::int64_t samples = engine.config().train_batch_size;
    // [guide: another accumulation]
    engine.set_gradient_accumulation_steps(8);  // was 4; the average divides by 8
    engine.set_train_batch_size(2 * samples);   // the same by train_batch_size: micro-batches keep their size
    // [end]
    EXPECT_EQ(engine.config().gradient_accumulation_steps, 8);
    // [guide: boundary]
    for (int micro = 0; micro < 3; ++micro) {
      engine.set_gradient_accumulation_boundary(micro == 2);
      engine.backward(loss_of(micro));  // where it is no boundary, this ends the micro-batch
    }
    engine.step();
    // [end]
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

TEST(MovingGuide, Clipping) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    auto loss = 1000 * net(input(group)).pow(2).mean();
    // [guide: clip]
    engine.backward(loss);
    engine.clip_grad_value(0.1);               // was clip_grad_value_(net->parameters(), 0.1)
    double norm = engine.clip_grad_norm(0.5);  // was clip_grad_norm_(net->parameters(), 0.5)
    engine.step();
    // [end]
    EXPECT_GT(norm, 0.5);
    EXPECT_NEAR(engine.grad_norm(), 0.5, 1e-4);
  });
}

TEST(MovingGuide, ReadingAndChangingGradients) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    engine.backward(net(input(group)).pow(2).mean());
    const Tensor before = engine.full_gradient("backbone.weight").clone();
    // [guide: read gradient]
    auto gradient = engine.full_gradient("head.weight");  // whole, averaged over ranks and micro-batches, fp32
    // [end]
    // [guide: change gradients]
    engine.for_each_gradient([](const zero::GradientPart& part) {  // this rank's parts, nothing is gathered
      if (part.name.starts_with("backbone.")) part.values.mul_(0.1);
    });
    // [end]
    const auto mask = at::zeros_like(gradient);
    // [guide: set gradient]
    engine.set_full_gradient("head.weight", gradient * mask);  // the same value on every rank
    // [end]
    EXPECT_TRUE(engine.full_gradient("backbone.weight").allclose(before * 0.1));
    EXPECT_EQ(engine.full_gradient("head.weight").abs().max().item<double>(), 0);
    engine.step();
  });
}

// ---- optimizers ----------------------------------------------------------------------------------------------

TEST(MovingGuide, ClientOptimizer) {
  everywhere([](Group group, Config config) {
    config = without_optimizer(config);
    Net net;
    // [guide: client optimizer]
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto engine = zero::initialize(net, config, {.group = group, .optimizer = &optimizer});
    torch::optim::StepLR scheduler(optimizer, /*step_size=*/10, /*gamma=*/0.5);
    // [end]
    for (int i = 0; i < 11; ++i) {
      auto loss = net(input(group)).pow(2).mean();
      // [guide: scheduler]
      engine.backward(loss);
      engine.step();     // with the rate that the optimizer's group has now
      scheduler.step();  // as before
      // [end]
    }
    EXPECT_DOUBLE_EQ(engine.learning_rate(), 5e-4);
    // [guide: rate by hand]
    optimizer.param_groups()[0].options().set_lr(1e-4);  // read at the next step
    // [end]
    EXPECT_DOUBLE_EQ(engine.learning_rate(), 1e-4);
    std::ostringstream stream;
    expect_complaint("torch::save of an optimizer that zero::initialize has taken over",
                     [&] { torch::save(optimizer, stream); });
    expect_complaint("this optimizer was taken over by zero::initialize: call Engine::step()", [&] {
      engine.backward(net(input(group)).pow(2).mean());
      optimizer.step();
    });
  });
}

TEST(MovingGuide, ParameterGroups) {
  everywhere([](Group group, const Config& config) {
    Net net;
    // [guide: parameter groups]
    auto engine =
        zero::initialize(net, config, {.group = group, .parameter_groups = {{.names = {"backbone.*"}, .lr = 1e-5}}});
    engine.set_learning_rate(1, 1e-3);  // group 1: all that no group names. The same on every rank
    // [end]
    EXPECT_DOUBLE_EQ(engine.learning_rate(0), 1e-5);
    EXPECT_DOUBLE_EQ(engine.learning_rate(1), 1e-3);
    const Tensor before = engine.full_weight("backbone.weight").clone();
    engine.backward(net(input(group)).pow(2).mean());
    engine.step();
    EXPECT_NEAR((engine.full_weight("backbone.weight") - before).abs().max().item<double>(), 1e-5, 2e-6);
  });
}

// ---- several networks ----------------------------------------------------------------------------------------

TEST(MovingGuide, Gan) {
  everywhere([](Group group, const Config& config) {
    torch::nn::Sequential D(Linear(4, 8), Linear(8, 1)), G(Linear(4, 8), Linear(8, 4));
    auto d_engine = zero::initialize(D, config, {.group = group});
    auto g_engine = zero::initialize(G, config, {.group = group});
    const auto d_loss = [&] {
      return D->forward(G->forward(input(group)).detach()).mean() - D->forward(input(group)).mean();
    };
    const auto g_loss = [&] { return -D->forward(G->forward(input(group))).mean(); };
    for (int i = 0; i < 2; ++i) {
      // [guide: gan]
      D->zero_grad();  // drops what G's loss has left in D, as ever
      d_engine.backward(d_loss());
      d_engine.step();
      G->zero_grad();
      g_engine.backward(g_loss());  // goes through D
      g_engine.step();
      // [end]
    }
    expect_complaint("gradients came to this engine in the backward of another engine",
                     [&] { d_engine.backward(d_loss()); });
  });
}

TEST(MovingGuide, JointLoss) {
  everywhere([](Group group, const Config& config) {
    Net a, b;
    auto a_engine = zero::initialize(a, config, {.group = group});
    auto b_engine = zero::initialize(b, config, {.group = group});
    const Tensor before = b_engine.full_weight("head.weight").clone();
    auto loss = b(a(input(group))).pow(2).mean();
    // [guide: joint loss]
    zero::backward(loss, {&a_engine, &b_engine});  // each takes the gradients of its own parameters
    a_engine.step();
    b_engine.step();
    // [end]
    EXPECT_FALSE(before.equal(b_engine.full_weight("head.weight")));
  });
}

TEST(MovingGuide, OneEngineOverSeveralModules) {
  everywhere([](Group group, const Config& config) {
    Net encoder, decoder;
    // [guide: module list]
    torch::nn::ModuleList both(encoder, decoder);  // names are "0.head.weight", "1.head.weight", ...
    auto engine = zero::initialize(both, config, {.group = group});
    // [end]
    const Tensor before = engine.full_weight("1.head.weight").clone();
    engine.backward(decoder(encoder(input(group))).pow(2).mean());
    engine.step();
    EXPECT_FALSE(before.equal(engine.full_weight("1.head.weight")));
  });
}

TEST(MovingGuide, SharedEncoder) {
  everywhere([](Group group, const Config& config) {
    Linear encoder(4, 8), actor(8, 2), critic(8, 1);
    // [guide: shared encoder]
    torch::nn::ModuleList nets(encoder, actor, critic);
    auto engine = zero::initialize(
        nets, config, {.group = group, .parameter_groups = {{.names = {"0.*", "2.*"}}, {.names = {"1.*"}}}});
    // [end]
    auto critic_loss = critic(encoder(input(group))).pow(2).mean();
    auto before = engine.full_weight("1.weight").clone(), critic_before = engine.full_weight("2.weight").clone();
    // [guide: step of groups]
    engine.backward(critic_loss);
    engine.step({0});  // encoder and critic; the actor stands still
    // [end]
    EXPECT_TRUE(before.equal(engine.full_weight("1.weight")));
    EXPECT_FALSE(critic_before.equal(engine.full_weight("2.weight")));
    auto actor_loss = actor(encoder(input(group))).pow(2).mean();
    engine.backward(actor_loss);
    engine.step({0, 1});
    EXPECT_FALSE(before.equal(engine.full_weight("1.weight")));
    expect_complaint("belongs to another engine, which is alive",
                     [&] { (void)zero::initialize(encoder, config, {.group = group}); });
  });
}

// ---- freezing, unused parameters -----------------------------------------------------------------------------

TEST(MovingGuide, FreezingAndUnfreezing) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    const auto train = [&] {
      engine.backward(net(input(group)).pow(2).mean());
      engine.step();
      return engine.full_weight("backbone.weight").clone();
    };
    train();
    // [guide: freeze]
    for (auto& p : net->backbone->parameters()) p.requires_grad_(false);  // between steps, on every rank
    // [end]
    const Tensor frozen = train();
    EXPECT_TRUE(frozen.equal(train()));
    // [guide: unfreeze]
    for (auto& p : net->backbone->parameters()) p.requires_grad_(true);  // trains from the next backward on
    // [end]
    EXPECT_FALSE(frozen.equal(train()));
  });
}

TEST(MovingGuide, UnusedParametersStandStill) {
  for (const bool as_zero : {false, true}) {
    everywhere([as_zero](Group group, Config config) {
      if (as_zero) config.zerotorch.unused_parameters = Config::Zerotorch::UnusedParameters::kZero;
      Linear first_head(4, 4), second_head(4, 4);
      torch::nn::ModuleList net(first_head, second_head);
      auto engine = zero::initialize(net, config, {.group = group});
      auto x = input(group);
      engine.backward(first_head(x).pow(2).mean());
      engine.step();
      const Tensor before = engine.full_weight("0.weight").clone();
      // [guide: unused]
      engine.backward(second_head(x).pow(2).mean());
      engine.step();  // first_head stands still: no momentum, no weight decay
      // [end]
      EXPECT_EQ(before.equal(engine.full_weight("0.weight")), !as_zero);
    });
  }
}

// ---- buffers -------------------------------------------------------------------------------------------------

TEST(MovingGuide, Buffers) {
  for (const bool each : {false, true}) {
    everywhere([each](Group group, Config config) {
      torch::nn::Sequential net(Linear(4, 4), torch::nn::BatchNorm1d(4));
      // [guide: buffers]
      config.zerotorch.buffers = zero::Config::Zerotorch::Buffers::kMean;  // "zerotorch": {"buffers": "mean"}
      // [end]
      if (each) config.zerotorch.buffers = zero::Config::Zerotorch::Buffers::kEach;
      auto engine = zero::initialize(net, config, {.group = group});
      engine.backward(net->forward(input(group)).pow(2).mean());
      engine.step();
      std::vector<float> mine(4), all(8);
      const Tensor mean = net->named_buffers()["1.running_mean"].contiguous();
      std::copy_n(mean.const_data_ptr<float>(), 4, mine.begin());
      group.all_gather(mine.data(), all.data(), std::vector<std::int64_t>{4, 4}, DType::kFloat32).wait();
      EXPECT_EQ(std::equal(all.begin(), all.begin() + 4, all.begin() + 4), !each);
    });
  }
}

// ---- loops of other shapes -----------------------------------------------------------------------------------

TEST(MovingGuide, RoutedAndUnrolled) {
  everywhere([](Group group, const Config& config) {
    torch::nn::ModuleList experts(Linear(4, 4), Linear(4, 4), Linear(4, 4));
    auto engine = zero::initialize(experts, config, {.group = group});
    auto x = input(group);
    const auto router = [&](const Tensor&) { return static_cast<std::size_t>(group.rank()); };
    const Tensor before = engine.full_weight("1.weight").clone(), unused = engine.full_weight("2.weight").clone();
    // [guide: routed]
    auto y = experts->ptr<torch::nn::LinearImpl>(router(x))->forward(x);  // other experts on other ranks
    engine.backward(y.pow(2).mean());
    engine.step();
    // [end]
    EXPECT_FALSE(before.equal(engine.full_weight("1.weight")));
    EXPECT_TRUE(unused.equal(engine.full_weight("2.weight")));
  });
  everywhere([](Group group, const Config& config) {
    torch::nn::GRUCell cell(4, 4);
    auto engine = zero::initialize(cell, config, {.group = group});
    auto x = input(group), h = at::zeros({2, 4});
    const int length = 3 + 2 * group.rank();
    // [guide: unrolled]
    for (int t = 0; t < length; ++t) h = cell(x, h);  // as long as this rank's sequence is
    engine.backward(h.pow(2).mean());
    engine.step();
    // [end]
    EXPECT_EQ(engine.global_steps(), 1);
  });
}

TEST(MovingGuide, RanksWithoutABatch) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    auto x = input(group);
    const bool has_batch = group.rank() == 0;
    const Tensor before = engine.full_weight("head.weight").clone();
    // [guide: without a batch]
    if (has_batch) engine.backward(net(x).pow(2).mean());
    engine.step();  // counts as a gradient of zero where there was no batch
    // [end]
    EXPECT_FALSE(before.equal(engine.full_weight("head.weight")));
  });
}

// ---- writes --------------------------------------------------------------------------------------------------

TEST(MovingGuide, Writes) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    engine.backward(net(input(group)).pow(2).mean());
    engine.step();
    {
      // [guide: write on all ranks]
      torch::NoGradGuard no_grad;
      for (auto& p : net->parameters()) p.clamp_(-0.01, 0.01);  // the same on every rank
      // [end]
    }
    EXPECT_LE(engine.full_weight("head.weight").abs().max().item<double>(), 0.01);
    // [guide: write on one rank]
    {
      zero::GatheredParameters gathered(engine, {net->head->weight}, /*modifier_rank=*/0);
      if (group.rank() == 0) torch::nn::init::constant_(net->head->weight, 0.5);  // spread at the end
    }
    // [end]
    EXPECT_TRUE(engine.full_weight("head.weight").eq(0.5).all().item<bool>());
    const Tensor value = at::full({4, 8}, 0.25);
    // [guide: set weight]
    engine.set_full_weight("head.weight", value);     // the same value on every rank
    auto weight = engine.full_weight("head.weight");  // whole, fp32
    // [end]
    EXPECT_TRUE(weight.equal(value));
  });
}

// ---- evaluation ----------------------------------------------------------------------------------------------

TEST(MovingGuide, EvaluationOnly) {
  everywhere([](Group group, const Config& config) {
    Net net, teacher;
    const std::string folder = shared_folder("teacher");
    {
      auto engine = zero::initialize(net, config, {.group = group});
      engine.save_checkpoint(folder);
    }
    // [guide: evaluation only]
    auto teacher_engine = zero::initialize(teacher, config, {.group = group, .evaluation_only = true});
    teacher_engine.load_checkpoint(folder);  // weights and buffers; load_full_weights() takes a whole model's
    // [end]
    EXPECT_FALSE(teacher_engine(input(group)).requires_grad());
    group.barrier().wait();
    if (group.rank() == 0) std::filesystem::remove_all(folder);
  });
}

TEST(MovingGuide, Evaluation) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    const Tensor x = at::ones({2, 4});
    std::vector<double> sums(3);
    for (int step = 0; step < 2; ++step) {
      engine.backward(net(input(group)).pow(2).mean());
      engine.step();
      // [guide: evaluate]
      if (group.rank() == 0) {
        torch::NoGradGuard no_grad;
        std::printf("validation %g\n", net(x).pow(2).mean().item<double>());
      }
      // [end]
      // [guide: threads]
      std::vector<std::thread> threads;
      for (int k = 0; k < 3; ++k) {
        threads.emplace_back([&, k] {
          torch::NoGradGuard no_grad;
          sums[k] = net(x).sum().item<double>();
        });
      }
      for (auto& thread : threads) thread.join();  // before the next call of the engine
      // [end]
    }
    EXPECT_EQ(sums[0], sums[2]);
    EXPECT_EQ(engine.global_steps(), 2);
  });
}

// ---- random numbers ------------------------------------------------------------------------------------------

TEST(MovingGuide, RandomNumbers) {
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    // [guide: manual_seed]
    torch::manual_seed(7);         // what dropout draws follows it, too, from the next forward on
    auto noise = torch::rand({});  // as without an engine, whatever the modules have drawn
    // [end]
    engine.backward(net(input(group)).pow(2).mean());
    engine.step();
    const auto equal_on_ranks = [&](const Tensor& draw) {
      std::vector<float> all(2);
      const float mine = draw.item<float>();
      group.all_gather(&mine, all.data(), std::vector<std::int64_t>{1, 1}, DType::kFloat32).wait();
      return all[0] == all[1];
    };
    EXPECT_TRUE(equal_on_ranks(noise));
    const Tensor next = torch::rand({});
    EXPECT_TRUE(equal_on_ranks(next));
    torch::manual_seed(7);
    EXPECT_EQ(torch::rand({}).item<float>(), noise.item<float>());
    EXPECT_EQ(torch::rand({}).item<float>(), next.item<float>());
  });
}

// ---- saving --------------------------------------------------------------------------------------------------

TEST(MovingGuide, Saving) {
  everywhere([](Group group, const Config& config) {
    const std::string folder = shared_folder("saving"), path = folder + "_plain.pt";
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    if (group.rank() == 0) {
      Net plain;
      at::NoGradGuard no_grad;
      for (auto& p : plain->parameters()) p.fill_(0.5);
      torch::save(plain, path);
    }
    group.barrier().wait();
    // [guide: load plain]
    engine.load_full_weights(path);  // what torch::save(net, path) of the plain program wrote
    // [end]
    EXPECT_TRUE(engine.full_weight("head.weight").eq(0.5).all().item<bool>());
    // [guide: checkpoint]
    engine.save_checkpoint(folder, "epoch3", R"({"epoch": 3})");  // weights, optimizer, counters: all of it
    auto report = engine.load_checkpoint(folder);                 // on any number of ranks, at any stage
    // [end]
    EXPECT_NE(report.client_state.find("3"), std::string::npos);
    // [guide: export]
    engine.save_16bit_model(folder + "/weights", {.dtype = "fp32"});  // safetensors, whole
    // [end]
    EXPECT_TRUE(std::filesystem::exists(folder + "/weights/model.safetensors"));
    group.barrier().wait();
    if (group.rank() == 0) {
      std::filesystem::remove_all(folder);
      std::filesystem::remove(path);
    }
  });
}

// ---- refusals ------------------------------------------------------------------------------------------------

TEST(MovingGuide, Refusals) {
  everywhere([](Group group, const Config& config) {
    {
      torch::nn::Sequential net(Linear(4, 4));
      torch::optim::LBFGS lbfgs(net->parameters());
      const char* const none = "the client optimizer is none of torch::optim::AdamW, Adam, SGD, Adagrad and RMSprop";
      expect_complaint(
          none, [&] { (void)zero::initialize(net, without_optimizer(config), {.group = group, .optimizer = &lbfgs}); });
    }
    {
      torch::nn::Sequential net(Linear(4, 4));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto engine = zero::initialize(net, without_optimizer(config), {.group = group, .optimizer = &sgd});
      static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum(0.9);
      expect_complaint("has come to need the state momentum_buffer", [&] {
        engine.backward(engine(at::ones({2, 4})).mean());
      });
    }
    {
      torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
      torch::optim::AdamW part(net[0]->parameters(), torch::optim::AdamWOptions(0.1));
      expect_complaint("the client optimizer does not hold parameter", [&] {
        (void)zero::initialize(net, without_optimizer(config), {.group = group, .optimizer = &part});
      });
    }
    {
      Net net;
      auto engine = zero::initialize(net, config, {.group = group});
      net(input(group)).pow(2).mean().backward();
      net->head->zero_grad();
      expect_complaint("gradients of an engine are dropped together",
                       [&] { net(input(group)).pow(2).mean().backward(); });
      engine.zero_grad();
      net(input(group)).pow(2).mean().backward();
      net->head->weight.mutable_grad() = at::ones_like(net->head->weight.detach());
      expect_complaint("somebody has put a tensor into grad() of parameter", [&] { engine.step(); });
    }
    {
      Linear viewed(4, 4);
      const Tensor view = viewed->weight.t();
      expect_complaint("another tensor shares the memory of parameter",
                       [&] { (void)zero::initialize(viewed, config, {.group = group}); });
    }
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    engine.backward(net(input(group)).pow(2).mean());
    expect_complaint("backward hands gradients to their owners",
                     [&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); });
    expect_complaint("backward hands gradients to their owners", [&] { (void)net->head->weight.grad().norm(); });
    expect_complaint("between backward() and step(): call it after step()",
                     [&] { engine.save_checkpoint("/nowhere"); });
    engine.step();
    net->head = net->replace_module("head", Linear(8, 4));
    expect_complaint("the module's parameters are not those of zero::initialize any more",
                     [&] { engine.backward(net(input(group)).pow(2).mean()); });
  });
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    at::NoGradGuard no_grad;
    net->head->weight.fill_(1 + group.rank());
    expect_complaint("have written different values into parameter", [&] { (void)engine.full_weight("head.weight"); });
  });
  everywhere([](Group group, const Config& config) {
    Net net;
    auto engine = zero::initialize(net, config, {.group = group});
    if (group.rank() == 0) net->head->weight.requires_grad_(false);
    expect_complaint("the ranks have frozen different parameters", [&] {
      engine.backward(net(input(group)).pow(2).mean());
      engine.step();
    });
  });
}

}  // namespace
}  // namespace zero::testing::moving_guide_test
