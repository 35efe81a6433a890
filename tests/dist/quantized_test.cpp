// zero_quantized_weights, zero_quantized_gradients and zeropp_loco_param: the curve of a plain loop that rounds by
// hand, the same bits at every number of ranks, store and bucket size; what stays exact; and zero_hpz_partition_size.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optim/kernels.h"
#include "support/bits.h"
#include "support/deep_net.h"
#include "support/engine_hash.h"
#include "support/errors.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"
#include "zero/zero.h"

namespace zero::testing::quantized_test {
namespace {

using optim::StateFormat;

constexpr std::int64_t kMicroBatches = 12;

using Net = DeepNet;
using NetEngine = ModuleEngine<Net>;

struct Setting {
  int stage = 3;
  std::string precision = kFp32;
  std::optional<StateFormat> weights = {}, gradients = {};
  std::string loco = "{}";
  std::int64_t bucket_numel = 3000, persistent_numel = 50, batch = kMicroBatches;
  double clipping = 0.5;
  bool overlap = false;
  std::string own = {};  ///< more keys of zerotorch

  std::string json() const {
    const auto name = [](const std::optional<StateFormat>& format, const char* otherwise) {
      return !format ? otherwise : *format == StateFormat::kLinear4 ? "linear4" : "dynamic8";
    };
    return fmt::format(R"({{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": {},
      "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}, {},
      "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": {}, "reduce_bucket_size": {},
        "overlap_comm": {}, "stage3_max_reuse_distance": 2000, "zero_quantized_weights": {},
        "zero_quantized_gradients": {}, "zeropp_loco_param": {}}},
      "zerotorch": {{"seed": 5, "unit_numel": 3000, "weight_quantization": "{}", "gradient_quantization": "{}" {}}}}})",
                       batch, clipping, precision, stage, persistent_numel, bucket_numel, overlap, weights.has_value(),
                       gradients.has_value(), loco, name(weights, "dynamic8"), name(gradients, "linear4"), own);
  }
};

Net make_net() {
  at::set_num_threads(1);
  at::manual_seed(3);
  return Net();
}

NetEngine make_engine(const Group& group, const Setting& setting) {
  return initialize(make_net(), Config::from_text(setting.json()), {.group = group});
}

/// Of micro-batch `index` of the whole run; every eighth step overflows fp16.
at::Tensor loss_of(Net& net, std::int64_t index) {
  const at::Tensor x = at::sin(at::arange(24, at::kFloat).view({1, 24}).mul(0.7).add(static_cast<double>(index)));
  const at::Tensor out = net->forward(x.to(net->parameters().front().scalar_type())).to(at::kFloat);
  return out.square().sum().mul(index / kMicroBatches % 8 == 5 ? 1e6 : 1.0);
}

void train(NetEngine& engine, int steps) {
  for (const std::int64_t end = engine.global_steps() + steps; engine.global_steps() < end;) {
    const std::int64_t index = engine.micro_steps() * engine.world_size() + engine.rank();
    engine.backward(loss_of(engine.typed_module(), index));
    engine.step();
  }
}

/// What operators of the module compute with.
std::uint64_t hash_of_seen(NetEngine& engine) {
  std::uint64_t hash = kNoBits;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : engine.module().parameters())
    hash = hash_with(hash, parameter.mul(1).to(at::kFloat).reshape({-1}));
  return hash;
}

/// Rounded as the format says, in blocks that begin with the tensor.
at::Tensor rounded(const at::Tensor& values, StateFormat format) {
  const std::int64_t numel = values.numel(), padded = (numel + 63) / 64 * 64;
  const at::Tensor wide = at::zeros({padded});
  wide.narrow(0, 0, numel).copy_(values.reshape({-1}));
  std::vector<unsigned char> kept(static_cast<std::size_t>(optim::nbytes_of(format, padded)));
  optim::generic::kKernels.narrow_state(format, wide.const_data_ptr<float>(), kept.data(), padded);
  optim::generic::kKernels.widen_state(format, kept.data(), wide.mutable_data_ptr<float>(), padded);
  return wide.narrow(0, 0, numel).view(values.sizes()).to(values.scalar_type());
}

