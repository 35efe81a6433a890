// Optimizers of a program's own over the master shards: libtorch's bits for a user-written elementwise one, at every
// stage, store, precision and number of ranks, from checkpoints of any of them, and an error for what cannot be.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <bit>
#include <fstream>
#include <set>

#include "support/bits.h"
#include "support/layers.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::testing::program_optimizer_test {
namespace {

struct NAdamOptions : torch::optim::OptimizerCloneableOptions<NAdamOptions> {
  NAdamOptions(double lr = 0.01) : rate(lr) {}
  double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
  double rate, decay = 0.1;
};

struct NAdamState : torch::optim::OptimizerCloneableParamState<NAdamState> {
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("step", value);
    step = value.toInt();
    archive.read("mu_product", value);
    mu_product = value.toDouble();
    archive.read("exp_avg", exp_avg);
    archive.read("exp_avg_sq", exp_avg_sq);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("step", c10::IValue(step));
    archive.write("mu_product", c10::IValue(mu_product));
    archive.write("exp_avg", exp_avg);
    archive.write("exp_avg_sq", exp_avg_sq);
  }
  std::int64_t step = 0;
  double mu_product = 1;
  at::Tensor exp_avg, exp_avg_sq;
};

/// As a program would write it for libtorch: Adam with Nesterov's momentum, decoupled weight decay.
class NAdam : public torch::optim::Optimizer {
 public:
  explicit NAdam(std::vector<torch::optim::OptimizerParamGroup> groups)
      : Optimizer(std::move(groups), std::make_unique<NAdamOptions>()) {}

  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      const auto& options = static_cast<NAdamOptions&>(group.options());
      for (auto& p : group.params()) {
        if (!p.grad().defined()) continue;
        auto& slot = state_[p.unsafeGetTensorImpl()];
        if (!slot) {
          auto fresh = std::make_unique<NAdamState>();
          fresh->exp_avg = at::zeros_like(p);
          fresh->exp_avg_sq = at::zeros_like(p);
          slot = std::move(fresh);
        }
        auto& state = static_cast<NAdamState&>(*slot);
        const at::Tensor gradient = p.grad();
        ++state.step;
        const auto t = static_cast<double>(state.step);
        const double mu = 0.9 * (1 - 0.5 * std::pow(0.96, t * 0.004));
        const double next = 0.9 * (1 - 0.5 * std::pow(0.96, (t + 1) * 0.004));
        state.mu_product *= mu;
        p.mul_(1 - options.rate * options.decay);
        state.exp_avg.mul_(0.9).add_(gradient, 0.1);
        state.exp_avg_sq.mul_(0.999).addcmul_(gradient, gradient, 0.001);
        const at::Tensor denominator = (state.exp_avg_sq / (1 - std::pow(0.999, t))).sqrt_().add_(1e-8);
        p.addcdiv_(gradient, denominator, -options.rate * (1 - mu) / (1 - state.mu_product));
        p.addcdiv_(state.exp_avg, denominator, -options.rate * next / (1 - state.mu_product * next));
      }
    }
    return {};
  }
};

template <class OptimizerOf, class Options>
std::unique_ptr<OptimizerOf> make_optimizer(const std::vector<std::vector<at::Tensor>>& tensors,
                                            const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& of_group : tensors) groups.emplace_back(of_group, std::make_unique<Options>(0.01));
  auto optimizer = std::make_unique<OptimizerOf>(std::move(groups));
  // libtorch's constructor gives groups of options that it does not know the defaults.
  for (std::size_t g = 0; g < tensors.size(); ++g)
    optimizer->param_groups()[g].options().set_lr(rates[g % rates.size()]);
  return optimizer;
}

template <class OptimizerOf, class Options>
OptimizerFactory factory_of(std::vector<double> rates) {
  return [rates](const std::vector<std::vector<at::Tensor>>& shards) {
    return make_optimizer<OptimizerOf, Options>(shards, rates);
  };
}
const std::vector<double> kRates = {0.02, 0.01};
const OptimizerFactory kNAdam = factory_of<NAdam, NAdamOptions>(kRates);
const std::vector<ParameterGroup> kGroups = {{.names = {"second.*"}}};

