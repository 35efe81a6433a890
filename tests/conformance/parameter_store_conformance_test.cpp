// What every parameter store has to do, on one to three ranks, in both precisions. A new store joins kStores; so does a
// new transport of shards, with the stores that it serves.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <random>

#include "io/posix_files.h"
#include "support/pipe_transport.h"
#include "support/sharded_room.h"
#include "support/spawn.h"

namespace zero::sharding::parameter_store_conformance_test {
namespace {

using Access = ParameterStore::Access;

using testing::expect_all_ok;
using testing::Room;
using testing::RoomShape;
using testing::spawn;

struct StoreKind {
  const char* name;
  std::unique_ptr<ParameterStore> (*make)(Room& room);
  bool over_pipes = false;
};

CopyingStoreOptions copying_options(const Room& room, bool resident) {
  CopyingStoreOptions options;
  options.resident.assign(room.model.units.size(), resident);
  options.max_live_numel = 6000;
  options.max_reuse_numel = 3000;
  options.prefetch_numel = 5000;
  options.publish_bucket_numel = 1024;
  return options;
}

/// Shards on a disk, in parts of one block: several to a shard, where it begins in the middle of a page.
std::unique_ptr<ParameterStore> make_on_disk(Room& room, io::FileSystem& files) {
  CopyingStoreOptions options = copying_options(room, false);
  options.disk = offload::DiskOptions{
      .files = &files, .folder = ::testing::TempDir(), .scratch = {4096, 4}, .buffers = 3, .cuts = {1024, 1024}};
  return make_copying_store(room.model, room.ledger, room.timeline, std::move(options));
}

io::FileSystem& posix_files() {
  static io::PosixFileSystem files;
  return files;
}

const StoreKind kStores[] = {
    {"NodeShared", [](Room& room) { return make_node_shared_store(room.model, room.ledger, room.timeline); }},
    {"Copying",
     [](Room& room) {
       return make_copying_store(room.model, room.ledger, room.timeline, copying_options(room, false));
     }},
    {"Resident",
     [](Room& room) {
       return make_copying_store(room.model, room.ledger, room.timeline, copying_options(room, true));
     }},
    {"CopyingOverPipes",
     [](Room& room) {
       return make_copying_store(room.model, room.ledger, room.timeline, copying_options(room, false));
     },
     /*over_pipes=*/true},
    {"OnDisk", [](Room& room) { return make_on_disk(room, io::system_files()); }},
    {"OnDiskPosix", [](Room& room) { return make_on_disk(room, posix_files()); }},
    {"ResidentOverPipes",
     [](Room& room) { return make_copying_store(room.model, room.ledger, room.timeline, copying_options(room, true)); },
     /*over_pipes=*/true},
};
void PrintTo(const StoreKind& store, std::ostream* out) { *out << store.name; }

/// Exact in bf16.
double value_of(int unit, std::int64_t element, int generation) {
  return static_cast<double>((element * 7 + unit * 3 + generation * 11) % 101);
}

at::Tensor view_of(const Room& room, void* low, std::int64_t numel) {
  return at::from_blob(low, {numel}, device::to_scalar_type(room.model.param_dtype));
}

at::Tensor values_of(const Room& room, int unit, Range range, int generation) {
  const at::Tensor values = at::empty({range.numel()}, at::kDouble);
  for (std::int64_t i = 0; i < range.numel(); ++i)
    values.mutable_data_ptr<double>()[i] = value_of(unit, range.begin + i, generation);
  return values.to(device::to_scalar_type(room.model.param_dtype));
}

class ParameterStores : public ::testing::TestWithParam<StoreKind> {
 protected:
  /// Runs `check(room)` on each rank of 1 to 3, in both precisions; the store holds generation 0.
  void everywhere(const std::function<void(Room&)>& check, RoomShape shape = {}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      shape.param_dtype = dtype;
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << dtype_name(dtype));
        const testing::Pipes pipes(ranks);
        expect_all_ok(spawn(ranks,
                            [&](Group group) {
                              auto transport = GetParam().over_pipes ? testing::make_pipe_transport(pipes, group.rank())
                                                                     : comm::make_host_transport(group);
                              Room room(shape, group, std::move(transport));
                              room.store = GetParam().make(room);
                              write(room, 0);
                              room.start();
                              check(room);
                            },
                            {.timeout = std::chrono::seconds(60)}));
      }
    }
  }

  /// This rank's part of every unit.
  static void write(Room& room, int generation, bool frozen_too = true) {
    for (std::size_t u = 0; u < room.model.units.size(); ++u) {
      if (!room.model.units[u].trainable && !frozen_too) continue;
      const int unit = static_cast<int>(u);
      room.store->visit(unit, room.store->writable_range(unit), Access::kUpdate, [&](Range piece, void* low) {
        view_of(room, low, piece.numel()).copy_(values_of(room, unit, piece, generation));
      });
    }
  }

  static void expect_whole(Room& room, int unit, int generation, const at::Tensor& seen) {
    const Range whole = room.model.units[unit].whole();
    EXPECT_TRUE(at::equal(seen, values_of(room, unit, whole, generation)))
        << "unit " << unit << ", generation " << generation;
  }

  static void expect_all(Room& room, int generation) {
    for (std::size_t u = 0; u < room.model.units.size(); ++u) {
      const int unit = static_cast<int>(u);
      room.store->pin({&unit, 1});
      expect_whole(room, unit, generation, room.store->pinned_view(unit));
      room.store->unpin({&unit, 1});
    }
  }
};