/// A plain loop over a plain module, whose rounded gradients an engine of one rank without quantisation adds and
/// applies to exact weights.
class ByHand {
 public:
  explicit ByHand(const Setting& setting)
      : setting_(setting), exact_(make_engine(Group(), plain(setting))), net_(make_net()) {
    see();
  }
  void train(int steps) {
    for (const std::int64_t end = exact_.global_steps() + steps; exact_.global_steps() < end;) {
      const std::int64_t slot = exact_.micro_steps() % kMicroBatches;
      net_->zero_grad();
      loss_of(net_, exact_.micro_steps()).backward();
      at::Tensor same;  // a loss with the rounded gradients
      const auto parameters = net_->named_parameters();
      const auto of_exact = exact_.module().named_parameters();
      for (const auto& item : parameters) {
        const at::Tensor gradient = sent(item.value().grad(), errors_[fmt::format("{} {}", item.key(), slot)]);
        const at::Tensor part = of_exact[item.key()].mul(gradient).sum();
        same = same.defined() ? same + part : part;
      }
      exact_.backward(same);
      exact_.step();
      if (slot == kMicroBatches - 1) see();
    }
  }
  void forget_errors() { errors_.clear(); }
  std::uint64_t hash() { return hash_of(exact_); }
  std::uint64_t hash_of_seen() const {
    std::uint64_t hash = kNoBits;
    for (const auto& parameter : net_->parameters()) hash = hash_with(hash, parameter.detach().reshape({-1}));
    return hash;
  }
  NetEngine& exact() { return exact_; }

 private:
  static Setting plain(Setting setting) {
    setting.stage = 0;
    setting.weights = setting.gradients = std::nullopt;
    setting.loco = "{}";
    return setting;
  }
  at::Tensor sent(const at::Tensor& gradient, at::Tensor& error) const {
    if (!setting_.gradients) return gradient;
    if (setting_.loco == "{}") return rounded(gradient, *setting_.gradients);
    const at::Tensor old = error.defined() ? error : at::zeros_like(gradient);
    const at::Tensor value = gradient + old, out = rounded(value, *setting_.gradients);
    const float decay = 0.8f, rest = 1 - decay;
    error = rounded(at::add(old.mul(decay), value.sub(out).mul(rest)), StateFormat::kDynamic8);
    return out;
  }
  void see() {
    const at::NoGradGuard no_grad;
    const auto of_exact = exact_.module().named_parameters();
    for (auto& item : net_->named_parameters()) {
      const at::Tensor& value = of_exact[item.key()];
      const bool is_gathered = setting_.weights && setting_.stage == 3;
      item.value().set_data(is_gathered ? rounded(value.detach(), *setting_.weights) : value.detach().clone());
    }
  }

  Setting setting_;
  NetEngine exact_;
  Net net_;
  std::map<std::string, at::Tensor> errors_;
};

const std::string kLoco = R"({"err_beta": 0.8, "reset_T": 3})";

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const StateFormat format : {StateFormat::kDynamic8, StateFormat::kLinear4}) {
    all.push_back({.weights = format});
    for (int stage = 0; stage <= 3; ++stage) all.push_back({.stage = stage, .gradients = format});
  }
  all.push_back({.weights = StateFormat::kDynamic8, .gradients = StateFormat::kLinear4});
  for (int stage = 1; stage <= 3; ++stage)
    all.push_back({.stage = stage, .gradients = StateFormat::kLinear4, .loco = R"({"err_beta": 0.8})"});
  return all;
}

