#pragma once
// Checkpoints of made-up tensors, saved and loaded by ranks that are threads, on any file system. No
// libtorch.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/folder.h"
#include "checkpoint/range_reader.h"
#include "io/aligned_buffer.h"
#include "support/spawn.h"

namespace zero::testing {

/// Three tensors of odd sizes, one of them larger than a block, an empty one, and one in boxes whose elements lie
/// column by column; their values name step and place.
inline std::vector<checkpoint::TensorInfo> room_tensors(std::int64_t large = 1001) {
  using checkpoint::ElementType;
  namespace kinds = checkpoint::kinds;
  std::vector<checkpoint::TensorInfo> tensors(5);
  tensors[0] = {"block.weight", kinds::kWeight, ElementType::kF32, {large}, {}, ElementType::kBF16, true, {"tied"}};
  tensors[1] = {"block.weight", "exp_avg", ElementType::kF32, {7, 11}, {}, ElementType::kBF16, true, {}};
  tensors[2] = {"counts", kinds::kBuffer, ElementType::kI64, {3}, {}, ElementType::kI64, false, {}};
  tensors[3] = {"empty", kinds::kWeight, ElementType::kF32, {0, 5}, {}, ElementType::kF32, true, {}};
  tensors[4] = {"cut", kinds::kWeight, ElementType::kF32, {5, 6}, {}, ElementType::kF32, true, {}};
  tensors[4].order = {{{{0, 5}, {0, 2}}, {{0, 3}, {2, 6}}, {{3, 5}, {2, 6}}}, {1, 0}};
  return tensors;
}

inline std::vector<std::byte> room_values(const checkpoint::TensorInfo& info, int step) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.numel()) * element_nbytes(info.dtype));
  std::uint64_t state = static_cast<std::uint64_t>(step) * 7919 + bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint64_t mixed = state ^ state >> 33;
    std::memcpy(bytes.data() + at, &mixed, std::min(sizeof mixed, bytes.size() - at));
  }
  return bytes;
}

/// One rank's part of saving `step` as "step<N>". *Collective.* `staged`, where given, gets the bytes of
/// staging memory it asked for.
inline void save_step(io::FileSystem& files, Group group, int step, const SaveOptions& options,
                      std::int64_t large = 1001, checkpoint::FreeMemory free_memory = comm::available_memory_nbytes,
                      std::size_t* staged = nullptr) {
  checkpoint::Contents contents;
  contents.tensors = room_tensors(large);
  contents.global_steps = step;
  std::vector<std::vector<std::byte>> values;
  for (std::size_t t = 0; t < contents.tensors.size(); ++t) {
    const auto& info = contents.tensors[t];
    values.push_back(room_values(info, step));
    const std::int64_t numel = info.numel();
    const std::int64_t begin = numel * group.rank() / group.size(), end = numel * (group.rank() + 1) / group.size();
    contents.pieces.push_back(
        {t, begin, end - begin, values.back().data() + static_cast<std::size_t>(begin) * element_nbytes(info.dtype)});
  }
  io::AlignedBuffer staging;
  checkpoint::Checkpointer checkpointer(
      files, group,
      [&](std::size_t nbytes) {
        if (staged) *staged = nbytes;
        staging = io::AlignedBuffer(std::max<std::size_t>(nbytes, 1));
        return staging.data();
      },
      std::move(free_memory));
  checkpointer.save("ckpt", "step" + std::to_string(step), std::move(contents), options);
  checkpointer.wait();
}

/// All ranks, as threads; what they threw, by rank.
inline std::vector<std::string> save_step_together(io::FileSystem& files, int ranks, int step,
                                                   const SaveOptions& options = {}, std::int64_t large = 1001) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  spawn_threads(ranks, [&](Group group) {
    try {
      save_step(files, group, step, options, large);
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return errors;
}

/// The step of a checkpoint whose every element has been read and is right; -1 when one is not. Throws what
/// the reader throws.
inline int read_step(io::FileSystem& files, const std::string& tag) {
  const checkpoint::Found found = checkpoint::find_checkpoint(files, "ckpt", tag);
  checkpoint::RangeReader reader(files, found);
  const auto step = static_cast<int>(found.manifest.global_steps);
  for (std::size_t t = 0; t < found.manifest.tensors.size(); ++t) {
    const auto& info = found.manifest.tensors[t].info;
    std::vector<std::byte> got(static_cast<std::size_t>(info.numel()) * element_nbytes(info.dtype));
    const checkpoint::Target target{t, 0, info.numel(), got.data()};
    reader.read({&target, 1});
    if (got != room_values(info, step)) return -1;
  }
  return step;
}

}  // namespace zero::testing
