// What a plain libtorch training loop does besides backward and step means the same here: gradients are
// dropped and changed, parameters frozen, replaced and written, exceptions caught, schedulers run, several
// networks trained. Each test compares with plain libtorch, or expects an error that names what it is about.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <thread>

#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing {
namespace {

using at::Tensor;
using torch::nn::Linear;

struct Where {
  int ranks, stage;
  const char* store;
  std::string text() const { return fmt::format("{} ranks, stage {}, {}", ranks, stage, store); }
};
constexpr Where kWhere[] = {{1, 0, "auto"},    {1, 3, "copying"}, {2, 0, "auto"},        {2, 1, "auto"},
                            {2, 2, "copying"}, {2, 3, "copying"}, {3, 3, "node_shared"}, {3, 3, "copying"}};

std::string json_of(const Where& where, const std::string& more = "", const std::string& own = "") {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}},
    "zerotorch": {{"store": "{}", "unit_numel": 1000, "timeout_s": 20{}}}{}}})",
                     where.stage, where.store, own, more);
}
const std::string kAdam = R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-3}})";

torch::optim::AdamWOptions plain_options() {
  return torch::optim::AdamWOptions(0.1).weight_decay(0).eps(1e-3);
}

/// Runs `check(group, where)` in every place.
void everywhere(const std::function<void(Group, const Where&)>& check) {
  for (const Where& where : kWhere) {
    SCOPED_TRACE(where.text());
    expect_all_ok(spawn(where.ranks,
                        [&](Group group) {
                          at::set_num_threads(1);
                          at::manual_seed(5);
                          check(group, where);
                        },
                        {.timeout = std::chrono::seconds(60)}));
  }
}

struct TwoImpl : torch::nn::Module {
  Tensor a, b;
  explicit TwoImpl(std::int64_t size = 8) {
    a = register_parameter("a", at::ones({size}));
    b = register_parameter("b", at::ones({size}));
  }
};
TORCH_MODULE(Two);

/// A unit for each of x and y, gathered when it is used: what a module holds itself is in one.
struct ApartImpl : torch::nn::Module {
  Two x = register_module("x", Two(1500)), y = register_module("y", Two(1500));
};
TORCH_MODULE(Apart);

double first(const Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

/// Throws in backward.
struct Breaks : torch::autograd::Function<Breaks> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("out of memory, say");
  }
};

// ---- gradients are dropped -------------------------------------------------------------------------------

TEST(PlainLoops, ZeroGradOfEngineModuleOrOptimizerDropsWhatHasArrived) {
  everywhere([](Group group, const Where& where) {
    for (int how = 0; how < 4; ++how) {
      Two model;
      torch::optim::AdamW optimizer(model->parameters(), plain_options());
      auto engine = initialize(model, json_of(where), {.group = group, .optimizer = &optimizer});
      engine.backward(100 * (model->a.sum() + model->b.sum()));
      if (how == 0) engine.zero_grad();
      if (how == 1) model->zero_grad();
      if (how == 2) optimizer.zero_grad();
      if (how == 3) model->zero_grad(/*set_to_none=*/false);
      (model->a.sum() + 2 * model->b.sum()).backward();
      EXPECT_EQ(first(engine.full_gradient("a")), 1) << how;
      EXPECT_EQ(first(engine.full_gradient("b")), 2) << how;
      engine.step();
    }
  });
}

TEST(PlainLoops, ZeroGradInEveryIterationChangesNothing) {
  everywhere([](Group group, const Where& where) {
    std::vector<Tensor> weights;
    for (const bool zeroes : {false, true}) {
      Two model;
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      for (int step = 0; step < 3; ++step) {
        if (zeroes) model->zero_grad();
        engine.backward((model->a * model->b).pow(2).sum());
        engine.step();
        if (zeroes) engine.zero_grad();
      }
      weights.push_back(engine.full_weight("a"));
    }
    EXPECT_TRUE(at::equal(weights[0], weights[1]));
  });
}