constexpr int kWindow = 6;
constexpr int kSteps = 4;
constexpr double kClip = 0.5;

std::string json_of(int stage, bool node_shared, const std::string& precision, bool clips,
                    const std::string& more = "") {
  const std::string dtype = precision == "fp32"
                                ? ""
                                : fmt::format(R"("{}": {{"enabled": true{}}},)", precision,
                                              precision == "fp16" ? R"(, "initial_scale_power": 10)" : "");
  return fmt::format(R"({{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, {} {}
    "gradient_clipping": {}, "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0,
    "reduce_bucket_size": 20}}, "zerotorch": {{"seed": 5, "store": "{}"}}}})",
                     dtype, more, clips ? kClip : 0.0, stage, node_shared ? "node_shared" : "copying");
}

LayersEngine engine_of(Group group, const std::string& json, const OptimizerFactory& factory = kNAdam,
                       std::uint64_t seed = 3) {
  at::set_num_threads(1);
  at::manual_seed(seed);
  return initialize(Layers(Shape()), json,
                    {.group = std::move(group), .parameter_groups = kGroups, .optimizer_factory = factory});
}

at::Tensor input_of(std::int64_t index) {
  return at::sin(at::arange(12, at::kFloat).view({2, 6}).mul(0.7).add(static_cast<double>(index)));
}

/// The second layer is left out of the second step.
template <class Forward>
at::Tensor loss_of(Layers& model, Forward forward, std::int64_t index) {
  const at::Tensor x = input_of(index).to(model->first->weight.scalar_type());
  const bool without = index / kWindow == 1;
  return (without ? at::tanh(model->first(x)) : forward(x)).to(at::kFloat).square().sum();
}

void train_steps(LayersEngine& engine, int steps, std::vector<double>* norms = nullptr) {
  for (int i = 0; i < steps * kWindow / engine.world_size(); ++i) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    engine.backward(loss_of(
        engine.typed_module(), [&](const at::Tensor& x) { return engine(x); }, index));
    engine.step();
    if (norms && engine.was_step_applied()) norms->push_back(engine.grad_norm());
  }
}

std::string bits_of(LayersEngine& engine, const std::vector<std::string>& states = {"exp_avg", "exp_avg_sq"}) {
  std::uint64_t hash = std::bit_cast<std::uint64_t>(engine.grad_norm());
  const auto add = [&](const at::Tensor& tensor) { hash = hash_with(hash, tensor); };
  for (const auto& item : engine.module().named_parameters()) {
    add(engine.full_weight(item.key()));
    for (const auto& state : states) add(engine.full_optimizer_state(item.key(), state));
  }
  return fmt::format("{:016x}", hash);
}

/// One process, libtorch alone: fp32. `norms`: of the steps, as clipping divides by them.
void expect_plain_bits(LayersEngine& engine, bool clips, const std::vector<double>& norms) {
  at::manual_seed(3);
  Layers model{Shape()};
  const auto made =
      make_optimizer<NAdam, NAdamOptions>({model->second->parameters(), model->first->parameters()}, kRates);
  NAdam& optimizer = *made;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int i = 0; i < kWindow; ++i)
      loss_of(
          model, [&](const at::Tensor& x) { return model(x); }, step * kWindow + i)
          .backward();
    double scale = 1.0 / kWindow;
    if (clips && norms[step] > kClip) scale *= kClip / (norms[step] + 1e-6);
    for (const auto& parameter : model->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(scale);
    }
    optimizer.step();
  }
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(at::equal(engine.full_weight(item.key()), item.value())) << item.key() << clips;
}

