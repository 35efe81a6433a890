// What every shard store has to do. A new one joins kStores; the last here is a toy that keeps elements in files of a
// folder.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "comm/transport.h"
#include "offload/disk_store.h"
#include "offload/shard_store.h"
#include "offload/shared_store.h"
#include "offload/split_store.h"
#include "support/simulated_device.h"
#include "support/temporary_folder.h"

namespace zero::offload::shard_store_conformance_test {
namespace {

using layout::Range;
using zero::testing::TemporaryFolder;

/// A file for every column of a unit; pieces are read before a visit and written after it.
class FolderStore final : public ShardStore {
 public:
  FolderStore(std::string folder, std::vector<StoreColumn> columns)
      : ShardStore(std::move(columns)), folder_(std::move(folder)) {}

  void add_units(std::span<const StorePart> parts) override {
    for (const StorePart& part : parts) {
      ranges_[part.unit] = part.range;
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        const std::string zeros(size(c, part.range.numel()), '\0');
        std::ofstream(path(c, part.unit), std::ios::binary) << zeros;
      }
    }
  }
  void for_each(int unit, Range range, std::int64_t most_numel, Access access, std::uint32_t wanted,
                Visit visit) override {
    for (std::int64_t begin = range.begin; begin < range.end; begin += most_numel) {
      const Range piece{begin, std::min(range.end, begin + most_numel)};
      const auto is_wanted = [&](std::size_t c) { return (wanted >> c & 1u) != 0; };
      std::vector<std::vector<char>> memory;
      std::vector<void*> columns;
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        memory.emplace_back(size(c, piece.numel()));
        read(c, unit, piece, memory.back().data());
      }
      for (std::size_t c = 0; c < memory.size(); ++c) columns.push_back(is_wanted(c) ? memory[c].data() : nullptr);
      visit(piece, columns);
      for (std::size_t c = 0; access == Access::kUpdate && c < columns_.size(); ++c)
        if (is_wanted(c)) write(c, unit, piece, memory[c].data());
    }
  }
  void read(std::size_t column, int unit, Range range, void* out) const override {
    std::ifstream file(path(column, unit), std::ios::binary);
    file.seekg(columns_[column].nbytes(range.begin - ranges_.at(unit).begin));
    file.read(static_cast<char*>(out), columns_[column].nbytes(range.numel()));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    std::fstream file(path(column, unit), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(columns_[column].nbytes(range.begin - ranges_.at(unit).begin));
    file.write(static_cast<const char*>(in), columns_[column].nbytes(range.numel()));
  }
  void* in_memory(std::size_t, int, Range) const override { return nullptr; }
  void clear() override {
    for (const auto& [unit, range] : ranges_) {
      const StorePart part{unit, range};
      add_units({&part, 1});
    }
  }

 private:
  std::size_t size(std::size_t column, std::int64_t numel) const {
    return static_cast<std::size_t>(columns_[column].nbytes(numel));
  }
  std::string path(std::size_t column, int unit) const {
    return folder_ + "/" + columns_[column].name + std::to_string(unit);
  }
  std::string folder_;
  std::map<int, Range> ranges_;
};

struct Made {
  std::unique_ptr<TemporaryFolder> folder;
  std::unique_ptr<storage::Ledger> ledger = std::make_unique<storage::Ledger>();
  std::unique_ptr<ShardStore> store;
};

const std::vector<StoreColumn> kThreeColumns = {
    {"remainder", 2, 1, MemoryKind::kMaster}, {"a", 4, 1, MemoryKind::kOptimizer}, {"b", 4, 1, MemoryKind::kOptimizer}};
const std::vector<StoreColumn> kOneColumn = {{"a", 4, 1, MemoryKind::kParameters}};
constexpr StorePart kParts[] = {{0, {0, 1024}}, {3, {2048, 5120}}, {4, {1024, 1024}}};

struct StoreKind {
  const char* name;
  Made (*make)(std::vector<StoreColumn> columns);
  const std::vector<StoreColumn>& columns = kThreeColumns;
};
void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }

/// Of one rank, to which everything belongs.
UnitCuts whole_units() { return {{0, 1024}, {0, 0}, {0, 0}, {2048, 5120}, {1024, 1024}}; }