TEST(PlainLoops, AnotherNetworksLossIsDroppedOrAnError) {
  everywhere([](Group group, const Where& where) {
    Linear d(4, 1), g(4, 4);
    auto de = initialize(d, json_of(where, kAdam), {.group = group});
    auto ge = initialize(g, json_of(where, kAdam), {.group = group});
    const Tensor x = at::ones({2, 4});
    ge.backward(100 * d(g(x)).mean());
    ge.step();
    EXPECT_THROW(de.step(), ModelError);
    d->zero_grad();
    de.backward(d(x).mean());
    EXPECT_EQ(first(de.full_gradient("bias")), 1);
    de.step();
    // A loss of both.
    backward(d(g(x)).mean() * 3, {&de, &ge});
    EXPECT_EQ(first(de.full_gradient("bias")), 3);
    EXPECT_NE(first(ge.full_gradient("bias")), 0);
    de.step();
    ge.step();
    // And without a word about engines, as plain programs write it.
    (d(g(x)).mean() * 5).backward();
    EXPECT_EQ(first(de.full_gradient("bias")), 5);
    de.step();
    ge.step();
  });
}

TEST(PlainLoops, AnExceptionInBackwardLeavesTheWindowOrSaysThatItIsLost) {
  everywhere([](Group group, const Where& where) {
    for (const bool announced : {true, false}) {
      Two model(5000);  // units of their own: what one has sent is in the sums
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      const Tensor loss = 100 * model->b.sum() + Breaks::apply(model->a).sum();
      EXPECT_ANY_THROW(announced ? engine.backward(loss) : loss.backward());
      try {
        engine.backward(model->a.sum() + model->b.sum());
      } catch (const ModelError& error) {
        EXPECT_NE(std::string(error.what()).find("zero_grad()"), std::string::npos) << error.what();
        engine.zero_grad();
        engine.backward(model->a.sum() + model->b.sum());
      }
      EXPECT_EQ(first(engine.full_gradient("a")), 1);
      EXPECT_EQ(first(engine.full_gradient("b")), 1);
      engine.step();
    }
    Two small;  // one unit: nothing was sent yet
    auto engine = initialize(small, json_of(where, kAdam), {.group = group});
    EXPECT_ANY_THROW(engine.backward(100 * small->b.sum() + Breaks::apply(small->a).sum()));
    engine.backward(small->a.sum() + small->b.sum());
    EXPECT_EQ(first(engine.full_gradient("b")), 1);
    engine.step();
  });
}

TEST(PlainLoops, AFailedBackwardThatHasSentGradientsLosesTheWindow) {
  everywhere([](Group group, const Where& where) {
    Apart model;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    const auto sum = [&] { return model->x->a.sum() + model->y->a.sum() + model->y->b.sum(); };
    const Tensor breaks = Breaks::apply(model->x->a).sum();
    const Tensor reached = 100 * (model->y->a.sum() + model->y->b.sum());  // all of a unit
    EXPECT_ANY_THROW(engine.backward(reached + breaks));
    EXPECT_THROW(engine.backward(sum()), ModelError);
    engine.zero_grad();
    engine.backward(sum());
    EXPECT_EQ(first(engine.full_gradient("x.a")), 1);
    EXPECT_EQ(first(engine.full_gradient("y.a")), 1);
    engine.step();
  });
}

TEST(PlainLoops, WhatAFailedBackwardReachedCountsAsUnused) {
  const std::string decays = R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.5}})";
  everywhere([&](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, decays), {.group = group});
    const Tensor breaks = Breaks::apply(model->a).sum();
    const Tensor reached = 100 * model->b.sum();  // what was made last is differentiated first
    EXPECT_ANY_THROW(engine.backward(reached + breaks));
    engine.backward(model->a.sum());
    engine.step();
    EXPECT_NE(first(engine.full_weight("a")), 1);
    EXPECT_EQ(first(engine.full_weight("b")), 1);
  });
}

