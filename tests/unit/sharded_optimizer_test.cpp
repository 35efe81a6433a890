// ShardedOptimizer with a rule that it has never heard of: what another optimizer takes is a value.
#include "sharding/sharded_optimizer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/small_floats.h"
#include "optim/update_in_blocks.h"
#include "support/sharded_room.h"
#include "support/spawn.h"

namespace zero::sharding::sharded_optimizer_test {
namespace {

using testing::Room;
using testing::RoomShape;

constexpr std::array kSignStates{optim::StateColumn{"momentum"}};

float sign_of(float value) { return static_cast<float>((value > 0) - (value < 0)); }

/// Steps by the sign of a momentum: one state.
const optim::Rule& sign_momentum() {
  static const optim::Rule rule{
      "SignMomentum", kSignStates, [](const optim::UpdateArgs& args, const optim::Hyper& hyper) {
        auto* const momentum = static_cast<float*>(args.states[0]);
        const auto beta = static_cast<float>(hyper.beta1), lr = static_cast<float>(hyper.lr),
                   scale = static_cast<float>(hyper.gradient_scale);
        optim::update_in_blocks(args, [&](float* weights, std::int64_t begin, std::int64_t numel) {
          for (std::int64_t i = 0; i < numel; ++i) {
            float& m = momentum[begin + i];
            m = beta * m + args.gradient[begin + i] * scale;
            weights[i] -= lr * sign_of(m);
          }
        });
      }};
  return rule;
}

float start_of(int unit, std::int64_t i) { return static_cast<float>(std::sin(0.1 * static_cast<double>(i) + unit)); }
float gradient_of(int unit, std::int64_t i, int step) {
  return static_cast<float>(std::cos(0.3 * static_cast<double>(i) + unit + 2 * step));
}

template <class Value>
at::Tensor filled(std::int64_t numel, Value value) {
  const at::Tensor values = at::empty({numel});
  for (std::int64_t i = 0; i < numel; ++i) values.mutable_data_ptr<float>()[i] = value(i);
  return values;
}

/// Three steps on `ranks` ranks; each compares its shards with a loop over plain floats.
void train(int ranks, int stage, DType dtype, std::int64_t sub_group) {
  testing::expect_all_ok(testing::spawn(
      ranks,
      [&](Group group) {
        Room room({.sharding = layout::sharding_of_stage(stage), .param_dtype = dtype}, group,
                  comm::make_host_transport(group));
        CopyingStoreOptions options;
        options.resident.assign(room.model.units.size(), stage < 3);
        room.store = make_copying_store(room.model, room.ledger, room.timeline, options);
        ShardedOptimizer optimizer(room.model, *room.store, room.ledger,
                                   {.groups = {{.hyper = {.beta1 = 0.5}, .rule = &sign_momentum()}},
                                    .group_of_parameter = std::vector<int>(room.model.parameters.size(), 0),
                                    .sub_group_numel = sub_group});
        ASSERT_EQ(optimizer.find_state("momentum"), 0u);
        EXPECT_FALSE(optimizer.find_state("exp_avg"));
        for (std::size_t u = 0; u < room.model.units.size(); ++u) {
          const int unit = static_cast<int>(u);
          optimizer.load(unit, filled(room.model.units[u].numel, [&](std::int64_t i) { return start_of(unit, i); }));
        }
        room.start();
        for (int step = 0; step < 3; ++step) {
          for (std::size_t u = 0; u < room.model.units.size(); ++u) {
            const int unit = static_cast<int>(u);
            const Range mine = optimizer.update_range(unit);
            if (mine.empty()) continue;
            const at::Tensor gradient =
                filled(mine.numel(), [&](std::int64_t i) { return gradient_of(unit, mine.begin + i, step); });
            optimizer.update_part(unit, mine, gradient, {0.25}, 0.5);
          }
          optimizer.end_step();
          room.store->quiesce();
          room.store->publish(/*frozen_too=*/false);
        }
        for (std::size_t u = 0; u < room.model.units.size(); ++u) {
          const int unit = static_cast<int>(u);
          const Range mine = optimizer.update_range(unit);
          std::vector<float> weights, momentum;
          for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            float w = start_of(unit, i), m = 0;
            for (int step = 0; step < 3; ++step) {
              m = 0.5f * m + gradient_of(unit, i, step) * 0.5f;
              w -= 0.25f * sign_of(m);
            }
            weights.push_back(w);
            momentum.push_back(m);
          }
          if (mine.empty()) continue;
          const auto expected = [&](std::vector<float>& of) { return at::from_blob(of.data(), {mine.numel()}); };
          EXPECT_TRUE(at::equal(optimizer.master_values(unit, mine), expected(weights))) << unit;
          EXPECT_TRUE(at::equal(optimizer.state_values(0, unit, mine), expected(momentum))) << unit;
          room.store->pin({&unit, 1});
          const at::Tensor low = room.store->pinned_view(unit).narrow(0, mine.begin, mine.numel());
          EXPECT_LE((low.to(at::kFloat) - expected(weights)).abs().max().item<float>(),
                    dtype == DType::kFloat32 ? 0 : 0.01)
              << unit;
          room.store->unpin({&unit, 1});
        }
      },
      {.timeout = std::chrono::seconds(60)}));
}

TEST(ShardedOptimizer, TakesARuleThatItHasNeverHeardOf) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int stage : {0, 1, 3}) {
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << ", " << dtype_name(dtype));
        train(ranks, stage, dtype, 1'000'000'000);
      }
    }
  }
  train(2, 3, DType::kBFloat16, 100);
}

}  // namespace
}  // namespace zero::sharding::sharded_optimizer_test