class Quantized : public ::testing::TestWithParam<int> {
 protected:
  TemporaryFolder folder_;
  const int ranks_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Ranks, Quantized, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(Quantized, IsAPlainLoopThatRoundsByHand) {
  expect_all_ok(spawn(ranks_,
                      [&](Group group) {
                        const auto all = settings();
                        for (std::size_t i = 0; i < all.size(); ++i) {
                          // All over two ranks, else a third of them.
                          if (group.size() != 2 && i % 3 != static_cast<std::size_t>(group.size()) % 3) continue;
                          const Setting& setting = all[i];
                          auto engine = make_engine(group, setting);
                          ByHand by_hand(setting);
                          const std::uint64_t before = by_hand.hash();
                          for (int step = 0; step < 4; ++step) {
                            train(engine, 1);
                            by_hand.train(1);
                            ASSERT_EQ(hash_of_seen(engine), by_hand.hash_of_seen()) << step << setting.json();
                            ASSERT_EQ(engine.grad_norm(), by_hand.exact().grad_norm()) << step << setting.json();
                          }
                          EXPECT_EQ(hash_of(engine), by_hand.hash()) << setting.json();
                          EXPECT_NE(by_hand.hash(), before);
                        }
                      },
                      {.timeout = std::chrono::minutes(4)}));
}

struct Curve {
  std::uint64_t seen, states;
  std::int64_t skipped;
  bool operator==(const Curve&) const = default;
};

Curve curve_of(const Group& group, const Setting& setting, int steps) {
  auto engine = make_engine(group, setting);
  train(engine, steps);
  const std::uint64_t seen = hash_of_seen(engine);
  return {seen, hash_of(engine), engine.skipped_steps()};
}

/// The same at any number of ranks, with other buckets, beside backward or not, over messages.
TEST(QuantizedEverywhere, HasOneCurve) {
  const std::optional<StateFormat> k4 = StateFormat::kLinear4, k8 = StateFormat::kDynamic8;
  for (const auto& [precision, loco] : {std::pair{kFp32, kLoco}, {kBf16, kLoco}, {kFp16, std::string("{}")}}) {
    const Setting base{.precision = precision, .weights = k8, .gradients = k4, .loco = loco};
    const Curve want = curve_of(Group(), base, 7);
    EXPECT_EQ(want.skipped > 0, precision == kFp16);
    Setting other = base;
    other.bucket_numel = 1100;
    other.overlap = true;
    Setting moved = other;
    moved.own = R"(, "progress_thread": "always")";
    for (const int ranks : {1, 2, 3, 4}) {
      expect_all_ok(spawn(ranks,
                          [&](Group group) {
                            EXPECT_EQ(curve_of(group, base, 7), want) << base.json();
                            EXPECT_EQ(curve_of(group, other, 7), want) << other.json();
                            if (group.size() == 2) {
                              EXPECT_EQ(curve_of(group, moved, 7), want) << moved.json();
                            }
                          },
                          {.timeout = std::chrono::minutes(2)}));
    }
    const OneHostAsSeveral hosts(1);
    expect_all_ok(spawn(2, [&](Group group) { EXPECT_EQ(curve_of(group, base, 7), want); }));
  }
}

/// With updates at other times: in backward those of a step that waits, a step late another curve, of its own.
TEST(QuantizedEverywhere, HasOneCurveWithEachUpdate) {
  Setting base{.weights = StateFormat::kDynamic8, .gradients = StateFormat::kLinear4};
  base.clipping = 0;
  base.batch = 2;
  Setting in_backward = base, delayed = base;
  in_backward.own = R"(, "update": "in_backward")";
  delayed.own = R"(, "update": "delayed")";
  const Curve want = curve_of(Group(), base, 5), want_delayed = curve_of(Group(), delayed, 5);
  EXPECT_NE(want.states, want_delayed.states);
  expect_all_ok(spawn(2, [&](Group group) {
    EXPECT_EQ(curve_of(group, base, 5), want);
    EXPECT_EQ(curve_of(group, in_backward, 5), want);
    EXPECT_EQ(curve_of(group, delayed, 5), want_delayed);
  }));
}

TEST_P(Quantized, AResumedRunIsTheSame) {
  const Setting setting{.weights = StateFormat::kDynamic8, .gradients = StateFormat::kLinear4, .loco = kLoco};
  expect_all_ok(spawn(ranks_, [&](Group group) {
    auto first = make_engine(group, setting);
    train(first, 4);
    first.save_checkpoint(folder_.file("ckpt"));
    train(first, 4);
    auto second = make_engine(group, setting);
    train(second, 2);
    second.load_checkpoint(folder_.file("ckpt"));
    train(second, 4);
    EXPECT_EQ(hash_of_seen(second), hash_of_seen(first));
    EXPECT_EQ(hash_of(second), hash_of(first));
  }));
}

TEST_P(Quantized, ScopesAndFullWeightsAreExact) {
  expect_all_ok(spawn(ranks_, [&](Group group) {
    const Setting setting{.weights = StateFormat::kLinear4};
    auto engine = make_engine(group, setting);
    train(engine, 2);
    at::Tensor& weight = engine.typed_module()->layers[1]->weight;
    const auto used = [&] {
      const at::NoGradGuard no_grad;
      return weight.mul(1);
    };
    const at::Tensor exact = engine.full_weight("layer1.weight"), seen = used();
    EXPECT_FALSE(at::equal(exact, seen));
    EXPECT_TRUE(at::equal(rounded(exact, StateFormat::kLinear4), seen));
    {
      const GatheredParameters scope(engine, {weight});
      EXPECT_TRUE(at::equal(weight, exact));
    }
    EXPECT_TRUE(at::equal(used(), seen));
    {
      // One element is changed; the others keep their exact values.
      const GatheredParameters scope(engine, {weight}, 0);
      const at::NoGradGuard no_grad;
      if (group.rank() == 0) weight[0][0] = 3.0;
    }
    const at::Tensor changed = exact.clone();
    changed[0][0] = 3.0;
    EXPECT_TRUE(at::equal(engine.full_weight("layer1.weight"), changed));
    EXPECT_TRUE(at::equal(used(), rounded(changed, StateFormat::kLinear4)));
    {
      const at::NoGradGuard no_grad;
      expect_said([&] { weight.mul_(0.5); }, "zero_quantized_weights");
    }
    train(engine, 1);
  }));
}

/// Of units only that are not trained when the engine is made: those stay rounded when they are trained later, with the
/// same bits at any number of ranks.
TEST_P(Quantized, FrozenUnitsAloneMayBe) {
  const auto train_unfrozen = [](const Group& group) {
    std::string json = Setting{.weights = StateFormat::kLinear4}.json();
    json.replace(json.find("zero_quantized_weights"), std::string_view("zero_quantized_weights").size(),
                 "zero_quantized_nontrainable_weights");
    Net net = make_net();
    for (at::Tensor& parameter : net->layers[1]->parameters()) parameter.requires_grad_(false);
    auto engine = initialize(net, Config::from_text(json), {.group = group});
    train(engine, 1);
    for (at::Tensor& parameter : net->layers[1]->parameters()) parameter.requires_grad_(true);
    train(engine, 3);
    return std::pair{hash_of_seen(engine), hash_of(engine)};
  };
  const auto want = train_unfrozen(Group());
  expect_all_ok(spawn(ranks_, [&](Group group) { EXPECT_EQ(train_unfrozen(group), want); }));
  expect_all_ok(spawn(ranks_, [&](Group group) {
    std::string json = Setting{.weights = StateFormat::kLinear4}.json();
    json.replace(json.find("zero_quantized_weights"), std::string_view("zero_quantized_weights").size(),
                 "zero_quantized_nontrainable_weights");
    Net net = make_net();
    net->layers[1]->weight.requires_grad_(false);
    net->layers[1]->bias.requires_grad_(false);
    auto engine = initialize(net, Config::from_text(json), {.group = group});
    train(engine, 2);
    const auto is_exact = [&](int layer) {
      const at::NoGradGuard no_grad;
      const auto& weight = engine.typed_module()->layers[static_cast<std::size_t>(layer)]->weight;
      return at::equal(weight.mul(1), engine.full_weight(fmt::format("layer{}.weight", layer)));
    };
    EXPECT_TRUE(is_exact(0));
    EXPECT_FALSE(is_exact(1));
    engine.typed_module()->layers[1]->weight.requires_grad_(true);
    engine.typed_module()->layers[1]->bias.requires_grad_(true);
    train(engine, 2);
    EXPECT_FALSE(is_exact(1));
    EXPECT_TRUE(is_exact(0));
  }));
}

TEST(QuantizedErrors, AreCountedAcrossBlocksThatAreNotFinite) {
  const Setting setting{.stage = 2, .precision = kBf16, .gradients = StateFormat::kLinear4, .loco = kLoco};
  expect_all_ok(spawn(2, [&](Group group) {
    auto engine = make_engine(group, setting);
    train(engine, 1);
    while (engine.global_steps() < 2) {
      const bool bad = engine.micro_steps() % 6 == 3 && engine.rank() == 1;
      const std::int64_t index = engine.micro_steps() * 2 + engine.rank();
      engine.backward(loss_of(engine.typed_module(), index) * (bad ? std::numeric_limits<double>::infinity() : 1.0));
      engine.step();
    }
    EXPECT_EQ(engine.skipped_steps(), 1);
    train(engine, 2);
    EXPECT_EQ(engine.skipped_steps(), 1);
    EXPECT_TRUE(std::isfinite(engine.grad_norm()));
  }));
}

TEST(QuantizedReport, CountsBytesAsTheyAreSent) {
  expect_all_ok(spawn(2, [](Group group) {
    const auto received = [&](const Setting& setting) {
      auto engine = make_engine(group, setting);
      train(engine, 2);
      CommunicationReport report = engine.communication_report();
      report.received_nbytes -= report.control_nbytes;
      return report;
    };
    const CommunicationReport plain = received({.own = R"(, "store": "copying")"}),
                              weights = received({.weights = StateFormat::kDynamic8}),
                              gradients = received({.stage = 2, .gradients = StateFormat::kLinear4});
    EXPECT_EQ(plain.received_nbytes, 4 * (plain.gathered_numel + plain.reduced_numel));
    EXPECT_EQ(weights.gathered_numel, plain.gathered_numel);
    EXPECT_EQ(weights.received_nbytes, weights.gathered_numel / 64 * 68 + 4 * weights.reduced_numel);
    EXPECT_EQ(gradients.received_nbytes, gradients.reduced_numel / 64 * 36 + 4 * gradients.published_numel);
    EXPECT_GT(gradients.reduced_numel, 0);
  }));
}

/// What was lost before still counts when a layer joins those that are trained.
TEST(QuantizedErrors, OutliveNewBuckets) {
  const auto losses = [](const Group& group, bool unfreezes) {
    Net net = make_net();
    for (at::Tensor& parameter : net->layers[3]->parameters()) parameter.requires_grad_(false);
    const Setting setting{.stage = 2, .gradients = StateFormat::kLinear4, .loco = R"({"err_beta": 0.8, "reset_T": 2})"};
    auto engine = initialize(net, Config::from_text(setting.json()), {.group = group});
    train(engine, 3);
    for (at::Tensor& parameter : net->layers[3]->parameters()) parameter.requires_grad_(unfreezes);
    train(engine, 3);
    return std::pair{hash_of_seen(engine), hash_of(engine)};
  };
  const auto want = losses(Group(), true);
  EXPECT_NE(losses(Group(), false), want);
  for (const int ranks : {2, 4})
    expect_all_ok(spawn(ranks, [&](Group group) { EXPECT_EQ(losses(group, true), want); }));
}

TEST(Hpz, IsOneCopyPerHost) {
  const auto json = [](int ranks_per_host) {
    std::string text = Setting{}.json();
    const std::string_view key = R"("zero_quantized_weights": false)";
    return text.replace(text.find(key), key.size(), fmt::format(R"("zero_hpz_partition_size": {})", ranks_per_host));
  };
  const Curve want = curve_of(Group(), {}, 3);
  const OneHostAsSeveral hosts(2);
  expect_all_ok(spawn(4, [&](Group group) {
    auto engine = initialize(make_net(), Config::from_text(json(2)), {.group = group});
    EXPECT_EQ(engine.communication_report().gathers, 0);
    train(engine, 3);
    EXPECT_EQ(engine.communication_report().gathered_numel, 0);
    EXPECT_EQ(hash_of(engine), want.states);
    expect_said([&] { initialize(make_net(), Config::from_text(json(4)), {.group = group}); },
                "there are 4 ranks on 2 hosts");
  }));
}

}  // namespace
}  // namespace zero::testing::quantized_test