TEST(PlainLoops, ZeroGradInsideAWindowKeepsItsPlace) {
  everywhere([](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, kAdam + R"(, "gradient_accumulation_steps": 3)"), {.group = group});
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      engine.backward(model->a.sum() + model->b.sum());
      engine.step();
      if (micro_batch == 0) engine.zero_grad();
    }
    EXPECT_EQ(engine.global_steps(), 1);
    EXPECT_NEAR(engine.grad_norm(), 4 * 2. / 3, 1e-5);  // two of three: of 16 elements
  });
}

TEST(PlainLoops, GradientsFromBeforeInitializeDoNotCount) {
  everywhere([](Group group, const Where& where) {
    Two model;
    (100 * model->a.sum()).backward();
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    engine.backward(model->a.sum());
    EXPECT_EQ(first(engine.full_gradient("a")), 1);
    engine.step();
  });
}

// ---- gradients are read and changed ----------------------------------------------------------------------

TEST(PlainLoops, GradientsAreChangedBetweenBackwardAndStep) {
  everywhere([](Group group, const Where& where) {
    Two model, plain;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    const Tensor weight = at::arange(8, at::kFloat) - 3;
    for (int step = 0; step < 4; ++step) {
      const auto loss = [&](Two& of) { return (of->a * weight).sum() + (of->b * of->b * weight).sum(); };
      engine.backward(loss(model));
      optimizer.zero_grad();
      loss(plain).backward();
      if (step == 0) {
        engine.clip_grad_value(2);
        for (auto& p : plain->parameters()) p.mutable_grad().clamp_(-2, 2);
      } else if (step == 1) {
        EXPECT_NEAR(engine.clip_grad_norm(0.5), torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5),
                    1e-5);
      } else if (step == 2) {
        engine.set_full_gradient("b", at::ones({8}));
        plain->b.mutable_grad().fill_(1);
        EXPECT_EQ(first(engine.full_gradient("b")), 1);
      } else {
        engine.for_each_gradient([](const GradientPart& part) {
          if (part.name == "a") part.values.zero_();
        });
        plain->a.mutable_grad().zero_();
      }
      engine.step();
      optimizer.step();
      EXPECT_TRUE(at::allclose(engine.full_weight("a"), plain->a, 1e-5, 1e-6)) << step;
      EXPECT_TRUE(at::allclose(engine.full_weight("b"), plain->b, 1e-5, 1e-6)) << step;
    }
  });
}