TEST_P(ParameterStores, EveryRankReadsWhatOwnersHavePublished) {
  everywhere([](Room& room) {
    expect_all(room, 0);
    for (const int generation : {1, 2, 3}) {
      room.store->quiesce();
      room.model.data_ranks.barrier({.label = "all have read"}).wait();
      write(room, generation);
      room.store->publish(/*frozen_too=*/true);
      expect_all(room, generation);
    }
  });
}

/// As layers of experts are: pairs of ranks have other values of them.
TEST(CopyingStores, UnitsOfASmallerGroupAreOfItsRanks) {
  for (const bool resident : {false, true}) {
    SCOPED_TRACE(resident ? "resident" : "gathered");
    expect_all_ok(spawn(4, [&](Group group) {
      Room room({}, group, comm::make_host_transport(group));
      const int pair = group.rank() / 2;
      room.shard_odd_units_over(group.split(pair));
      room.store = make_copying_store(room.model, room.ledger, room.timeline, copying_options(room, resident));
      const auto generation_of = [&](int unit, int step) { return 2 * step + (unit % 2 == 1 ? pair : 0); };
      for (const int step : {0, 1, 2}) {
        for (int unit = 0; unit < static_cast<int>(room.model.units.size()); ++unit) {
          room.store->visit(unit, room.store->writable_range(unit), Access::kUpdate, [&](Range piece, void* low) {
            view_of(room, low, piece.numel()).copy_(values_of(room, unit, piece, generation_of(unit, step)));
          });
        }
        step == 0 ? room.start() : room.store->publish(/*frozen_too=*/true);
        for (int unit = 0; unit < static_cast<int>(room.model.units.size()); ++unit) {
          room.store->pin({&unit, 1});
          EXPECT_TRUE(at::equal(room.store->pinned_view(unit),
                                values_of(room, unit, room.model.units[unit].whole(), generation_of(unit, step))))
              << "unit " << unit << ", step " << step;
          room.store->unpin({&unit, 1});
        }
        room.store->quiesce();
        room.model.data_ranks.barrier({.label = "all have read"}).wait();
      }
    }));
  }
}