TEST(ProgramOptimizer, AnElementwiseOneGivesLibtorchsBitsEverywhere) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      std::ofstream out;
      if (group.rank() == 0) out.open(folder.file("bits"), std::ios::app);
      for (int stage = 0; stage <= 3; ++stage) {
        for (const bool node_shared : {false, true}) {
          for (const std::string precision : {"fp32", "bf16", "fp16"}) {
            const bool clips = (stage + node_shared) % 2 == 0;
            auto engine = engine_of(group, json_of(stage, node_shared, precision, clips));
            EXPECT_EQ(engine.parameter_groups(), 2);
            std::vector<double> norms;
            train_steps(engine, kSteps, &norms);
            EXPECT_EQ(engine.global_steps(), kSteps);
            const std::string bits = bits_of(engine);
            if (group.rank() == 0) out << precision << clips << ' ' << bits << '\n';
            if (precision == "fp32") expect_plain_bits(engine, clips, norms);
          }
        }
      }
    }));
  }
  std::map<std::string, std::set<std::string>> said;
  std::ifstream in(folder.file("bits"));
  std::string curve, bits;
  int lines = 0;
  for (; in >> curve >> bits; ++lines) said[curve].insert(bits);
  EXPECT_EQ(lines, 3 * 4 * 2 * 3);
  EXPECT_EQ(said.size(), 6u);
  for (const auto& [name, all] : said) EXPECT_EQ(all.size(), 1u) << name;
}

TEST(ProgramOptimizer, GoesOnFromACheckpointOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const int steps : {1, 2}) {
      const std::string tag = fmt::format("{}_{}", precision, steps);
      expect_all_ok(spawn(2, [&](Group group) {
        auto engine = engine_of(group, json_of(2, false, precision, true));
        train_steps(engine, steps);
        engine.save_checkpoint(folder.path(), tag);
        train_steps(engine, kSteps - steps);
        const std::string bits = bits_of(engine);
        if (group.rank() == 0) std::ofstream(folder.file(tag + ".bits")) << bits;
      }));
      for (const int ranks : {1, 2, 3}) {
        expect_all_ok(spawn(ranks, [&](Group group) {
          auto engine = engine_of(group, json_of(ranks, ranks == 3, precision, true), kNAdam, 9);
          if (ranks == 2) train_steps(engine, 1);  // with states of its own
          engine.load_checkpoint(folder.path(), tag);
          train_steps(engine, kSteps - steps);
          std::string want;
          std::ifstream(folder.file(tag + ".bits")) >> want;
          EXPECT_EQ(bits_of(engine), want) << tag;
        }));
      }
    }
  }
}

TEST(ProgramOptimizer, SchedulesAndRatesActOnIt) {
  expect_all_ok(spawn(2, [&](Group group) {
    NAdam* live = nullptr;
    const OptimizerFactory factory = [&](const std::vector<std::vector<at::Tensor>>& shards) {
      auto made = kNAdam(shards);
      live = static_cast<NAdam*>(made.get());
      return made;
    };
    const std::string warmup = R"("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001,
      "warmup_max_lr": 0.01, "warmup_num_steps": 9, "warmup_type": "linear"}},)";
    auto scheduled = engine_of(group, json_of(2, false, "fp32", false, warmup), factory);
    train_steps(scheduled, 1);
    EXPECT_DOUBLE_EQ(live->param_groups()[1].options().get_lr(), 0.001);
    for (int step = 1; step < 4; ++step) {
      const double rate = scheduled.learning_rate(1);
      train_steps(scheduled, 1);
      EXPECT_EQ(live->param_groups()[1].options().get_lr(), rate);
      EXPECT_GT(scheduled.learning_rate(1), 0.001);
    }
    EXPECT_EQ(scheduled.learning_rate(0), scheduled.learning_rate(1));

    auto engine = engine_of(group, json_of(2, false, "fp32", false), factory);
    torch::optim::StepLR scheduler(*live, 1, 0.5);
    EXPECT_EQ(engine.learning_rate(0), 0.02);
    train_steps(engine, 1);
    scheduler.step();  // libtorch's first one changes nothing
    scheduler.step();
    EXPECT_EQ(engine.learning_rate(0), 0.01);
    EXPECT_EQ(engine.learning_rate(1), 0.005);
    engine.set_learning_rate(0, 0.5);
    train_steps(engine, 1);
    EXPECT_EQ(live->param_groups()[0].options().get_lr(), 0.5);
    EXPECT_EQ(live->param_groups()[1].options().get_lr(), 0.005);
    engine.follow_schedule();
    EXPECT_EQ(engine.learning_rate(0), 0.01);
    engine.set_learning_rate(group.rank() == 0 ? 0.1 : 0.2);
    expect_said([&] { train_steps(engine, 1); }, "the ranks would update differently");
  }));
}