TEST(PlainLoops, AGradientThatIsGivenToAnUnusedParameterCounts) {
  everywhere([](Group group, const Where& where) {
    Two model, plain;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    engine.backward(model->a.sum());
    engine.set_full_gradient("b", at::ones({8}));
    engine.step();
    plain->a.sum().backward();
    plain->b.mutable_grad() = at::ones({8});
    optimizer.step();
    EXPECT_TRUE(at::allclose(engine.full_weight("a"), plain->a, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(engine.full_weight("b"), plain->b, 1e-5, 1e-6));
  });
}

TEST(PlainLoops, GradientsThatNobodyHasMadeAreZero) {
  everywhere([](Group group, const Where& where) {
    Two model(3000);
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    for (int step = 0; step < 2; ++step) {  // whose sums leave something in memory
      engine.backward(100 * (model->a.sum() + model->b.sum()));
      engine.step();
    }
    engine.for_each_gradient([](const GradientPart& part) { EXPECT_TRUE(part.values.eq(0).all().item<bool>()); });
  });
}

TEST(PlainLoops, WhoLooksForGradientsInGradIsTold) {
  everywhere([](Group group, const Where& where) {
    Two model;
    torch::optim::AdamW optimizer(model->parameters(), plain_options());
    auto engine = initialize(model, json_of(where), {.group = group, .optimizer = &optimizer});
    engine.backward(model->a.sum() + model->b.sum());
    EXPECT_THROW(torch::nn::utils::clip_grad_norm_(model->parameters(), 1), ModelError);
    EXPECT_THROW((void)model->a.grad().norm(), ModelError);
    EXPECT_ANY_THROW(optimizer.step());
    std::ostringstream out;
    EXPECT_THROW(torch::save(optimizer, out), ModelError);
    engine.step();
  });
}

// ---- the module changes ----------------------------------------------------------------------------------

TEST(PlainLoops, FreezingUnfreezingAndUnusedParametersAreAsInPlainLibtorch) {
  everywhere([](Group group, const Where& where) {
    for (const auto& [announced, size] : {std::pair{true, 3000}, {false, 3000}, {true, 8}}) {
      Two model(size), plain(size);
      const bool one_unit = size == 8;  // of what is frozen from the beginning no unit has a part
      for (auto* of : {&model, &plain}) (*of)->b.requires_grad_(one_unit);
      torch::optim::AdamW optimizer(plain->parameters(), plain_options().weight_decay(0.1));
      auto engine = initialize(
          model,
          json_of(
              where,
              R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.1}})"),
          {.group = group});
      for (int step = 0; step < 9; ++step) {
        for (auto* of : {&model, &plain}) {
          if (step == 0) (*of)->b.requires_grad_(false);
          if (step == 2) (*of)->b.requires_grad_(true);
          if (step == 4) (*of)->a.requires_grad_(false);
          if (step == 6) (*of)->a.requires_grad_(true);
        }
        const bool skips_b = step == 7;
        const auto loss = [&](Two& of) {
          return of->a.pow(2).sum() + (skips_b ? at::zeros({}) : of->b.pow(2).sum() * 2);
        };
        const Tensor ours = loss(model);
        announced ? engine.backward(ours) : ours.backward();
        engine.step();
        optimizer.zero_grad();
        loss(plain).backward();
        optimizer.step();
        ASSERT_NEAR(first(engine.full_weight("a")), first(plain->a), 1e-5) << step;
        ASSERT_NEAR(first(engine.full_weight("b")), first(plain->b), 1e-5) << step;
      }
    }
  });
}

TEST(PlainLoops, WhatIsFrozenForNowKeepsItsStatesThroughACheckpoint) {
  const TemporaryFolder folder;
  everywhere([&](Group group, const Where& where) {
    const std::string at = fmt::format("{}/{}_{}_{}", folder.path(), where.ranks, where.stage, where.store);
    Two model(3000), plain(3000);
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    auto engine = std::make_unique<Engine>(initialize(model, json_of(where, kAdam), {.group = group}));
    for (int step = 0; step < 8; ++step) {
      if (step == 2) {
        for (auto* of : {&model, &plain}) (*of)->b.requires_grad_(false);
      }
      if (step == 4) {  // resumed by a program that freezes what the first one had frozen
        engine->save_checkpoint(at);
        engine.reset();
        model = Two(3000);
        model->b.requires_grad_(false);
        engine = std::make_unique<Engine>(initialize(model, json_of(where, kAdam), {.group = group}));
        EXPECT_TRUE(engine->load_checkpoint(at).notices.empty());
      }
      if (step == 6) {
        for (auto* of : {&model, &plain}) (*of)->b.requires_grad_(true);
      }
      const auto loss = [](Two& of) { return of->a.pow(2).sum() + of->b.pow(2).sum() * 2; };
      engine->backward(loss(model));
      engine->step();
      optimizer.zero_grad();
      loss(plain).backward();
      optimizer.step();
      ASSERT_NEAR(first(engine->full_weight("a")), first(plain->a), 1e-5) << step;
      ASSERT_NEAR(first(engine->full_weight("b")), first(plain->b), 1e-5) << step;
    }
  });
}

