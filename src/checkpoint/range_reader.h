#pragma once
// Reading elements of tensors out of a checkpoint's files: only the blocks that hold them, in the order they
// lie there, several reads ahead, every block verified before a byte of it is handed on.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "io/aligned_buffer.h"
#include "io/file_system.h"
#include "zero/checkpoint.h"

namespace zero::checkpoint {

/// Elements [begin, begin + numel) of a tensor, in the order of the file, wanted at `data` in the tensor's
/// dtype.
struct Target {
  std::size_t tensor = 0;  ///< index into Manifest::tensors
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::byte* data = nullptr;
};

class RangeReader {
 public:
  /// `found` outlives the reader. Local.
  RangeReader(io::FileSystem& files, const Found& found);

  /// Fills all targets. The files' headers are verified too. Throws CheckpointError naming file and tensor at
  /// the first block that is not what was written; IoError. Targets may then be partly filled.
  void read(std::span<const Target> targets, const Progress& progress = {});

  /// As read() of everything, but goes on after a problem and keeps nothing.
  std::vector<Problem> verify(const Progress& progress = {});

  std::uint64_t nbytes_read() const { return nbytes_read_; }

 private:
  struct Block;
  struct Chunk;
  using OnProblem = std::function<void(const Problem&)>;

  void make_ring();
  std::vector<Block> blocks_of(std::span<const Target> targets) const;
  void read_file(int file, std::span<Block> blocks, const OnProblem& on_problem);
  void take_chunk(const Chunk& chunk, std::span<const Block> blocks, const std::byte* data, const std::string& path,
                  const OnProblem& on_problem) const;
  void check_header(io::File& file, int index, const std::string& path) const;

  io::FileSystem& files_;
  const Found& found_;
  io::AlignedBuffer ring_;
  bool ring_is_huge_ = false;
  std::uint64_t nbytes_read_ = 0;
  std::uint64_t total_nbytes_ = 0;
  const Progress* progress_ = nullptr;
};

}  // namespace zero::checkpoint
