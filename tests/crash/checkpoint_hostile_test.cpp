// Checkpoints that somebody made to do harm: refused, without taking stack or memory for what they only
// claim. What fuzzers found (tests/fuzz), and what is too large for them. And one of version 1, which stays
// readable.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "checkpoint/json_text.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tools.h"
#include "doubles/memory_files.h"
#include "io/posix_files.h"
#include "support/checkpoint_room.h"
#include "zero/errors.h"

namespace zero::testing::checkpoint_hostile_test {
namespace {

using namespace checkpoint;

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

template <class Work>
std::string refusal_of(Work work) {
  try {
    work();
    return "";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

/// A manifest's text with another member and the right checksum, whatever it holds.
std::string with_member(const std::string& name, const std::string& json) {
  const std::string member = '"' + name + "\":";
  std::string text = to_text(Manifest());
  const auto at = text.find(member) + member.size();
  text.replace(at, text.find(',', at) - at, json);
  text.resize(text.rfind(':') + 1);  // that of "checksum"
  return text + '"' + to_hex(checksum_of(std::string_view(text))) + "\"}\n";
}

std::string with_client_state(const std::string& json) { return with_member("client_state", json); }

void put(io::MemoryFileSystem& files, const std::string& path, std::string_view text) {
  if (files.kind(path) == io::FileKind::kNone) files.create(path)->close();
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  files.set_bytes(path, {bytes.begin(), bytes.end()});
}

TEST(HostileCheckpoint, NestingIsBounded) {
  EXPECT_EQ(refusal_of([] { parse_manifest(with_client_state(nested(kMaxJsonDepth - 1)), "m"); }), "");
  for (const std::size_t depth : {std::size_t{kMaxJsonDepth}, std::size_t{1'000'000}}) {
    EXPECT_NE(refusal_of([&] { parse_manifest(with_client_state(nested(depth)), "m"); }), "");
    EXPECT_NE(refusal_of([&] { parse_rank_part(nested(depth), "n"); }), "");
    const std::string header = R"({"a":{"dtype":)" + nested(depth) + R"(,"shape":[],"data_offsets":[0,0]}})";
    EXPECT_NE(refusal_of([&] { parse_safetensors_header(header, header.size() + 8, "f"); }), "");
  }
  // Brackets in strings are none.
  const std::string brackets = '"' + std::string(1000, '[') + R"(\"[[)" + '"';
  EXPECT_EQ(parse_manifest(with_client_state(brackets), "m").client_state, brackets);
}

TEST(HostileCheckpoint, AnotherVersionIsRefusedByItsNumber) {
  for (const char* version : {"1", "2"})
    EXPECT_EQ(refusal_of([&] { parse_manifest(with_member("version", version), "m"); }), "");
  for (const char* version : {"3", "0", "999999"}) {
    const std::string text = refusal_of([&] { parse_manifest(with_member("version", version), "m"); });
    EXPECT_EQ(text, std::string("'m' is of format version ") + version +
                        ", this build reads versions 1 to 2; use the zerotorch that wrote it");
  }
  const std::string other = refusal_of([] { parse_manifest(with_member("format", "\"theirs\""), "m"); });
  EXPECT_NE(other.find("it is of another format"), std::string::npos) << other;
}

// tests/data/checkpoint_<V> is what save_step_together(files, 2, 1) wrote with version V of the format: whatever later
// builds write, this they read.
void read_frozen(int version, std::size_t tensors) {
  io::PosixFileSystem disk;
  io::MemoryFileSystem files;
  const std::string from = std::string(ZERO_SOURCE_DIR) + "/tests/data/checkpoint_" + std::to_string(version);
  files.make_folders("ckpt/step1");
  for (const char* name :
       {"latest", "step1/manifest.json", "step1/rank_00000.safetensors", "step1/rank_00001.safetensors"}) {
    put(files, std::string("ckpt/") + name, io::read_text(disk, io::join(from, name), 1 << 20));
  }
  EXPECT_EQ(read_step(files, ""), 1);
  const Found found = find_checkpoint(files, "ckpt", "");
  EXPECT_EQ(found.manifest.world_size, 2);
  ASSERT_EQ(found.manifest.tensors.size(), tensors);
  const auto want = room_tensors();
  for (std::size_t t = 0; t < tensors; ++t) {
    const TensorInfo& info = found.manifest.tensors[t].info;
    EXPECT_EQ(info.key(), want[t].key());
    EXPECT_EQ(info.shape, want[t].shape);
    EXPECT_EQ(info.dtype, want[t].dtype);
    EXPECT_EQ(info.order, want[t].order);
    EXPECT_EQ(info.module_dtype, want[t].module_dtype);
    EXPECT_EQ(info.aliases, want[t].aliases);
  }
  EXPECT_TRUE(verify(files, "ckpt").problems.empty());
}

TEST(CheckpointFormat, Version1StaysReadable) { read_frozen(1, 4); }
TEST(CheckpointFormat, Version2StaysReadable) { read_frozen(2, 5); }

// Boxes are read, moved and compared element by element: they must cover their tensor exactly once.
TEST(CheckpointFormat, BoxesThatDoNotCoverTheirTensorOnceAreRefused) {
  const std::vector<std::int64_t> shape{4, 6};
  const Box left{{0, 4}, {0, 3}}, right{{0, 4}, {3, 6}};
  EXPECT_EQ(problem_with({{left, right}, {}}, shape), "");
  EXPECT_EQ(problem_with({{right, left}, {1, 0}}, shape), "");
  EXPECT_NE(problem_with({{left}, {}}, shape), "");
  EXPECT_NE(problem_with({{left, left}, {}}, shape), "") << "as many elements, but twice the same";
  EXPECT_NE(problem_with({{left, {{0, 4}, {3, 7}}}, {}}, shape), "");
  EXPECT_NE(problem_with({{left, right, {{2, 2}, {0, 6}}}, {}}, shape), "") << "an empty one";
  EXPECT_NE(problem_with({{{{0, 24}}}, {}}, shape), "") << "another number of dimensions";
  EXPECT_NE(problem_with({std::vector<Box>(kMostBoxes + 1, left), {}}, shape), "");
}

TEST(CheckpointFormat, ElementsGoFromBoxesToTheirPlaces) {
  const ElementOrder order = room_tensors()[4].order;
  std::vector<std::int32_t> from(30), to(30, -1), want(30);
  std::iota(from.begin(), from.end(), 0);
  int next = 0;
  for (const Box& box : order.boxes) {
    for (std::int64_t column = box[1].first; column < box[1].second; ++column) {
      for (std::int64_t row = box[0].first; row < box[0].second; ++row)
        want[static_cast<std::size_t>(row * 6 + column)] = next++;
    }
  }
  to_row_major(reinterpret_cast<const std::byte*>(from.data()), reinterpret_cast<std::byte*>(to.data()), {5, 6}, order,
               sizeof from[0]);
  EXPECT_EQ(to, want);
  // Rows at once where elements lie by rows.
  const ElementOrder by_rows{order.boxes, {}};
  to_row_major(reinterpret_cast<const std::byte*>(from.data()), reinterpret_cast<std::byte*>(to.data()), {5, 6},
               by_rows, sizeof from[0]);
  EXPECT_EQ(to[0], 0);
  EXPECT_EQ(to[6], 2);
  EXPECT_EQ(to[2], 10);
  EXPECT_EQ(to[29], 29);
}

/// A folder on the disk, removed at the end.
struct DiskFolder {
  std::string path = ::testing::TempDir() + "zerotorch_hostile_" + std::to_string(::getpid());
  DiskFolder() { std::filesystem::create_directories(path); }
  ~DiskFolder() { std::filesystem::remove_all(path); }
};

/// The checkpoint of version 1 on the disk, to be damaged.
std::string copy_of_version_1(const DiskFolder& folder) {
  const std::string to = folder.path + "/ckpt";
  std::filesystem::copy(std::string(ZERO_SOURCE_DIR) + "/tests/data/checkpoint_1", to,
                        std::filesystem::copy_options::recursive);
  return to;
}

TEST(HostileCheckpoint, AFifoInPlaceOfAFileIsNotWaitedFor) {
  const DiskFolder folder;
  const std::string checkpoint = copy_of_version_1(folder), file = checkpoint + "/step1/rank_00001.safetensors";
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  io::PosixFileSystem disk;
  const auto problems = verify(disk, checkpoint).problems;
  ASSERT_FALSE(problems.empty());
  const auto& [which, why] = problems[0];
  EXPECT_NE((which + why).find("rank_00001.safetensors"), std::string::npos) << which << why;
  EXPECT_NE(why.find("it is a FIFO, wanted a regular file"), std::string::npos) << why;
}

TEST(HostileCheckpoint, AManifestLargerThanAnyIsNotRead) {
  const DiskFolder folder;
  const std::string checkpoint = copy_of_version_1(folder);
  std::filesystem::resize_file(checkpoint + "/step1/manifest.json", std::uint64_t{1} << 30);  // a hole
  io::PosixFileSystem disk;
  try {
    verify(disk, checkpoint);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("it has 1073741824 bytes, at most 268435456"), std::string_view::npos)
        << error.what();
  }
}

TEST(HostileCheckpoint, WhatCouldNotBeReadIsNotSaved) {
  io::MemoryFileSystem files;
  spawn_threads(2, [&](Group group) {
    Checkpointer checkpointer(files, group, [](std::size_t nbytes) {
      static thread_local io::AlignedBuffer staging;
      staging = io::AlignedBuffer(nbytes);
      return staging.data();
    });
    Contents contents;
    contents.client_state = nested(1'000'000);
    const std::string text = refusal_of([&] { checkpointer.save("ckpt", "deep", contents, {}); });
    EXPECT_NE(text.find("nested more than 256 deep"), std::string::npos) << text.substr(0, 200);
  });
  EXPECT_TRUE(list(files, "ckpt").empty());
}

TEST(HostileCheckpoint, NoMemoryForTensorsThatAreOnlyClaimed) {
  // 100 GB in a file of 8 KiB, turned, so that all of it would be wanted at once.
  constexpr std::int64_t kBlocks = 100'000;
  Manifest manifest;
  manifest.tag = "step1";
  manifest.files.push_back({"rank_00000.safetensors", 4096 + kBlocks * kBlockNbytes, 4096, 0});
  TensorInfo info{"w", kinds::kWeight, ElementType::kF32, {kBlocks, kBlockNbytes / 4}, {{}, {1, 0}}};
  PiecePlace piece{0, 4096, 0, info.numel(), std::vector<Checksum>(kBlocks)};
  manifest.tensors.push_back({info, {piece}});
  io::MemoryFileSystem files;
  files.make_folders("ckpt/step1");
  put(files, "ckpt/step1/rank_00000.safetensors", std::string(8192, 'x'));
  put(files, "ckpt/step1/manifest.json", to_text(manifest));
  for (const char* path : {"ckpt", "ckpt/step1"}) {
    EXPECT_NE(refusal_of([&] { export_weights(files, path, "out", {}, {}); }), "") << path;
    EXPECT_EQ(files.kind("out"), io::FileKind::kNone);
    EXPECT_NE(refusal_of([&] { diff(files, path, path); }), "") << path;
  }
  EXPECT_EQ(verify(files, "ckpt/step1").problems.size(), 1u);
}

TEST(HostileCheckpoint, HeadersAreOfASizeThatReadersTake) {
  Manifest manifest;
  manifest.files.push_back({"rank_00000.safetensors", std::uint64_t{1} << 40, std::uint64_t{1} << 39, 0});
  const std::string text = refusal_of([&] { parse_manifest(to_text(manifest), "m"); });
  EXPECT_NE(text.find("would have 549755813888 bytes"), std::string::npos) << text;
  SafetensorsHeader header;
  header.entries.assign(40, {std::string(3'000'000, 'n'), ElementType::kF32, {1}});
  EXPECT_NE(refusal_of([&] { make_safetensors_header(header, 8); }).find("readers take at most"), std::string::npos);
}

TEST(CheckpointHostile, WithoutMemoryForACopyAnAsynchronousSaveIsInTheForeground) {
  // Free memory on one rank's host, which all must follow: none; for a copy on one rank, not on two; for
  // both.
  const std::size_t payload = 1001 * 4;  // of both ranks, about
  for (const auto& [free_nbytes, async] :
       {std::pair<std::uint64_t, bool>{0, false}, {payload / 2 + 200, false}, {4 * payload, true}}) {
    io::MemoryFileSystem files;
    std::size_t staged[2] = {};
    spawn_threads(2, [&](Group group) {
      const int rank = group.rank();
      const std::uint64_t free = rank == 1 ? free_nbytes : UINT64_MAX;
      save_step(
          files, group, 3, {.async = true}, 1001, [free] { return free; }, &staged[rank]);
    });
    for (const std::size_t nbytes : staged) {
      EXPECT_EQ(nbytes < payload, async) << free_nbytes << " free, staged " << nbytes;
    }
    EXPECT_EQ(read_step(files, "step3"), 3);
  }
}

}  // namespace
}  // namespace zero::testing::checkpoint_hostile_test