TEST(ProgramOptimizer, ParametersThatAreUnfrozenJoinIt) {
  const auto run = [](Group group, int stage) {
    at::set_num_threads(1);
    at::manual_seed(3);
    auto engine = initialize(Layers(Shape{.freeze_second = true}), json_of(stage, false, "bf16", true),
                             {.group = group, .parameter_groups = kGroups, .optimizer_factory = kNAdam});
    train_steps(engine, 1);
    for (auto& parameter : engine.typed_module()->second->parameters()) parameter.requires_grad_(true);
    engine.backward(engine(input_of(0).to(at::kBFloat16)).to(at::kFloat).sum());
    engine.zero_grad();
    for (int i = 0; i < 2 * kWindow / group.size(); ++i) {
      const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank() + 5 * kWindow;
      engine.backward(loss_of(
          engine.typed_module(), [&](const at::Tensor& x) { return engine(x); }, index));
      engine.step();
    }
    return bits_of(engine);
  };
  const TemporaryFolder folder;
  std::set<std::string> all;
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(spawn(ranks, [&](Group group) {
      for (const int stage : {0, 2, 3}) {
        const std::string bits = run(group, stage);
        if (group.rank() == 0) std::ofstream(folder.file("bits"), std::ios::app) << bits << '\n';
      }
    }));
  }
  std::ifstream in(folder.file("bits"));
  std::string bits;
  int lines = 0;
  for (; in >> bits; ++lines) all.insert(bits);
  EXPECT_EQ(lines, 9);
  EXPECT_EQ(all.size(), 1u);
}

TEST(ProgramOptimizer, OneOfLibtorchsSavesAndLoadsItsStates) {
  const TemporaryFolder folder;
  const auto adamw = factory_of<torch::optim::AdamW, torch::optim::AdamWOptions>({0.01});
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = engine_of(group, json_of(2, false, "fp32", true), adamw);
    train_steps(engine, 2);
    engine.save_checkpoint(folder.path(), "a");
    train_steps(engine, 1);
    const std::string want = bits_of(engine);
    auto again = engine_of(group, json_of(3, true, "fp32", true), adamw, 9);
    again.load_checkpoint(folder.path(), "a");
    train_steps(again, 1);
    EXPECT_EQ(bits_of(again), want);
    // Of another class: an error, unless its states are left where they are.
    auto other = engine_of(group, json_of(2, false, "fp32", true));
    expect_said([&] { other.load_checkpoint(folder.path(), "a"); }, "is of another optimizer: torch::optim::AdamW");
    other.load_checkpoint(folder.path(), "a", {.load_optimizer_states = false});
    train_steps(other, 1);
  }));
}

/// Keeps a norm of what it was given.
struct NormState : torch::optim::OptimizerCloneableParamState<NormState> {
  void serialize(torch::serialize::InputArchive&) override {}
  void serialize(torch::serialize::OutputArchive& archive) const override { archive.write("norm", c10::IValue(norm)); }
  double norm = 0;
};
struct SilentState : torch::optim::OptimizerCloneableParamState<SilentState> {};
struct MatrixState : torch::optim::OptimizerCloneableParamState<MatrixState> {
  void serialize(torch::serialize::OutputArchive& archive) const override { archive.write("inverse", at::eye(3)); }
};