TEST_P(ParameterStores, LeasesCoverTheirRangeInOrder) {
  everywhere([](Room& room) {
    for (std::size_t u = 0; u < room.model.units.size(); ++u) {
      const int unit = static_cast<int>(u);
      const Range mine = room.store->writable_range(unit);
      for (const Range range : {mine, Range{mine.begin + mine.numel() / 3, mine.end - mine.numel() / 4}}) {
        std::int64_t next = range.begin;
        room.store->visit(unit, range, Access::kRead, [&](Range piece, void* low) {
          EXPECT_EQ(piece.begin, next);
          EXPECT_GT(piece.numel(), 0);
          EXPECT_TRUE(at::equal(view_of(room, low, piece.numel()), values_of(room, unit, piece, 0)));
          next = piece.end;
        });
        EXPECT_EQ(next, range.end);
        if (void* const there = range.empty() ? nullptr : room.store->in_memory(unit, range)) {
          EXPECT_TRUE(at::equal(view_of(room, there, range.numel()), values_of(room, unit, range, 0)));
        }
      }
    }
  });
}

TEST_P(ParameterStores, WritableRangesAreEveryElementOnce) {
  everywhere([](Room& room) {
    for (std::size_t u = 0; u < room.model.units.size(); ++u) {
      const Range mine = room.store->writable_range(static_cast<int>(u));
      std::int64_t sum = mine.numel();
      if (room.model.world_size() > 1)
        room.model.data_ranks.all_reduce(&sum, 1, DType::kInt64, ReduceOp::kSum, {.label = "elements"}).wait();
      EXPECT_EQ(sum, room.model.units[u].numel);
    }
  });
}

/// Ranks use units in orders of their own, two at a time, in forward and backward.
TEST_P(ParameterStores, WhatIsInUseIsWhole) {
  everywhere([](Room& room) {
    for (int step = 0; step < 6; ++step) {
      std::mt19937 random(static_cast<unsigned>(step * 10 + room.model.rank()));
      for (int i = 0; i < 40; ++i) {
        auto& a = room.model.parameters[random() % room.model.parameters.size()];
        auto& b = room.model.parameters[random() % room.model.parameters.size()];
        for (auto* one : {&a, &b}) room.store->before_use(*one->handle);
        for (auto* one : {&a, &b}) {
          EXPECT_TRUE(at::equal(one->tensor, values_of(room, one->unit, one->range, step))) << one->name;
        }
        for (auto* one : {&a, &b}) room.store->after_use(*one->handle);
      }
      room.store->quiesce();
      room.model.data_ranks.barrier({.label = "all have read"}).wait();
      write(room, step + 1);
      room.store->publish(/*frozen_too=*/true);
    }
  });
}

TEST_P(ParameterStores, WhatOneRankWritesIntoPinnedMemoryReachesAll) {
  everywhere([](Room& room) {
    const int root = room.model.world_size() - 1, parameter = 3, unit = room.model.parameters[parameter].unit;
    const Range range = room.model.parameters[parameter].range;
    room.store->pin({&unit, 1});
    if (room.model.rank() == root)
      room.store->pinned_view(unit).narrow(0, range.begin, range.numel()).copy_(values_of(room, unit, range, 5));
    room.store->broadcast({&parameter, 1}, root);
    room.store->unpin({&unit, 1});
    room.store->pin({&unit, 1});
    const at::Tensor seen = room.store->pinned_view(unit);
    EXPECT_TRUE(at::equal(seen.narrow(0, range.begin, range.numel()), values_of(room, unit, range, 5)));
    EXPECT_TRUE(at::equal(seen.narrow(0, 0, range.begin), values_of(room, unit, {0, range.begin}, 0)));
    room.store->unpin({&unit, 1});
  });
}

TEST_P(ParameterStores, FrozenUnitsAreLeftOutWhereTheyMayBe) {
  everywhere(
      [](Room& room) {
        room.model.data_ranks.barrier({.label = "all have read"}).wait();
        write(room, 1, /*frozen_too=*/false);
        room.store->publish(/*frozen_too=*/false);
        for (std::size_t u = 0; u < room.model.units.size(); ++u) {
          const int unit = static_cast<int>(u);
          room.store->pin({&unit, 1});
          expect_whole(room, unit, room.model.units[u].trainable ? 1 : 0, room.store->pinned_view(unit));
          room.store->unpin({&unit, 1});
        }
      },
      {.frozen = {false, true, false, true}});
}

INSTANTIATE_TEST_SUITE_P(All, ParameterStores, ::testing::ValuesIn(kStores),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace zero::sharding::parameter_store_conformance_test