Made make_disk(std::vector<StoreColumn> columns, std::int64_t slot_numel, int buffers) {
  Made made{.folder = std::make_unique<TemporaryFolder>()};
  DiskOptions options{.files = &io::system_files(), .folder = made.folder->path()};
  options.scratch = {.block_nbytes = 8192, .queue_depth = 2};
  options.cuts = {slot_numel};
  options.buffers = buffers;
  made.store = make_disk_store(options, *made.ledger, std::move(columns));
  return made;
}

Made make_memory(std::vector<StoreColumn> columns, Reach reach) {
  Made made;
  const storage::Home home(c10::kCPU, comm::make_host_transport(Group()));
  made.store = make_memory_store(home, *made.ledger, std::move(columns), reach);
  return made;
}

const StoreKind kStores[] = {
    {"Memory", [](std::vector<StoreColumn> columns) { return make_memory(std::move(columns), Reach::kPrivate); }},
    {"ReadableMemory",
     [](std::vector<StoreColumn> columns) { return make_memory(std::move(columns), Reach::kReadable); }},
    {"Blocks",
     [](std::vector<StoreColumn> columns) {
       Made made;
       made.store = make_block_store(*made.ledger, std::move(columns));
       return made;
     }},
    {"Split",
     [](std::vector<StoreColumn> columns) {
       testing::simulated::start({.seed = 3});
       Made made;
       const storage::Home home(c10::kCPU, comm::make_host_transport(Group()));
       made.store = make_split_store(home, testing::simulated::device(), *made.ledger, std::move(columns),
                                     {false, false, false, true, false});
       return made;
     }},
    {"Mapped",
     [](std::vector<StoreColumn> columns) {
       Made made;
       Group group;
       made.store = make_mapped_store(group, *made.ledger, columns[0], whole_units());
       return made;
     },
     kOneColumn},
    {"Disk", [](std::vector<StoreColumn> columns) { return make_disk(std::move(columns), 1024, 3); }},
    {"DiskInLargeSlots", [](std::vector<StoreColumn> columns) { return make_disk(std::move(columns), 4096, 5); }},
    {"Folder",
     [](std::vector<StoreColumn> columns) {
       Made made{.folder = std::make_unique<TemporaryFolder>()};
       made.store = std::make_unique<FolderStore>(made.folder->path(), std::move(columns));
       return made;
     }},
};

class ShardStores : public ::testing::TestWithParam<StoreKind> {
 protected:
  const std::vector<StoreColumn>& columns_ = GetParam().columns;
  const std::size_t last_ = columns_.size() - 1;  ///< of fp32, as the one before it where there are several
  Made made_ = GetParam().make(columns_);
  ShardStore& store_ = *made_.store;

  void add(std::span<const StorePart> parts) {
    store_.add_units(parts);
    for (const StorePart& part : parts) store_.hold(part.unit);
  }
  std::size_t any_column(std::mt19937& random) const { return last_ == 0 ? 0 : 1 + random() % 2; }

  std::vector<float> read(std::size_t column, int unit, Range range) const {
    std::vector<float> values(static_cast<std::size_t>(range.numel()), -1.0f);
    made_.store->read(column, unit, range, values.data());
    return values;
  }
};

TEST_P(ShardStores, BeginWithZeros) {
  add(kParts);
  EXPECT_EQ(read(last_, 0, {0, 1024}), std::vector<float>(1024, 0.0f));
  EXPECT_EQ(read(last_, 3, {2100, 2110}), std::vector<float>(10, 0.0f));
  if (columns_[0].block_nbytes != 2) return;
  std::uint16_t bits = 7;
  store_.read(0, 3, {5119, 5120}, &bits);
  EXPECT_EQ(bits, 0);
}

TEST_P(ShardStores, PiecesFollowEachOtherAndAreNoLargerThanAsked) {
  add(kParts);
  for (const std::int64_t most : {1, 100, 1024, 3000, 100000}) {
    std::int64_t next = 2050;
    store_.for_each(3, {2050, 5000}, most, ShardStore::Access::kRead, kAllColumns,
                    [&](Range piece, std::span<void* const> memory) {
                      EXPECT_EQ(piece.begin, next);
                      EXPECT_GT(piece.numel(), 0);
                      EXPECT_LE(piece.numel(), most);
                      EXPECT_EQ(memory.size(), columns_.size());
                      next = piece.end;
                    });
    EXPECT_EQ(next, 5000);
  }
  store_.for_each(3, {3000, 3000}, 10, ShardStore::Access::kUpdate, kAllColumns,
                  [](Range, std::span<void* const>) { FAIL() << "an empty range"; });
}

