// What a plain libtorch training loop does besides backward and step means the same here: gradients are
// dropped and changed, parameters frozen, replaced and written, exceptions caught. Each test compares with plain
// libtorch, or expects an error that names what it is about. More in plain_loops_networks_test.cpp.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/serialize.h>

#include <cmath>
#include <sstream>
#include <thread>

#include "dist/plain_loops.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace zero::testing::plain_loops_test {
namespace {

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
      Two model(5000);
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

TEST(PlainLoops, WhatAFailedBackwardLeftIsDroppedAlsoByWhoDoesNotKnowTheEngine) {
  everywhere([](Group group, const Where& where) {
    for (const std::int64_t size : {8, 5000}) {
      Two model(size);
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      const Tensor breaks = Breaks::apply(model->a).sum();
      const Tensor reached = 100 * model->b.sum();  // what was made last is differentiated first
      EXPECT_ANY_THROW((reached + breaks).backward());
      model->zero_grad();
      const Tensor last = model->b.sum();
      const Tensor first_reached = model->a.sum();
      (last + first_reached).backward();
      EXPECT_EQ(first(engine.full_gradient("a")), 1);
      EXPECT_EQ(first(engine.full_gradient("b")), 1);
      engine.step();
    }
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
        EXPECT_NEAR(engine.clip_grad_norm(0.5), torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5), 1e-5);
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

TEST(PlainLoops, GradientsMayBeGivenWithoutAnyBackward) {
  everywhere([](Group group, const Where& where) {
    Two model;
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    for (int step = 0; step < 2; ++step) {
      engine.set_full_gradient("a", at::full({8}, 2.0));
      EXPECT_EQ(first(engine.full_gradient("a")), 2);
      engine.step();
      EXPECT_NEAR(engine.grad_norm(), 2 * std::sqrt(8.0), 1e-5);
    }
    EXPECT_NEAR(first(engine.full_weight("a")), 0.8, 1e-2);
    EXPECT_EQ(first(engine.full_weight("b")), 1);
  });
}

TEST(PlainLoops, AGradientThatIsGivenToAnUnusedParameterCounts) {
  everywhere([](Group group, const Where& where) {
    for (const bool by_parts : {false, true}) {
      Two model(3000), plain(3000);
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      torch::optim::AdamW optimizer(plain->parameters(), plain_options());
      for (const bool gives : {true, false, true}) {
        engine.backward(model->a.sum());
        const auto fill = [](const GradientPart& part) {
          if (part.name == "b") Tensor(part.values).fill_(1);
        };
        if (gives) by_parts ? engine.for_each_gradient(fill) : engine.set_full_gradient("b", at::ones({3000}));
        engine.step();
        optimizer.zero_grad();
        plain->a.sum().backward();
        plain->b.mutable_grad() = gives ? at::ones({3000}) : Tensor();
        optimizer.step();
      }
      EXPECT_TRUE(at::allclose(engine.full_weight("a"), plain->a, 1e-5, 1e-6));
      EXPECT_TRUE(at::allclose(engine.full_weight("b"), plain->b, 1e-5, 1e-6));
    }
  });
}

TEST(PlainLoops, GradientsOfAnEngineAreDroppedTogetherOrNotAtAll) {
  everywhere([](Group group, const Where& where) {
    for (const char* own : {"", R"(, "update": "in_backward")"}) {
      if (*own && where.stage == 0) continue;
      Apart model;
      auto engine = initialize(model, json_of(where, kAdam, own), {.group = group});
      const auto backward = [&] {
        (model->x->a.sum() + model->x->b.sum() + model->y->a.sum() + model->y->b.sum()).backward();
      };
      const auto refuses = [&](const char* words) {
        try {
          backward();
          ADD_FAILURE() << "no error";
        } catch (const std::exception& error) {
          EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
        }
      };
      backward();
      if (*own) {
        model->zero_grad();
        refuses("the gradients have been applied already");
        break;
      }
      model->x->zero_grad();
      refuses("are dropped together");
      engine.zero_grad();
      backward();
      model->y->a.mutable_grad() = at::ones({1500});
      refuses("has put a tensor into grad()");
      engine.zero_grad();
      backward();
      model->zero_grad();
      backward();
      EXPECT_EQ(first(engine.full_gradient("x.a")), 1);
      engine.step();
    }
  });
}

TEST(PlainLoops, GradientsThatAreGivenCanBeDropped) {
  everywhere([](Group group, const Where& where) {
    Two model(3000);
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    engine.set_full_gradient("a", at::ones({3000}));
    model->zero_grad();
    engine.backward(model->b.sum());
    engine.step();
    EXPECT_EQ(first(engine.full_weight("a")), 1);
    EXPECT_NEAR(first(engine.full_weight("b")), 0.9, 1e-3);
  });
}

/// What is unfrozen after module.zero_grad() has its gradient in grad() when the first hooked one arrives.
TEST(PlainLoops, WhatIsUnfrozenAfterADiscardedMicroBatchKeepsItsGradient) {
  everywhere([](Group group, const Where& where) {
    for (const bool others_train : {true, false}) {
      Two model(3000);
      model->b.requires_grad_(false);
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      (5 * model->a.sum()).backward();
      model->zero_grad();
      model->b.requires_grad_(true);
      if (!others_train) model->a.requires_grad_(false);
      (2 * model->a.sum() + 3 * model->b.sum()).backward();
      EXPECT_EQ(first(engine.full_gradient("b")), 3);
      if (others_train) {
        EXPECT_EQ(first(engine.full_gradient("a")), 2);
      }
      engine.step();
      EXPECT_NEAR(engine.grad_norm(), std::sqrt(3000.0 * (9 + (others_train ? 4 : 0))), 1e-3);
      EXPECT_NEAR(first(engine.full_weight("a")), others_train ? 0.9 : 1, 1e-3);
      EXPECT_NEAR(first(engine.full_weight("b")), 0.9, 1e-3);
    }
  });
}

TEST(PlainLoops, GradientsOfWhatWasUnfrozenAreDroppedReadAndSetAsOthers) {
  everywhere([](Group group, const Where& where) {
    const auto start = [&](Two& model, bool all) {
      model->b.requires_grad_(false);
      if (all) model->a.requires_grad_(false);
      return initialize(model, json_of(where, kAdam), {.group = group});
    };
    {
      Two model(3000);
      auto engine = start(model, true);
      model->a.requires_grad_(true);
      (3 * model->a.sum()).backward();
      EXPECT_EQ(first(engine.full_gradient("a")), 3);
      model->zero_grad();
      EXPECT_EQ(first(engine.full_gradient("a")), 0);
      (2 * model->a.sum()).backward();
      EXPECT_EQ(first(engine.full_gradient("a")), 2);
      engine.step();
    }
    for (const bool sets : {false, true}) {
      Two model(3000);
      auto engine = start(model, false);
      engine.backward(2 * model->a.sum());
      model->b.requires_grad_(true);
      EXPECT_EQ(first(engine.full_gradient("b")), 0);
      if (sets) engine.set_full_gradient("b", at::ones({3000}));
      engine.step();
      EXPECT_NEAR(first(engine.full_weight("a")), 0.9, 1e-3);
      EXPECT_NEAR(first(engine.full_weight("b")), sets ? 0.9 : 1, 1e-3);
    }
    {  // and those of what was given other memory
      Two model(3000);
      auto engine = start(model, false);
      engine.backward(5 * model->a.sum());
      model->a.set_data(at::ones({3000}));
      EXPECT_EQ(first(engine.full_gradient("a")), 5);
      model->zero_grad();
      (2 * model->a.sum()).backward();
      EXPECT_EQ(first(engine.full_gradient("a")), 2);
      engine.step();
    }
    {
      Two model(3000);
      auto engine = start(model, false);
      model->b.requires_grad_(true);
      (model->a.sum() + model->b.sum()).backward();
      model->b.requires_grad_(false);
      EXPECT_NE(error_of<ModelError>([&] { engine.step(); }).find("was frozen again"), std::string::npos);
      engine.zero_grad();
      engine.backward(model->a.sum());
      engine.step();
      EXPECT_EQ(first(engine.full_weight("b")), 1);
    }
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
          json_of(where,
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
    for (const bool announced : {true, false}) {
      Two model, plain;
      torch::optim::AdamW optimizer(plain->parameters(), plain_options());
      auto engine = initialize(model, json_of(where, kAdam, R"(, "unused_parameters": "zero")"), {.group = group});
      for (int step = 0; step < 7; ++step) {
        // Frozen is not unused: it is left alone.
        for (auto* of : {&model, &plain}) (*of)->b.requires_grad_(step < 3 || step > 4);
        const auto loss = [&](Two& of) { return step == 0 ? (of->a + of->b).sum() : of->a.sum(); };
        const Tensor ours = loss(model);
        announced ? engine.backward(ours) : ours.backward();
        engine.step();
        optimizer.zero_grad();
        loss(plain).backward();
        plain->b.mutable_grad() = step == 0 ? plain->b.grad() : Tensor();
        if (step > 0 && plain->b.requires_grad()) plain->b.mutable_grad() = at::zeros({8});
        optimizer.step();
        EXPECT_NEAR(first(engine.full_weight("b")), first(plain->b), 1e-6) << step;
      }
    }
  });
}

TEST(PlainLoops, ZeroGradDropsAlsoWhatCameToAParameterThatWasJustUnfrozen) {
  everywhere([](Group group, const Where& where) {
    Two model(3000);
    model->b.requires_grad_(false);
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    model->b.requires_grad_(true);
    (model->a.sum() + model->b.sum() * 5).backward();
    engine.zero_grad();
    engine.backward(model->a.sum() + model->b.sum() * 2);
    EXPECT_EQ(first(engine.full_gradient("b")), 2);
    engine.step();
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
        EXPECT_NE(text.find(replaces ? "'1.weight' was replaced" : "'added.weight' was added"), std::string::npos)
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
    if (where.ranks > 1 && where.stage == 3 && where.store == std::string("copying")) return;  // values are sharded
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

}  // namespace
}  // namespace zero::testing::plain_loops_test
