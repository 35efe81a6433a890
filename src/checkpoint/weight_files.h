#pragma once
// WeightFiles: whole tensors out of safetensors files, one file or several with an index, as Hugging Face and
// ModelFiles write them.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "io/file_system.h"

namespace zero::checkpoint {

class WeightFiles {
 public:
  /// `path`: a .safetensors file, a .safetensors.index.json, or a folder with model.safetensors or
  /// model.safetensors.index.json. Reads headers only. Throws CheckpointError naming the file and what is
  /// wrong with it; IoError.
  WeightFiles(io::FileSystem& files, const std::string& path);

  /// What is there, in the order of the files' data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  std::size_t nbytes(std::size_t entry) const {
    return static_cast<std::size_t>(entries_[entry].end - entries_[entry].begin);
  }
  /// Fills `data` with all bytes of an entry, little-endian and row-major.
  void read(std::size_t entry, std::span<std::byte> data);

  /// Whether `path` looks like something for this class: by its name, or a folder.
  static bool recognises(io::FileSystem& files, const std::string& path);

 private:
  struct Part {
    std::string path;
    std::unique_ptr<io::File> file;
    std::uint64_t data_begin = 0;
  };

  void open_indexed(io::FileSystem& files, const std::string& path);
  /// The part's header; its entries are added to those of the parts before it.
  void open_part(io::FileSystem& files, const std::string& path);

  std::vector<Part> parts_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::size_t> part_of_;  ///< by entry
};

}  // namespace zero::checkpoint