/// Against plain arrays, over random updates, reads and writes.
TEST_P(ShardStores, KeepWhatVisitsLeaveAndWhatIsWritten) {
  add(kParts);
  std::map<std::pair<int, std::size_t>, std::vector<float>> plain;
  for (const StorePart& part : kParts) {
    for (std::size_t c = 0; c <= last_; ++c) plain[{part.unit, c}].assign(5120, 0.0f);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const StorePart& part = kParts[random() % 2];
    const auto any = [&] { return part.range.begin + static_cast<std::int64_t>(random() % (part.range.numel() + 1)); };
    const auto [begin, end] = std::minmax({any(), any()});
    const Range range{begin, end};
    const std::size_t column = any_column(random);
    auto& expected = plain[{part.unit, column}];
    const float value = static_cast<float>(i + 1);
    if (random() % 2) {
      store_.for_each(part.unit, range, 1 + static_cast<std::int64_t>(random() % 2000), ShardStore::Access::kUpdate,
                      1u << column, [&](Range piece, std::span<void* const> memory) {
                        if (last_ != 0) {
                          EXPECT_EQ(memory[3 - column], nullptr);
                        }
                        auto* const values = static_cast<float*>(memory[column]);
                        for (std::int64_t k = 0; k < piece.numel(); ++k) values[k] += value;
                      });
      for (std::int64_t k = range.begin; k < range.end; ++k) expected[k] += value;
    } else {
      const std::vector<float> values(static_cast<std::size_t>(range.numel()), value);
      store_.write(column, part.unit, range, values.data());
      std::fill(expected.begin() + range.begin, expected.begin() + range.end, value);
    }
    ASSERT_EQ(read(column, part.unit, part.range),
              std::vector<float>(expected.begin() + part.range.begin, expected.begin() + part.range.end))
        << "after " << i + 1;
  }
}

TEST_P(ShardStores, UnitsThatComeLaterLeaveOthersAlone) {
  add({kParts, 1});
  const std::vector<float> values(1024, 5.0f);
  store_.write(last_, 0, {0, 1024}, values.data());
  add({kParts + 1, 2});
  EXPECT_EQ(read(last_, 0, {0, 1024}), values);
  EXPECT_EQ(read(last_, 3, {2048, 2058}), std::vector<float>(10, 0.0f));
}

TEST_P(ShardStores, WhatIsInMemoryIsTheSame) {
  add(kParts);
  const std::vector<float> values(10, 3.0f);
  store_.write(last_, 3, {2100, 2110}, values.data());
  const void* const there = store_.in_memory(last_, 3, {2100, 2110});
  if (!there) GTEST_SKIP() << "not always in memory";
  EXPECT_EQ(std::vector<float>(static_cast<const float*>(there), static_cast<const float*>(there) + 10), values);
  std::map<MemoryKind, std::int64_t> nbytes;
  for (const StoreColumn& column : columns_) nbytes[column.kind] += column.nbytes(1024 + 3072);
  for (const auto& [kind, wanted] : nbytes) EXPECT_EQ(made_.ledger->report()[kind].current_nbytes, wanted);
}

/// As sums of gradients do, window by window.
TEST_P(ShardStores, ClearedElementsAreZerosAndReleasedUnitsAreHeldAgain) {
  add(kParts);
  const std::vector<float> values(3072, 3.0f);
  for (int window = 0; window < 3; ++window) {
    store_.write(last_, 3, {2048, 5120}, values.data());
    store_.clear();
    EXPECT_EQ(read(last_, 3, {2048, 5120}), std::vector<float>(3072, 0.0f));
    EXPECT_EQ(read(last_, 0, {0, 1024}), std::vector<float>(1024, 0.0f));
    store_.release();
    store_.hold(3);
    store_.write(last_, 3, {2048, 5120}, values.data());
    store_.hold(3);
    EXPECT_EQ(read(last_, 3, {2048, 5120}), values);
    store_.release();
    for (const StorePart& part : kParts) store_.hold(part.unit);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardStores, ::testing::ValuesIn(kStores),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace zero::offload::shard_store_conformance_test