template <class State>
class Keeping : public NAdam {
 public:
  using NAdam::NAdam;
  at::Tensor step(LossClosure = nullptr) override {
    for (auto& group : param_groups_) {
      for (auto& p : group.params()) {
        auto state = std::make_unique<State>();
        if constexpr (requires { state->norm; }) state->norm = p.norm().template item<double>();
        state_[p.unsafeGetTensorImpl()] = std::move(state);
      }
    }
    return {};
  }
};

class Throwing : public NAdam {
 public:
  using NAdam::NAdam;
  at::Tensor step(LossClosure = nullptr) override { throw std::runtime_error("it has no steps left"); }
};

TEST(ProgramOptimizer, WhatCannotBeSharedOutIsNotSaved) {
  const TemporaryFolder folder;
  expect_all_ok(spawn(2, [&](Group group) {
    const auto complaint = [&](const OptimizerFactory& factory, const char* said) {
      auto engine = engine_of(group, json_of(2, false, "fp32", true), factory);
      train_steps(engine, 1);
      expect_said([&] { engine.save_checkpoint(folder.path(), "a"); }, said);
      train_steps(engine, 1);
    };
    complaint(factory_of<Keeping<NormState>, NAdamOptions>({0.1}), "does not treat elements one by one");
    complaint(factory_of<Keeping<SilentState>, NAdamOptions>({0.1}), "override serialize() of it");
    complaint(factory_of<Keeping<MatrixState>, NAdamOptions>({0.1}), "its state 'inverse' is neither an fp32 tensor");
  }));
}

TEST(ProgramOptimizer, AFactoryOfSomethingElseIsAnErrorOnEveryRank) {
  const auto complains = [](const OptimizerFactory& factory, const char* said) {
    expect_all_ok(spawn(2, [&](Group group) {
      expect_said([&] { engine_of(group, json_of(2, false, "fp32", false), factory); }, said);
    }));
  };
  complains([](const auto&) { return nullptr; }, "gave no optimizer");
  complains([](const auto& shards) { return kNAdam({shards[0]}); }, "its optimizer has 1");
  complains(
      [](const auto& shards) {
        return kNAdam({shards[1], shards[0]});
      },
      "group 0 of its optimizer does not hold the tensors");
  complains(
      [](const auto& shards) {
        auto all = shards[0];
        all.insert(all.end(), shards[1].begin(), shards[1].end());
        return std::make_unique<torch::optim::LBFGS>(all);
      },
      "LBFGS, which needs the loss several times");
  complains([](const auto&) -> std::unique_ptr<torch::optim::Optimizer> { throw std::runtime_error("no such thing"); },
            "no such thing");
}

TEST(ProgramOptimizer, WhatCannotBeRightIsAnError) {
  expect_all_ok(spawn(2, [&](Group group) {
    const std::string json = json_of(2, false, "fp32", false);
    expect_said([&] { engine_of(group, json_of(2, false, "fp32", false, R"("optimizer": {"type": "AdamW"},)")); },
                "the JSON ('optimizer') and InitializeOptions::optimizer_factory both give");
    auto in_backward = nlohmann::json::parse(json_of(2, false, "fp32", false));
    in_backward.erase("train_batch_size");
    in_backward["zerotorch"]["update"] = "in_backward";
    expect_said([&] { engine_of(group, in_backward.dump()); }, "in_backward with InitializeOptions::optimizer_factory");
    for (const ParameterGroup& given : {ParameterGroup{.lr = 0.1}, {.min_coeff = 0.1}, {.use_muon = true}}) {
      ParameterGroup first = given;
      first.names = {"first.*"};
      expect_said(
          [&] {
            initialize(Layers(Shape()), json,
                       {.group = group, .parameter_groups = {first}, .optimizer_factory = kNAdam});
          },
          "parameter group 0 gives hyper-parameters");
    }
    auto throwing = engine_of(group, json, factory_of<Throwing, NAdamOptions>({0.1}));
    expect_said([&] { train_steps(throwing, 1); }, "it has no steps left");
  }));
}

}  // namespace
}  // namespace zero::testing::program_optimizer_test