TEST(PlainLoops, UnusedParametersCountAsZeroWhereTheConfigurationSaysSo) {
  everywhere([](Group group, const Where& where) {
    Two model, plain;
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    auto engine =
        initialize(model, json_of(where, kAdam, R"(, "unused_parameters": "zero")"), {.group = group});
    for (int step = 0; step < 3; ++step) {
      const auto loss = [&](Two& of) { return step == 0 ? (of->a + of->b).sum() : of->a.sum(); };
      engine.backward(loss(model));
      engine.step();
      optimizer.zero_grad();
      loss(plain).backward();
      if (step > 0) plain->b.mutable_grad() = at::zeros({8});
      optimizer.step();
      EXPECT_NEAR(first(engine.full_weight("b")), first(plain->b), 1e-6) << step;
    }
  });
}

TEST(PlainLoops, ReplacedAndAddedParametersAreNamed) {
  everywhere([](Group group, const Where& where) {
    for (const bool replaces : {true, false}) {
      torch::nn::Sequential model(Linear(4, 4), Linear(4, 4));
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      if (replaces) {
        model->replace_module("1", Linear(4, 4));
      } else {
        model->register_module("added", Linear(4, 4));
      }
      try {
        engine.backward(model->ptr(0)->as<torch::nn::LinearImpl>()->forward(at::ones({1, 4})).sum());
        FAIL() << "no error";
      } catch (const ModelError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find(replaces ? "'1.weight' was replaced" : "'added.weight' was added"),
                  std::string::npos)
            << text;
      }
    }
  });
}

TEST(PlainLoops, ValuesPutInAParametersPlaceAreTakenOver) {
  everywhere([](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    torch::nn::utils::vector_to_parameters(at::full({16}, 5.0), model->parameters());
    const Tensor loss = model->a.pow(2).sum();
    EXPECT_EQ(loss.item<double>(), 200);
    loss.backward();
    engine.step();
    EXPECT_NEAR(first(engine.full_weight("a")), 4.9, 1e-4);
    EXPECT_EQ(first(engine.full_weight("b")), 5);
    EXPECT_NEAR(first(model->a + 0), 4.9, 1e-4);
  });
}

TEST(PlainLoops, WhatSharesAParametersMemoryIsNamedAtInitialize) {
  for (int how = 0; how < 3; ++how) {
    Two model;
    Tensor other = how == 0 ? model->a.view({2, 4}) : how == 1 ? model->a.detach() : Tensor();
    if (how == 2) model->b.set_data(model->a.data());
    try {
      auto engine = initialize(model, json_of({1, 0, "auto"}, kAdam), {.group = Group()});
      FAIL() << "no error for " << how;
    } catch (const ModelError& error) {
      EXPECT_NE(std::string(error.what()).find("'a'"), std::string::npos) << error.what();
    }
  }
  // A parameter that was registered as a view is alone with its memory.
  auto model = std::make_shared<torch::nn::Module>();
  model->register_parameter("turned", at::randn({3, 4}).t());
  {
    const Tensor flat = at::randn({10});
    model->register_parameter("head", flat.narrow(0, 0, 4).detach());
    model->register_parameter("tail", flat.narrow(0, 4, 6).detach());
  }
  auto engine = initialize(model, json_of({1, 0, "auto"}, kAdam), {.group = Group()});
}

TEST(PlainLoops, ASecondEngineOnAModuleWorksWhenTheFirstIsGone) {
  everywhere([](Group group, const Where& where) {
    if (where.ranks > 1 && where.stage == 3 && where.store == std::string("copying"))
      return;  // values are sharded
    Linear model(8, 8);
    const auto train = [&](Engine& engine) {
      engine.backward(model(at::ones({1, 8})).pow(2).sum());
      engine.step();
    };
    {
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      train(engine);
      EXPECT_THROW(initialize(model, json_of(where, kAdam), {.group = group}), ModelError);
      train(engine);  // the first goes on
    }
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    train(engine);
  });
}

// ---- optimizers and rates --------------------------------------------------------------------------------

