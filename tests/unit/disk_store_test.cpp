// States on a disk: what a pass reads and writes, and what becomes of a disk that fails, lies or is full.
#include "offload/disk_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "doubles/faulty_files.h"
#include "doubles/lying_files.h"
#include "doubles/memory_files.h"
#include "layout/state_slots.h"
#include "support/errors.h"
#include "zero/errors.h"

namespace zero::offload::disk_store_test {
namespace {

using layout::Range;
using Access = ShardStore::Access;
using testing::error_of;

constexpr std::int64_t kSlot = 1024, kUnits = 3, kNumel = 5 * kSlot;

std::vector<StoreColumn> columns() { return {{"remainder", 2, 1, MemoryKind::kMaster}, {"a", 4, 1}, {"b", 1, 1}}; }

struct Disk {
  explicit Disk(io::FileSystem& files, int buffers = 4) {
    DiskOptions options{.files = &files, .folder = "/nv"};
    options.cuts = {kSlot};
    options.buffers = buffers;
    store = make_disk_store(options, ledger, columns());
  }
  void add() {
    std::vector<StorePart> parts;
    for (int u = 0; u < kUnits; ++u) parts.push_back({u, {0, kNumel}});
    store->add_units(parts);
  }
  /// Adds 1 to column a of every element, the units in this order.
  void update(std::initializer_list<int> units = {0, 1, 2}) {
    for (const int u : units) {
      store->for_each(u, {0, kNumel}, kNumel, Access::kUpdate, kAllColumns,
                      [](Range piece, std::span<void* const> memory) {
                        auto* const a = static_cast<float*>(memory[1]);
                        for (std::int64_t i = 0; i < piece.numel(); ++i) a[i] += 1;
                      });
    }
  }
  void expect(float value) {
    std::vector<float> a(kNumel);
    for (int u = 0; u < kUnits; ++u) {
      store->read(1, u, {0, kNumel}, a.data());
      EXPECT_EQ(a, std::vector<float>(kNumel, value)) << "unit " << u;
    }
  }

