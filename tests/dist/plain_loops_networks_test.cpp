// As plain_loops_test.cpp: schedulers run, several networks are trained, loops have other lengths, threads evaluate,
// gradients are sparse, things go in any order.
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
#include "support/temporary_folder.h"

namespace zero::testing::plain_loops_networks_test {
namespace {

// ---- optimizers and rates --------------------------------------------------------------------------------

TEST(PlainLoops, AClientOptimizersRatesAreReadAtEveryStep) {
  everywhere([](Group group, const Where& where) {
    const auto run = [&](bool with_engine) {
      at::manual_seed(2);
      torch::nn::Sequential net(Linear(4, 4), Linear(4, 4));
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(net[0]->parameters());
      groups.emplace_back(net[1]->parameters());
      auto optimizer = std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(1e-2).eps(1e-3));
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
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], ours[i], 1e-4, 1e-6)) << i;
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
    auto engine =
        initialize(model, json_of(where, kAdam), {.group = group, .parameter_groups = {{.names = {"a"}, .lr = 0.5}}});
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
    Two d, g, model;
    auto generator = initialize(g, json_of(where, kAdam), {.group = group});
    {
      auto discriminator = initialize(d, json_of(where, kAdam), {.group = group});
      discriminator.save_checkpoint(at);
      discriminator.save_checkpoint(at, "epoch1");
      const std::string same = at + "/../" + at.substr(at.rfind('/') + 1) + "/";
      for (const char* tag : {"", "epoch1"}) {
        try {
          generator.save_checkpoint(same, tag);
          FAIL() << "saved";
        } catch (const CheckpointError& error) {
          EXPECT_NE(std::string(error.what()).find("a folder of its own"), std::string::npos);
        }
      }
      generator.save_checkpoint(same, "generator1");
      generator.save_checkpoint(at + "/generator");
      auto next = std::make_unique<Engine>(initialize(model, json_of(where, kAdam), {.group = group}));
      next->load_checkpoint(at, "epoch1");  // who goes on with what is there may save it
      next->save_checkpoint(at, "epoch1");
      discriminator.save_checkpoint(at, "epoch2");
    }
    generator.save_checkpoint(at, "epoch3");  // the other engine is gone
  });
}

TEST(PlainLoops, EnginesThatShareAFolderLeaveEachOthersCheckpointsAlone) {
  const TemporaryFolder folder;
  everywhere([&](Group group, const Where& where) {
    const std::string at = fmt::format("{}/{}_{}_{}", folder.path(), where.ranks, where.stage, where.store);
    Two d, g, e;
    auto generator = initialize(g, json_of(where, kAdam), {.group = group});
    auto discriminator = initialize(d, json_of(where, kAdam), {.group = group});
    discriminator.save_checkpoint(at, "d1");
    for (const char* tag : {"g1", "g2"}) generator.save_checkpoint(at, tag, "", {.keep_last = 1});
    discriminator.load_checkpoint(at, "d1");  // was not pruned
    EXPECT_THROW(generator.load_checkpoint(at, "g1"), CheckpointError);
    discriminator.save_checkpoint(at, "d2");
    try {
      generator.load_checkpoint(at);
      FAIL() << "loaded";
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find("another engine"), std::string::npos) << error.what();
    }
    auto evaluation = initialize(e, json_of(where, kAdam), {.group = group});
    EXPECT_EQ(evaluation.load_checkpoint(at).tag, "d2");  // it has no checkpoints of its own
  });
}

TEST(PlainLoops, AWindowThatWasLoadedCanBeDropped) {
  const TemporaryFolder folder;
  everywhere([&](Group group, const Where& where) {
    const std::string at = fmt::format("{}/{}_{}_{}", folder.path(), where.ranks, where.stage, where.store);
    const std::string json = json_of(where, kAdam + R"(, "gradient_accumulation_steps": 2)");
    Two model(3000), other(3000);
    {
      auto engine = initialize(model, json, {.group = group});
      engine.backward(model->a.sum());
      engine.step();
      engine.save_checkpoint(at);
    }
    auto engine = initialize(other, json, {.group = group});
    for (const bool drops : {false, true}) {
      engine.load_checkpoint(at);
      if (drops) other->zero_grad();
      engine.backward(other->a.sum() * 4);
      EXPECT_EQ(first(engine.full_gradient("a")), drops ? 2 : 2.5);
      engine.step();
    }
  });
}

