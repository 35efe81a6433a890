#pragma once
// Writing one rank's file of a checkpoint: safetensors header, then the pieces one after the other.
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "io/file_system.h"

namespace zero::checkpoint {

/// Consecutive elements of a tensor in this rank's memory (host memory), or made on the way to the file.
struct Piece {
  std::size_t tensor = 0;  ///< index into the common list of tensors
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  const std::byte* data = nullptr;
  /// Without `data`: writes elements [first, first + count) of the piece to aligned memory. Any thread.
  std::function<void(std::int64_t first, std::int64_t count, std::byte* out)> make = {};
};

/// Page-aligned memory that is reused from save to save; `nbytes` at least. Throws IoError.
using StagingMemory = std::function<std::byte*(std::size_t nbytes)>;

/// The file's layout: header and order of the pieces. Offsets do not depend on the data.
class RankFile {
 public:
  /// Throws CheckpointError for names that cannot be written.
  RankFile(int rank, const std::string& id, const std::vector<TensorInfo>& tensors, std::vector<Piece> pieces);

  std::uint64_t nbytes() const { return header_.size() + payload_nbytes_; }
  std::size_t payload_nbytes() const { return payload_nbytes_; }

  /// Copies all pieces into `staging` [payload_nbytes]: from here on the pieces' memory may change.
  void stage(std::byte* staging);

  /// Bytes of staging memory that write() wants unless stage() was called.
  static std::size_t ring_nbytes();
  /// Writes and syncs a new file; `ring` is the memory of that size (unused after stage()). Throws IoError.
  RankPart write(io::FileSystem& files, const std::string& folder, std::byte* ring) const;

 private:
  struct Source;

  int rank_;
  std::string header_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> piece_nbytes_;
  std::size_t payload_nbytes_ = 0;
  const std::byte* staged_ = nullptr;
};

}  // namespace zero::checkpoint