  storage::Ledger ledger;
  std::unique_ptr<DiskStore> store;
};

constexpr std::int64_t kSlotNbytes = 4096 + 4096 + 4096, kFileNbytes = kUnits * 5 * kSlotNbytes;

TEST(DiskStore, WhatIsDiscardedIsZeroAndNotWritten) {
  io::MemoryFileSystem files;
  Disk disk(files);
  disk.add();
  for (int window = 0; window < 3; ++window) {
    disk.update();
    disk.update({2, 1, 0});
    disk.expect(2);
    const std::int64_t written = disk.store->disk_traffic()->written_nbytes;
    disk.store->release();
    const std::int64_t read = disk.store->disk_traffic()->read_nbytes;
    disk.expect(0);
    EXPECT_EQ(disk.store->disk_traffic()->read_nbytes, read);  // zeros are not read
    EXPECT_EQ(disk.store->disk_traffic()->written_nbytes, written);
  }
}

TEST(StateSlots, HoldWholeBlocksOfEveryColumn) {
  const layout::ColumnShape shapes[] = {{2, 1}, {4, 1}, {260, 256}};
  const auto numel = [&](std::int64_t most, std::int64_t part) {
    return layout::slot_cuts(shapes, most, part).slot_numel;
  };
  EXPECT_EQ(numel(1, INT64_MAX / 2), 1024);
  EXPECT_EQ(numel(5000, INT64_MAX / 2), 4096);
  EXPECT_EQ(numel(5000, 1025), 2048);
  EXPECT_EQ(numel(5000, 0), 1024);
  const std::int64_t most = numel(INT64_MAX, INT64_MAX / 2);
  EXPECT_EQ(most % 1024, 0);
  EXPECT_LE(layout::slot_nbytes(shapes, ~0u, most), layout::kSlotNbytes + 3 * 4096);
  EXPECT_GT(layout::slot_nbytes(shapes, ~0u, most + 2048), layout::kSlotNbytes);
  EXPECT_EQ(layout::column_nbytes(shapes[2], 1024), 4096);
  EXPECT_EQ(layout::slot_nbytes(shapes, 0b101u, 2048), 4096 + 4096);
  EXPECT_EQ(layout::slots_nbytes(shapes, {{0, 2500}, 0b010u}, {1024}), 3 * 4096);
}

TEST(StateSlots, EndWherePiecesDo) {
  const auto ends = [](const layout::ColumnsPart& part, const layout::SlotCuts& cuts) {
    std::vector<std::int64_t> found;
    for (std::int64_t begin = part.range.begin; begin < part.range.end; begin = found.back())
      found.push_back(layout::slot_end(cuts, part, begin));
    return found;
  };
  using Ends = std::vector<std::int64_t>;
  EXPECT_EQ(ends({{1024, 9000}, 1}, {3072}), (Ends{4096, 7168, 9000}));
  // Pieces of 5 blocks in slots of at most 3: 3 and 2.
  EXPECT_EQ(ends({{1024, 12000}, 1, 5120}, {3072}), (Ends{3072, 5120, 8192, 10240, 12000}));
  EXPECT_EQ(ends({{0, 4096}, 1, 1024}, {3072}), (Ends{1024, 2048, 3072, 4096}));
  // Where no slot can end there: as without.
  EXPECT_EQ(ends({{64, 4096}, 1, 1024}, {3072}), (Ends{3136, 4096}));
  EXPECT_EQ(ends({{0, 4096}, 1, 1024}, {2048, 2048}), (Ends{2048, 4096}));
}

TEST(StateSlots, PartsGoFromColumnsToOtherColumns) {
  const layout::ParameterColumns parameters[] = {{0, 3}, {100, 3}, {200, 1}, {200, 7}, {300, 3}};
  const auto parts = [&](Range range) {
    std::vector<std::tuple<std::int64_t, std::int64_t, std::uint32_t>> found;
    for (const auto& part : layout::columns_parts(parameters, range, 9))
      found.emplace_back(part.range.begin, part.range.end, part.columns);
    return found;
  };
  using Found = decltype(parts({0, 0}));
  EXPECT_EQ(parts({0, 1024}), (Found{{0, 200, 3}, {200, 300, 7}, {300, 1024, 3}}));
  EXPECT_EQ(parts({50, 250}), (Found{{50, 200, 3}, {200, 250, 7}}));
  EXPECT_EQ(parts({40, 40}), (Found{{40, 40, 9}}));
}

TEST(DiskStore, APassReadsAndWritesEverythingOnce) {
  io::MemoryFileSystem files;
  files.make_folders("/nv");
  Disk disk(files);
  disk.add();
  EXPECT_EQ(disk.ledger.report().nvme_nbytes, kFileNbytes);
  EXPECT_EQ(disk.ledger.report()[MemoryKind::kOffload].current_nbytes, 4 * kSlotNbytes);
  disk.update();  // zeros are not read, but what comes after the last slot may be
  EXPECT_LE(disk.store->disk_traffic()->read_nbytes, 2 * kSlotNbytes);
  disk.update();
  disk.update({2, 1, 0});  // another order is followed from the second time on
  disk.update({2, 1, 0});
  DiskTraffic before = *disk.store->disk_traffic();
  disk.update({2, 1, 0});
  disk.update({2, 1, 0});
  // What is in memory at the end of one pass begins the next one, or is written with it.
  const DiskTraffic after = *disk.store->disk_traffic();
  EXPECT_EQ(after.read_nbytes - before.read_nbytes, 2 * kFileNbytes);
  EXPECT_EQ(after.written_nbytes - before.written_nbytes, 2 * kFileNbytes);
  disk.expect(6);
  // A column alone.
  before = *disk.store->disk_traffic();
  disk.expect(6);
  EXPECT_LE(disk.store->disk_traffic()->read_nbytes - before.read_nbytes, kUnits * 5 * 4096);
}

TEST(DiskStore, MoreBuffersThanSlots) {
  io::MemoryFileSystem files;
  files.make_folders("/nv");
  Disk disk(files, 40);
  disk.add();
  for (int i = 1; i <= 4; ++i) {
    disk.update();
    disk.expect(static_cast<float>(i));
  }
  EXPECT_EQ(disk.store->disk_traffic()->read_nbytes, 0);
}

TEST(DiskStore, AFullDiskIsSaidBeforeAnythingIsKept) {
  io::MemoryFileSystem files;
  files.make_folders("/nv");
  files.set_free_nbytes(kFileNbytes - 1);
  Disk disk(files);
  const std::string error = error_of<IoError>([&] { disk.add(); });
  EXPECT_NE(error.find("/nv"), std::string::npos) << error;
  EXPECT_NE(error.find("No space left"), std::string::npos) << error;
  EXPECT_EQ(disk.ledger.report().nvme_nbytes, 0);
  files.set_free_nbytes(kFileNbytes);
  disk.add();
  disk.update();
  disk.expect(1);
}

TEST(DiskStore, EveryFailingRequestIsAnErrorThatStays) {
  io::MemoryFileSystem memory;
  memory.make_folders("/nv");
  std::uint64_t reads = 0, writes = 0;
  const auto run = [&](io::FaultyFileSystem& files) {
    Disk disk(files);
    disk.add();
    for (int i = 1; i <= 3; ++i) disk.update();
    disk.expect(3);
  };
  {
    io::FaultyFileSystem files(memory);
    run(files);
    reads = files.read_count(), writes = files.count();
  }
  ASSERT_GT(reads, 20u);
  ASSERT_GT(writes, 40u);
  for (std::uint64_t index = 0; index < reads + writes; ++index) {
    io::FaultyFileSystem files(memory);
    if (index < reads) {
      files.fail_read(index, EIO);
    } else {
      files.fail_mutation(index - reads, index % 2 ? EIO : ENOSPC);
    }
    std::unique_ptr<Disk> disk;
    const std::string error = error_of<IoError>([&] {
      disk = std::make_unique<Disk>(files);
      disk->add();
      for (int i = 1; i <= 3; ++i) disk->update();
      disk->expect(3);
    });
    ASSERT_TRUE(files.happened()) << index;
    if (error.empty()) {
      // What was read ahead at the end, and nobody has needed.
      EXPECT_TRUE(index < reads && index + 4 >= reads) << "request " << index << " failed in silence";
      continue;
    }
    EXPECT_NE(error.find("/nv"), std::string::npos) << error;
    if (!disk->store->disk_traffic()->written_nbytes) continue;  // it did not begin
    EXPECT_NE(error.find("of unit "), std::string::npos) << error;
    EXPECT_NE(error_of<IoError>([&] { disk->update(); }), "") << "request " << index;
  }
}

TEST(DiskStore, BytesThatTheDiskGivesBackOtherwiseAreNotUsed) {
  io::MemoryFileSystem memory;
  memory.make_folders("/nv");
  int lies = 0, found = 0;
  for (std::uint64_t index = 0; index < 40; ++index) {
    io::LyingFileSystem files(memory, index);
    Disk disk(files);
    disk.add();
    const std::string error = error_of<IoError>([&] {
      for (int i = 1; i <= 3; ++i) disk.update();
      disk.expect(3);
    });
    lies += files.has_lied();
    found += !error.empty();
    if (error.empty()) continue;
    for (const char* part : {"/nv", "checksum of ", "last checkpoint", "of unit "})
      EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_NE(error_of<IoError>([&] { disk.update(); }), "");
  }
  EXPECT_EQ(lies, 40);
  EXPECT_EQ(found, 40);
}

}  // namespace
}  // namespace zero::offload::disk_store_test