TEST(PlainLoops, AClientOptimizersRatesAreReadAtEveryStep) {
  everywhere([](Group group, const Where& where) {
    const auto run = [&](bool with_engine) {
      at::manual_seed(2);
      torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(net[0]->parameters());
      groups.emplace_back(net[1]->parameters());
      auto optimizer =
          std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(1e-2).eps(1e-3));
      optimizer->param_groups()[0].options().set_lr(1e-3);
      std::optional<ModuleEngine<torch::nn::Sequential>> engine;
      if (with_engine) {
        engine.emplace(initialize(net, json_of(where), {.group = group, .optimizer = optimizer.get()}));
      }
      torch::optim::StepLR scheduler(*optimizer, 1, 0.5);
      for (int step = 0; step < 4; ++step) {
        const Tensor loss = net->forward(at::ones({2, 4})).pow(2).mean();
        if (with_engine) {
          engine->backward(loss);
          engine->step();
          if (step == 3) optimizer.reset();  // may go before the engine
          if (step == 3) break;
        } else {
          optimizer->zero_grad();
          loss.backward();
          optimizer->step();
        }
        scheduler.step();
      }
      std::vector<Tensor> weights;
      for (const auto& item : net->named_parameters()) {
        weights.push_back(with_engine ? engine->full_weight(item.key()) : item.value().detach());
      }
      if (with_engine) {
        EXPECT_NEAR(engine->learning_rate(1), 1e-2 / 4, 1e-12);
      }
      return weights;
    };
    const auto plain = run(false), ours = run(true);
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(at::allclose(plain[i], ours[i], 1e-4, 1e-6)) << i;
  });
}

TEST(PlainLoops, RatesThatDifferBetweenRanksAreAnError) {
  const auto results = spawn(2, [](Group group) {
    Two model;
    auto engine = initialize(model, json_of({2, 0, "auto"}, kAdam), {.group = group});
    engine.set_learning_rate(0.1 + group.rank());
    engine.backward(model->a.sum());
    engine.step();
  });
  for (const auto& result : results) {
    EXPECT_FALSE(result.ok);
    EXPECT_NE(result.error.find("learning rate"), std::string::npos) << result.error;
  }
}

TEST(PlainLoops, GroupsHaveRatesOfTheirOwnAndCanBeSteppedApart) {
  everywhere([](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, kAdam),
                             {.group = group, .parameter_groups = {{.names = {"a"}, .lr = 0.5}}});
    EXPECT_EQ(engine.parameter_groups(), 2);
    engine.set_learning_rate(1, 0.25);
    engine.backward(model->a.sum() + model->b.sum());
    engine.step({0});
    EXPECT_NEAR(first(engine.full_weight("a")), 0.5, 1e-2);
    EXPECT_EQ(first(engine.full_weight("b")), 1);
    engine.backward(model->a.sum() + model->b.sum());
    engine.step({1});
    EXPECT_NEAR(first(engine.full_weight("a")), 0.5, 1e-2);
    EXPECT_NEAR(first(engine.full_weight("b")), 0.75, 1e-2);
    EXPECT_THROW(engine.step({2}), ConfigError);
  });
}

TEST(PlainLoops, TwoEnginesDoNotOverwriteEachOthersCheckpoints) {
  const TemporaryFolder folder;
  everywhere([&](Group group, const Where& where) {
    const std::string at = fmt::format("{}/{}_{}_{}", folder.path(), where.ranks, where.stage, where.store);
    Two d, g;
    auto generator = initialize(g, json_of(where, kAdam), {.group = group});
    {
      auto discriminator = initialize(d, json_of(where, kAdam), {.group = group});
      discriminator.save_checkpoint(at, "epoch1");
      try {
        generator.save_checkpoint(at + "/../" + at.substr(at.rfind('/') + 1) + "/", "epoch2");
        FAIL() << "saved";
      } catch (const CheckpointError& error) {
        EXPECT_NE(std::string(error.what()).find("a folder of its own"), std::string::npos);
      }
      generator.save_checkpoint(at + "/generator");
      discriminator.save_checkpoint(at, "epoch2");
    }
    generator.save_checkpoint(at, "epoch3");  // the other engine is gone
  });
}