TEST(PlainLoops, AnAsynchronousCheckpointIsCompleteWhenTheEngineHasGone) {
  const TemporaryFolder folder;
  everywhere([&](Group group, const Where& where) {
    const std::string at = fmt::format("{}/{}_{}_{}", folder.path(), where.ranks, where.stage, where.store);
    Two model(3000), other(3000);
    {
      auto engine = initialize(model, json_of(where, kAdam), {.group = group});
      engine.save_checkpoint(at, "last", "", {.async = true});
    }
    group.barrier().wait();
    auto engine = initialize(other, json_of(where, kAdam), {.group = group});
    EXPECT_EQ(engine.load_checkpoint(at).tag, "last");
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

/// A table whose gradients are sparse, with or without a dense use of it.
struct TableImpl : torch::nn::Module {
  static constexpr std::int64_t kRows = 3000, kColumns = 7;
  torch::nn::Embedding table{nullptr};
  explicit TableImpl(bool sparse) {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kColumns).sparse(sparse)));
  }
  /// Rank r of n reads rows of its own and one that all read, some twice.
  Tensor loss(int step, int rank, bool whole) {
    const Tensor rows = at::remainder(at::arange(6) * (rank * 31 + 1) + step * 17, kRows);
    const Tensor read = table(at::cat({rows, rows.narrow(0, 0, 2), at::full({1}, 5, at::kLong)}));
    return read.pow(2).sum() + (whole ? table->weight.pow(2).sum() * 0.5 : at::zeros({}));
  }
};
TORCH_MODULE(Table);

TEST(PlainLoops, SparseGradientsTravelAsRows) {
  everywhere([](Group group, const Where& where) {
    for (const bool in_parts : {false, true}) {
      Table model(/*sparse=*/true), plain(/*sparse=*/false);
      {
        at::NoGradGuard no_grad;
        plain->table->weight.copy_(model->table->weight);
        group.broadcast(plain->table->weight.data_ptr(), plain->table->weight.numel(), DType::kFloat32, 0).wait();
      }
      torch::optim::AdamW optimizer(plain->parameters(), plain_options());
      std::string json = json_of(where, kAdam);
      if (in_parts) json.insert(json.find("\"stage\""), R"("reduce_bucket_size": 4096, )");
      auto engine = initialize(model, json, {.group = group});
      for (int step = 0; step < 8; ++step) {
        // On one rank the table is also used as a whole; a backward fails; there are two in one micro-batch.
        const auto whole = [&](int rank) { return step == 3 && rank == where.ranks - 1; };
        if (step == 4) {
          const Tensor fails = Breaks::apply(model->table->weight).sum() + model->loss(40, group.rank(), false);
          EXPECT_ANY_THROW(engine.backward(fails));
          engine.zero_grad();
        }
        engine.backward(model->loss(step, group.rank(), whole(group.rank())));
        if (step == 5) engine.backward(model->loss(step + 20, group.rank(), false));
        if (step == 6) {
          EXPECT_TRUE(engine.full_gradient("table.weight").defined());
          if (group.rank() == 0) engine.backward(model->loss(step + 20, 0, true));
        }
        engine.step();
        optimizer.zero_grad();
        for (int rank = 0; rank < where.ranks; ++rank) {
          plain->loss(step, rank, whole(rank)).div(where.ranks).backward();
          if (step == 5) plain->loss(step + 20, rank, false).div(where.ranks).backward();
          if (step == 6 && rank == 0) plain->loss(step + 20, 0, true).div(where.ranks).backward();
        }
        optimizer.step();
        ASSERT_TRUE(at::allclose(engine.full_weight("table.weight"), plain->table->weight, 1e-4, 1e-5)) << step;
        if (step == 2 && where.ranks > 1) {
          EXPECT_LT(engine.communication_report().reduced_numel, TableImpl::kRows * TableImpl::kColumns / 10);
        }
      }
    }
  });
}

/// Sums of the gradients of `backwards` before one step(), each of which reads row 1 twice.
Tensor sum_of_table(Group group, const Where& where, const std::string& travels, std::int64_t rows, bool sparse,
                    int backwards) {
  at::manual_seed(3);
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(rows, 3).sparse(sparse));
  auto engine = initialize(table, json_of(where, kAdam + R"(, "bf16": {"enabled": true})" + travels), {.group = group});
  for (int b = 0; b < backwards; ++b) {
    // What is added in 16 bits is not what is added in 32.
    const float unit = b == 0 ? 1.0f : 0x1p-10f * static_cast<float>(1 + group.rank());
    const Tensor weights = at::tensor({unit * (1 + 0x1p-7f), unit * 0x1p-9f, unit}).unsqueeze(1).to(at::kBFloat16);
    const Tensor read = table(at::tensor({std::int64_t{1}, std::int64_t{1}, std::int64_t{2 + group.rank() % 2}}));
    engine.backward((read * weights).to(at::kFloat).sum());
  }
  Tensor sum = engine.full_gradient("weight").clone();
  engine.step();
  return sum;
}

