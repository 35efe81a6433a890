// GradientReducer by itself: sums of what ranks add in orders of their own, over every transport of shards.
#include "sharding/gradient_reducer.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
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
  return values.to(device::to_scalar_type(room.model.param_dtype));
}

/// A rank leaves a parameter out now and then.
bool uses(int parameter, int micro_batch, int rank) { return (parameter + micro_batch + rank) % 4 != 0; }

/// The ranks that add to sums of a unit: of pairs those of this rank's pair.
std::vector<int> ranks_of(const Room& room, int unit) {
  std::vector<int> ranks(static_cast<std::size_t>(room.model.group_of(unit).ranks.size()));
  const bool is_a_pair = room.model.units[static_cast<std::size_t>(unit)].group != 0;
  std::iota(ranks.begin(), ranks.end(), is_a_pair ? room.model.rank() / 2 * 2 : 0);
  return ranks;
}

void expect_sums(const Room& room, const GradientReducer& reducer) {
  for (std::size_t p = 0; p < room.model.parameters.size(); ++p) {
    const auto& parameter = room.model.parameters[p];
    const Range held = reducer.gradient_range(parameter.unit);
    const Range mine = layout::intersect(parameter.range, held);
    const at::Tensor sums = reducer.accumulated(parameter.unit, mine);
    for (std::int64_t at = mine.begin; at < mine.end; ++at) {
      double want = 0;
      for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
        for (const int rank : ranks_of(room, parameter.unit)) {
          if (uses(static_cast<int>(p), micro_batch, rank))
            want += gradient_of(static_cast<int>(p), at - parameter.range.begin, micro_batch, rank);
        }
      }
      ASSERT_EQ(sums[at - mine.begin].item<float>(), want) << parameter.name << " element " << at;
    }
  }
}