TEST(PlainLoops, TwoEnginesDoNotDrawTheSameNoise) {
  Linear d(4, 1), g(4, 4);
  const std::string json = json_of({1, 0, "auto"}, kAdam, R"(, "seed": 1)");
  auto de = initialize(d, json, {.group = Group()}), ge = initialize(g, json, {.group = Group()});
  double last = 0;
  for (int i = 0; i < 4; ++i) {
    Tensor z = at::randn({2, 4});
    EXPECT_NE(first(z), last);
    de.backward(d(z).pow(2).mean());
    de.step();
    z = at::randn({2, 4});
    last = first(z);
    ge.backward(g(z).pow(2).mean());
    ge.step();
  }
}

TEST(PlainLoops, ManualSeedAfterInitializeMeansWhatItSays) {
  const auto draws = [](std::uint64_t seed) {
    Two model;
    auto engine = initialize(model, json_of({1, 0, "auto"}, kAdam, R"(, "seed": 3)"), {.group = Group()});
    at::manual_seed(seed);
    for (int i = 0; i < 2; ++i) {
      engine.backward(model->a.sum());
      engine.step();
    }
    return first(at::randn({4}));
  };
  EXPECT_EQ(draws(10), draws(10));
  EXPECT_NE(draws(10), draws(11));
}

// ---- loops of other shapes -------------------------------------------------------------------------------

TEST(PlainLoops, RanksEvaluateAloneAndUnrollOtherLengths) {
  everywhere([](Group group, const Where& where) {
    torch::nn::Sequential net(Linear(16, 16), Linear(16, 16));
    auto engine = initialize(net, json_of(where, kAdam), {.group = group});
    for (int step = 0; step < 3; ++step) {
      Tensor h = at::ones({1, 16});
      for (int t = 0; t < 3 + group.rank() * 2; ++t) h = at::tanh(net->forward(h));
      engine.backward(h.pow(2).mean());
      engine.step();
      if (group.rank() == 0) {
        at::NoGradGuard no_grad;
        (void)net->forward(at::ones({1, 16}));
      }
      {
        GatheredParameters scope(engine);
        if (group.rank() == 0) (void)net->forward(at::ones({1, 16})).sum().item<double>();
      }
      GatheredParameters scope(engine, 0);
      at::NoGradGuard no_grad;
      if (group.rank() == 0) {
        for (auto& p : net->parameters()) p.clamp_(-0.1, 0.1);
      }
    }
    at::NoGradGuard no_grad;
    for (const auto& p : net->parameters()) EXPECT_LE(p.abs().max().item<double>(), 0.1 + 1e-6);
  });
}