TEST(PlainLoops, SparseGradientsAreAddedAsDenseOnesAre) {
  everywhere([](Group group, const Where& where) {
    for (const char* const travels :
         {"", R"(, "communication_data_type": "fp32")", R"(, "communication_data_type": "fp16")"}) {
      for (const std::int64_t rows : {4, 300}) {  // too few to go as rows, and enough
        // Three on several ranks may be added in the dtype they travel in where they are dense.
        for (int backwards = 1; backwards <= (where.ranks == 1 ? 3 : 2); ++backwards) {
          const Tensor sparse = sum_of_table(group, where, travels, rows, true, backwards);
          const Tensor dense = sum_of_table(group, where, travels, rows, false, backwards);
          EXPECT_TRUE(at::equal(sparse, dense)) << travels << ' ' << rows << " rows, " << backwards << " backwards\n"
                                                << sparse.narrow(0, 0, 4) << dense.narrow(0, 0, 4);
        }
      }
    }
  });
}

TEST(PlainLoops, RowsCountInTheNormAlsoWhereAParameterIsUnfrozenAfterTheirBackward) {
  everywhere([](Group group, const Where& where) {
    const auto make = [] {
      at::manual_seed(5);
      torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(3000, 4).sparse(true)), Linear(4, 4));
      for (Tensor p : net[1]->parameters()) p.requires_grad_(false);
      return net;
    };
    const auto backward = [](torch::nn::Sequential& net) {
      for (Tensor p : net[1]->parameters()) p.requires_grad_(true);
      net->forward(at::arange(20)).pow(2).sum().backward();
    };
    auto model = make(), plain = make();
    auto engine = initialize(model, json_of(where, kAdam), {.group = group});
    backward(model);
    engine.step();
    backward(plain);
    double squares = 0;
    for (const Tensor& p : plain->parameters()) {
      if (!p.grad().defined()) continue;
      squares += (p.grad().is_sparse() ? p.grad().to_dense() : p.grad()).square().sum().item<double>();
    }
    EXPECT_NEAR(engine.grad_norm(), std::sqrt(squares), 1e-4 * std::sqrt(squares));
  });
}

// ---- lifetimes -------------------------------------------------------------------------------------------

std::unique_ptr<Engine> g_engine;  ///< goes after whatever static objects the library makes later

[[noreturn]] void leave_with_an_engine() {
  Two model(3000);
  const std::string json = json_of({1, 2, "auto"}, kAdam, R"(, "debug_observer": true)");
  g_engine = std::make_unique<Engine>(initialize(model, json, {.group = Group()}));
  g_engine->backward(model->a.sum());
  g_engine->step();
  std::exit(0);
}

TEST(PlainLoops, AnEngineMayBeAStaticObject) { EXPECT_EXIT(leave_with_an_engine(), ::testing::ExitedWithCode(0), ""); }

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

/// No counter tells of it, so that only the observer, which compares values, can.
TEST(PlainLoops, AWriteThroughARawPointerIsFoundByTheObserver) {
  everywhere([](Group group, const Where& where) {
    Two model(3000);
    auto engine = initialize(model, json_of(where, kAdam, R"(, "debug_observer": true)"), {.group = group});
    const auto step = [&] {
      engine.backward(model->a.sum() + model->b.sum());
      engine.step();
    };
    const bool is_whole = where.stage < 3 || where.ranks == 1 || std::string(where.store) == "node_shared";
    step();
    {
      at::NoGradGuard no_grad;
      model->a.mul_(0.5);  // seen, as all that goes through libtorch
    }
    step();
    engine.set_full_weight("b", at::ones({3000}));
    {
      GatheredParameters gathered(engine, {model->a}, /*modifier_rank=*/0);
      at::NoGradGuard no_grad;
      if (group.rank() == 0) model->a.fill_(2);
    }
    step();
    if (!is_whole) return;
    group.barrier().wait();
    auto* const values = const_cast<float*>(static_cast<const float*>(model->b.const_data_ptr()));
    if (group.rank() == 0 || std::string(where.store) != "node_shared") values[2999] = 7;
    group.barrier().wait();
    try {
      step();
      ADD_FAILURE() << "not found";
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("parameter 'b' was written through a raw pointer"), std::string::npos) << text;
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
}  // namespace zero::testing::plain_loops_networks_test