void train(Room& room, bool overlap, std::optional<offload::DiskOptions> disk) {
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
                                     offload::DiskOptions{.files = &io::system_files(),
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

/// As of experts: some units are sharded over all ranks and some over pairs. Who waits for its pair may be waited for.
TEST(GradientReducer, SumsOverTheGroupOfEachUnit) {
  for (const bool progress_thread : {false, true}) {
    testing::expect_all_ok(testing::spawn(4,
                                          [&](Group group) {
                                            Group pair = group.split(group.rank() / 2);
                                            if (progress_thread && group.progress_thread_problem().empty()) {
                                              group.set_progress_thread(true);
                                              pair.set_progress_thread(true);
                                            }
                                            Room room(
                                                {.units = {{900, 70}, {2100}, {1300}, {64, 64, 700}, {1}, {1, 3000}},
                                                 .sharding = layout::sharding_of_stage(3)},
                                                group, comm::make_host_transport(group));
                                            room.shard_odd_units_over(pair);
                                            for (int i = 0; i < 5; ++i) {
                                              for (const bool overlap : {true, false})
                                                train(room, overlap, std::nullopt);
                                            }
                                          },
                                          {.timeout = std::chrono::seconds(60)}));
  }
}

/// A rank alone, of whose windows one micro-batch is said to be all.
struct Alone {
  struct OfOneDtype : Room {
    OfOneDtype(Group group, int stage, DType dtype)
        : Room({.units = {{900, 70}, {1}, {1300}, {64, 64, 700}},
                .sharding = layout::sharding_of_stage(stage),
                .param_dtype = dtype},
               group, comm::make_host_transport(group)) {
      model.gradient_dtype = dtype;
    }
  } room;
  GradientReducer reducer;

  Alone(Group group, int stage, DType dtype, bool says_so)
      : room(group, stage, dtype),
        reducer(room.model, room.ledger, room.timeline, {.bucket_numel = 1024, .sums_are_gradients = says_so}) {}

  void add_all(int micro_batch) {
    for (int p = 0; p < static_cast<int>(room.model.parameters.size()); ++p)
      reducer.add(p, gradient(room, p, micro_batch, 0));
  }
  /// All sums and their squares, as they are kept.
  std::string bytes() {
    reducer.complete_sumsq();
    std::string all;
    for (std::size_t u = 0; u < room.model.units.size(); ++u) {
      const int unit = static_cast<int>(u);
      const at::Tensor wide = reducer.accumulated(unit, reducer.gradient_range(unit)).to(at::kFloat).contiguous();
      all.append(static_cast<const char*>(wide.const_data_ptr()), wide.nbytes());
    }
    const auto squares = reducer.shard_block_sumsq();
    return all.append(reinterpret_cast<const char*>(squares.data()), squares.size_bytes());
  }
  std::int64_t nbytes(MemoryKind kind) { return room.ledger.report()[kind].current_nbytes; }
};

TEST(GradientReducer, OneGradientIsItsSumUntilAnotherComes) {
  const std::vector<std::pair<const char*, std::function<void(Alone&)>>> windows = {
      {"one micro-batch",
       [](Alone& alone) {
         alone.add_all(0);
         alone.reducer.finish_micro_batch({});
       }},
      {"with a part that is not used",
       [](Alone& alone) {
         alone.reducer.add(1, gradient(alone.room, 1, 0, 0));
         alone.reducer.finish_micro_batch({});
       }},
      {"a backward that fails, and is run again",
       [](Alone& alone) {
         alone.reducer.begin_backward();
         alone.reducer.add(0, gradient(alone.room, 0, 5, 0));
         EXPECT_TRUE(alone.reducer.undo_backward());
         alone.add_all(0);
         alone.reducer.finish_micro_batch({});
       }},
      {"a second backward while a bucket is incomplete",
       [](Alone& alone) {
         alone.reducer.add(0, gradient(alone.room, 0, 0, 0));
         alone.reducer.add(2, gradient(alone.room, 2, 0, 0));
         alone.reducer.add(2, gradient(alone.room, 2, 1, 0));
         alone.reducer.add(1, gradient(alone.room, 1, 0, 0));
         alone.reducer.finish_micro_batch({});
       }},
      {"two micro-batches after all",
       [](Alone& alone) {
         for (const int micro_batch : {0, 1}) {
           alone.add_all(micro_batch);
           alone.reducer.finish_micro_batch({});
         }
       }},
      {"sums that are scaled",
       [](Alone& alone) {
         alone.add_all(0);
         alone.reducer.finish_micro_batch({});
         alone.reducer.scale_sums(1.0 / 3);
       }},
      {"one micro-batch, later",
       [](Alone& alone) {
         alone.add_all(2);
         alone.reducer.finish_micro_batch({});
       }},
  };
  testing::expect_all_ok(testing::spawn(
      1,
      [&](Group group) {
        for (const int stage : {0, 1, 2}) {
          for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
            for (std::size_t first = 0; first < windows.size(); ++first) {
              Alone told(group, stage, dtype, true), plain(group, stage, dtype, false);
              EXPECT_EQ(told.nbytes(MemoryKind::kBuckets), 0);
              EXPECT_EQ(told.nbytes(MemoryKind::kGradients),
                        told.room.model.padded_numel() * static_cast<std::int64_t>(element_nbytes(dtype)));
              for (std::size_t w = first; w < windows.size(); ++w) {
                for (Alone* const one : {&told, &plain}) windows[w].second(*one);
                EXPECT_EQ(told.bytes(), plain.bytes()) << windows[w].first << ", stage " << stage;
                EXPECT_EQ(told.reducer.reductions(), plain.reducer.reductions());
                for (Alone* const one : {&told, &plain}) one->reducer.start_window();
              }
              if (first + 1 == windows.size()) {
                EXPECT_EQ(told.reducer.sums().dtype(), dtype);
                EXPECT_EQ(told.nbytes(MemoryKind::kBuckets), 0);
                continue;
              }
              EXPECT_EQ(told.reducer.sums().dtype(), DType::kFloat32);
              EXPECT_EQ(told.nbytes(MemoryKind::kGradients), plain.nbytes(MemoryKind::kGradients));
            }
          }
        }
      },
      {.timeout = std::chrono::seconds(60)}));
}

}  // namespace
}  // namespace zero::sharding::gradient_reducer_test