TEST(PlainLoops, ThreadsMayEvaluate) {
  everywhere([](Group group, const Where& where) {
    torch::nn::Sequential net(Linear(64, 64), Linear(64, 64));
    auto engine = initialize(net, json_of(where, kAdam), {.group = group});
    at::NoGradGuard no_grad;
    const Tensor expected = net->forward(at::ones({2, 64}));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int k = 0; k < 3; ++k) {
      threads.emplace_back([&] {
        at::NoGradGuard no_grad;
        for (int i = 0; i < 100; ++i) wrong += !at::equal(net->forward(at::ones({2, 64})), expected);
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  });
}

TEST(PlainLoops, ModulesMayWriteTheirParametersInForward) {
  everywhere([](Group group, const Where& where) {
    const Tensor mask = at::ones({16, 16}).tril();
    Linear net(16, 16), plain(16, 16);
    {
      at::NoGradGuard no_grad;
      plain->weight.copy_(net->weight);
      plain->bias.copy_(net->bias);
    }
    auto engine = initialize(net, json_of(where, kAdam), {.group = group});
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    for (int step = 0; step < 4; ++step) {
      const auto loss = [&](Linear& of) {
        {
          at::NoGradGuard no_grad;
          of->weight.mul_(mask);
          if (step == 1) of->bias.set_data(at::full({16}, 0.5));
        }
        return of(at::ones({2, 16})).pow(2).mean();
      };
      engine.backward(loss(net));
      engine.step();
      optimizer.zero_grad();
      loss(plain).backward();
      optimizer.step();
      EXPECT_TRUE(at::allclose(engine.full_weight("weight"), plain->weight, 1e-4, 1e-5)) << step;
      EXPECT_TRUE(at::allclose(engine.full_weight("bias"), plain->bias, 1e-4, 1e-5)) << step;
    }
  });
}

TEST(PlainLoops, WritesMeanTheSameAfterAScope) {
  everywhere([](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    for (const auto& modifier : {std::optional<int>(), std::optional<int>(0)}) {
      { GatheredParameters scope(engine, modifier); }
      const at::NoGradGuard no_grad;
      model->a.mul_(2);
    }
    EXPECT_EQ(first(engine.full_weight("a")), 4);
  });
}

TEST(PlainLoops, WhatIsWrittenIsReadAlsoAfterAnotherUnit) {
  everywhere([](Group group, const Where& where) {
    Apart model, plain;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    torch::optim::AdamW optimizer(plain->parameters(), plain_options());
    for (int step = 0; step < 3; ++step) {
      const auto loss = [](Apart& of) {
        for (int write = 0; write < 2; ++write) {
          const at::NoGradGuard no_grad;
          of->x->a.mul_(2);
          (void)of->y->a.sum();
        }
        return of->x->a.pow(2).mean() + of->y->a.pow(2).mean();
      };
      const Tensor ours = loss(model);
      engine.backward(ours);
      engine.step();
      optimizer.zero_grad();
      const Tensor wanted = loss(plain);
      wanted.backward();
      optimizer.step();
      EXPECT_NEAR(first(ours), first(wanted), 1e-4 * first(wanted)) << step;
      EXPECT_TRUE(at::allclose(engine.full_weight("x.a"), plain->x->a, 1e-4, 1e-5)) << step;
    }
  });
}

TEST(PlainLoops, SparseAndLazyGradientsAreTaken) {
  everywhere([](Group group, const Where& where) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(10, 8).sparse(true));
    auto engine = initialize(net, json_of(where, kAdam), {.group = group});
    engine.backward(net(at::arange(5)).sum());
    EXPECT_EQ(engine.full_gradient("weight").sum().item<double>(), 40);
    engine.step();
    net(at::arange(5)).sum().backward();  // without the engine's doing
    EXPECT_EQ(engine.full_gradient("weight").sum().item<double>(), 40);
    engine.step();
  });
}

// ---- lifetimes -------------------------------------------------------------------------------------------

TEST(PlainLoops, ScopesEnginesAndGraphsGoInAnyOrder) {
  everywhere([](Group group, const Where& where) {
    Two model(3000);
    std::optional<GatheredParameters> scope;
    Tensor loss;
    {
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      engine.backward(model->a.sum());
      engine.step();
      loss = model->a.pow(2).sum() + model->b.pow(2).sum();
      scope.emplace(engine, std::vector<Tensor>{model->a});
    }
    scope.reset();
    try {
      loss.backward();  // works where values are whole, else throws: never reads memory that is gone
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("engine is gone"), std::string::npos) << error.what();
    }
  });
}

TEST(PlainLoops, OneEngineMayBeOverSeveralModules) {
  everywhere([](Group group, const Where& where) {
    Linear encoder(4, 4), decoder(4, 2);
    torch::nn::Sequential both(encoder, decoder);
    auto engine = initialize(both, json_of(where, kAdam), {.group = group});
    const Tensor before = engine.full_weight("0.weight").clone();
    engine.backward(decoder(encoder(at::ones({1, 4}))).sum());
    engine.step();
    EXPECT_FALSE(at::equal(engine.full_weight("0.weight"), before));
  });
}

}  // namespace
}  // namespace zero::testing
