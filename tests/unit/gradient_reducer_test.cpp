// GradientReducer by itself: sums of what ranks add in orders of their own, over every transport of shards.
#include "zero/gradient_reducer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <random>

#include "io/file_system.h"
#include "support/pipe_transport.h"
#include "support/sharded_room.h"
#include "support/spawn.h"
#include "support/temporary_folder.h"

namespace zero::sharding::gradient_reducer_test {
namespace {

using testing::Pipes;
using testing::Room;

constexpr int kMicroBatches = 3;

/// Exact in bf16, as are all sums.
double gradient_of(int parameter, std::int64_t i, int micro_batch, int rank) {
  return static_cast<double>((i + 3 * parameter + 5 * micro_batch + 2 * rank) % 17 - 8);
}

at::Tensor gradient(const Room& room, int p, int micro_batch, int rank) {
  const auto& parameter = room.model.parameters[static_cast<std::size_t>(p)];
  const at::Tensor values = at::empty({parameter.range.numel()});
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.mutable_data_ptr<float>()[i] = static_cast<float>(gradient_of(p, i, micro_batch, rank));
  return values.to(storage::to_scalar_type(room.model.param_dtype));
}

/// A rank leaves a parameter out now and then.
bool uses(int parameter, int micro_batch, int rank) { return (parameter + micro_batch + rank) % 4 != 0; }

void expect_sums(const Room& room, const GradientReducer& reducer) {
  for (std::size_t p = 0; p < room.model.parameters.size(); ++p) {
    const auto& parameter = room.model.parameters[p];
    const Range held = reducer.gradient_range(parameter.unit);
    const Range mine = layout::intersect(parameter.range, held);
    const at::Tensor sums = reducer.accumulated(parameter.unit, mine);
    for (std::int64_t at = mine.begin; at < mine.end; ++at) {
      double want = 0;
      for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
        for (int rank = 0; rank < room.model.world_size(); ++rank) {
          if (uses(static_cast<int>(p), micro_batch, rank))
            want += gradient_of(static_cast<int>(p), at - parameter.range.begin, micro_batch, rank);
        }
      }
      ASSERT_EQ(sums[at - mine.begin].item<float>(), want) << parameter.name << " element " << at;
    }
  }
}

void train(Room& room, bool overlap, std::optional<storage::DiskOptions> disk) {
  GradientReducer reducer(room.model, room.ledger, room.timeline,
                          {.bucket_numel = 1024, .overlap = overlap, .disk = std::move(disk)});
  std::vector<int> order(room.model.parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(static_cast<unsigned>(room.model.rank()));
  for (int window = 0; window < 2; ++window) {
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      std::shuffle(order.begin(), order.end(), random);
      for (const int p : order) {
        if (uses(p, micro_batch, room.model.rank())) reducer.add(p, gradient(room, p, micro_batch, room.model.rank()));
      }
      reducer.finish_micro_batch({});
    }
    reducer.replicate();
    expect_sums(room, reducer);
    reducer.start_window();
  }
}

TEST(GradientReducer, SumsWhatRanksAddInOrdersOfTheirOwnOverEveryTransport) {
  const testing::TemporaryFolder folder;
  for (const bool over_pipes : {false, true}) {
    for (const auto& [ranks, stage] : {std::pair(1, 2), {2, 0}, {2, 2}, {3, 1}, {3, 3}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, stage " << stage << (over_pipes ? ", pipes" : ""));
      const Pipes pipes(ranks);
      testing::expect_all_ok(
          testing::spawn(ranks,
                         [&, ranks = ranks, stage = stage](Group group) {
                           for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
                             auto transport = over_pipes ? testing::make_pipe_transport(pipes, group.rank())
                                                         : comm::make_host_transport(group);
                             Room room({.units = {{900, 70}, {1}, {1300}, {64, 64, 700}},
                                        .sharding = layout::sharding_of_stage(stage),
                                        .param_dtype = dtype},
                                       group, std::move(transport));
                             for (const bool overlap : {true, false}) train(room, overlap, std::nullopt);
                             if (stage > 0 && !over_pipes) {
                               train(room, true,
                                     storage::DiskOptions{.files = &io::system_files(),
                                                          .folder = folder.path(),
                                                          .scratch = {},
                                                          .buffers = 3,
                                                          .cuts = {.slot_numel = layout::kBlockNumel}});
                             }
                             group.barrier({.label = "before the next transport over these pipes"}).wait();
                           }
                         },
                         {.timeout = std::chrono::seconds(60)}));
    }
  }
}

}  // namespace
}  // namespace zero::sharding::gradient_reducer_test
