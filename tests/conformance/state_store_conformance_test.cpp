// What every home of optimizer states has to do. A new home joins kHomes; the last here is a toy that keeps states in
// files of a folder.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "comm/transport.h"
#include "offload/disk_states.h"
#include "offload/state_store.h"
#include "support/temporary_folder.h"

namespace zero::offload::state_store_conformance_test {
namespace {

using layout::Range;
using zero::testing::TemporaryFolder;

/// A file for every column of a unit; pieces are read before a visit and written after it.
class FolderStates final : public StateStore {
 public:
  FolderStates(std::string folder, std::vector<StateColumn> columns)
      : StateStore(std::move(columns)), folder_(std::move(folder)) {}

  void add_units(std::span<const StatePart> parts) override {
    for (const StatePart& part : parts) {
      begin_[part.unit] = part.range.begin;
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
    file.seekg(columns_[column].nbytes(range.begin - begin_.at(unit)));
    file.read(static_cast<char*>(out), columns_[column].nbytes(range.numel()));
  }
  void write(std::size_t column, int unit, Range range, const void* in) override {
    std::fstream file(path(column, unit), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(columns_[column].nbytes(range.begin - begin_.at(unit)));
    file.write(static_cast<const char*>(in), columns_[column].nbytes(range.numel()));
  }
  void* in_memory(std::size_t, int, Range) const override { return nullptr; }

 private:
  std::size_t size(std::size_t column, std::int64_t numel) const {
    return static_cast<std::size_t>(columns_[column].nbytes(numel));
  }
  std::string path(std::size_t column, int unit) const {
    return folder_ + "/" + columns_[column].name + std::to_string(unit);
  }
  std::string folder_;
  std::map<int, std::int64_t> begin_;
};

struct Made {
  std::unique_ptr<TemporaryFolder> folder;
  std::unique_ptr<storage::Ledger> ledger = std::make_unique<storage::Ledger>();
  std::unique_ptr<StateStore> store;
};

struct HomeKind {
  const char* name;
  Made (*make)(std::vector<StateColumn> columns);
};
void PrintTo(const HomeKind& home, std::ostream* out) { *out << home.name; }

Made make_disk(std::vector<StateColumn> columns, std::int64_t slot_numel, int buffers) {
  Made made{.folder = std::make_unique<TemporaryFolder>()};
  DiskOptions options{.files = &io::system_files(), .folder = made.folder->path()};
  options.scratch = {.block_nbytes = 8192, .queue_depth = 2};
  options.cuts = {slot_numel};
  options.buffers = buffers;
  made.store = make_disk_states(options, *made.ledger, std::move(columns));
  return made;
}

const HomeKind kHomes[] = {
    {"Memory",
     [](std::vector<StateColumn> columns) {
       Made made;
       const storage::Home home(c10::kCPU, comm::make_host_transport(Group()));
       made.store = make_memory_states(home, *made.ledger, std::move(columns));
       return made;
     }},
    {"Disk", [](std::vector<StateColumn> columns) { return make_disk(std::move(columns), 1024, 3); }},
    {"DiskInLargeSlots", [](std::vector<StateColumn> columns) { return make_disk(std::move(columns), 4096, 5); }},
    {"Folder",
     [](std::vector<StateColumn> columns) {
       Made made{.folder = std::make_unique<TemporaryFolder>()};
       made.store = std::make_unique<FolderStates>(made.folder->path(), std::move(columns));
       return made;
     }},
};

const std::vector<StateColumn> kColumns = {
    {"remainder", 2, 1, MemoryKind::kMaster}, {"a", 4, 1, MemoryKind::kOptimizer}, {"b", 4, 1, MemoryKind::kOptimizer}};
constexpr StatePart kParts[] = {{0, {0, 1024}}, {3, {2048, 5120}}, {4, {1024, 1024}}};

class StateHomes : public ::testing::TestWithParam<HomeKind> {
 protected:
  Made made_ = GetParam().make(kColumns);
  StateStore& store_ = *made_.store;

  std::vector<float> read(std::size_t column, int unit, Range range) const {
    std::vector<float> values(static_cast<std::size_t>(range.numel()), -1.0f);
    made_.store->read(column, unit, range, values.data());
    return values;
  }
};

TEST_P(StateHomes, BeginWithZeros) {
  store_.add_units(kParts);
  EXPECT_EQ(read(1, 0, {0, 1024}), std::vector<float>(1024, 0.0f));
  EXPECT_EQ(read(2, 3, {2100, 2110}), std::vector<float>(10, 0.0f));
  std::uint16_t bits = 7;
  store_.read(0, 3, {5119, 5120}, &bits);
  EXPECT_EQ(bits, 0);
}

TEST_P(StateHomes, PiecesFollowEachOtherAndAreNoLargerThanAsked) {
  store_.add_units(kParts);
  for (const std::int64_t most : {1, 100, 1024, 3000, 100000}) {
    std::int64_t next = 2050;
    store_.for_each(3, {2050, 5000}, most, StateStore::Access::kRead, kAllColumns,
                    [&](Range piece, std::span<void* const> memory) {
                      EXPECT_EQ(piece.begin, next);
                      EXPECT_GT(piece.numel(), 0);
                      EXPECT_LE(piece.numel(), most);
                      EXPECT_EQ(memory.size(), kColumns.size());
                      next = piece.end;
                    });
    EXPECT_EQ(next, 5000);
  }
  store_.for_each(3, {3000, 3000}, 10, StateStore::Access::kUpdate, kAllColumns,
                  [](Range, std::span<void* const>) { FAIL() << "an empty range"; });
}

/// Against plain arrays, over random updates, reads and writes.
TEST_P(StateHomes, KeepWhatVisitsLeaveAndWhatIsWritten) {
  store_.add_units(kParts);
  std::map<std::pair<int, std::size_t>, std::vector<float>> plain;
  for (const StatePart& part : kParts) {
    for (const std::size_t column : {1, 2}) plain[{part.unit, column}].assign(5120, 0.0f);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const StatePart& part = kParts[random() % 2];
    const auto any = [&] { return part.range.begin + static_cast<std::int64_t>(random() % (part.range.numel() + 1)); };
    const auto [begin, end] = std::minmax({any(), any()});
    const Range range{begin, end};
    const std::size_t column = 1 + random() % 2;
    auto& expected = plain[{part.unit, column}];
    const float value = static_cast<float>(i + 1);
    if (random() % 2) {
      store_.for_each(part.unit, range, 1 + static_cast<std::int64_t>(random() % 2000), StateStore::Access::kUpdate,
                      1u << column, [&](Range piece, std::span<void* const> memory) {
                        EXPECT_EQ(memory[3 - column], nullptr);
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

TEST_P(StateHomes, UnitsThatComeLaterLeaveOthersAlone) {
  store_.add_units({kParts, 1});
  const std::vector<float> values(1024, 5.0f);
  store_.write(1, 0, {0, 1024}, values.data());
  store_.add_units({kParts + 1, 2});
  EXPECT_EQ(read(1, 0, {0, 1024}), values);
  EXPECT_EQ(read(1, 3, {2048, 2058}), std::vector<float>(10, 0.0f));
}

TEST_P(StateHomes, WhatIsInMemoryIsTheSame) {
  store_.add_units(kParts);
  const std::vector<float> values(10, 3.0f);
  store_.write(2, 3, {2100, 2110}, values.data());
  const void* const there = store_.in_memory(2, 3, {2100, 2110});
  if (!there) GTEST_SKIP() << "not always in memory";
  EXPECT_EQ(std::vector<float>(static_cast<const float*>(there), static_cast<const float*>(there) + 10), values);
  EXPECT_EQ(made_.ledger->report()[MemoryKind::kMaster].current_nbytes, (1024 + 3072) * 2);
  EXPECT_EQ(made_.ledger->report()[MemoryKind::kOptimizer].current_nbytes, (1024 + 3072) * 8);
}

INSTANTIATE_TEST_SUITE_P(All, StateHomes, ::testing::ValuesIn(kHomes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace zero::offload::state_store_conformance_test
