#pragma once
// ModelFiles: whole tensors as safetensors files the way Hugging Face's loaders read them: one
// model.safetensors, or several with model.safetensors.index.json.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "io/file_system.h"
#include "zero/checkpoint.h"

namespace zero::checkpoint {

/// What ExportOptions::dtype makes of a weight that is `own` in memory and `module` in the module. Throws
/// CheckpointError for other words than those documented there.
ElementType exported_type(ElementType own, ElementType module, const std::string& wanted);

class ModelFiles {
 public:
  /// `entries`: names, dtypes and shapes of what will be written, in that order. `folder` is made. Throws
  /// IoError when the file system has not enough room.
  ModelFiles(io::FileSystem& files, std::string folder, std::vector<SafetensorsEntry> entries,
             std::uint64_t max_file_nbytes);
  /// Without finish(): removes what was written.
  ~ModelFiles();

  /// The next bytes, in the order of the entries; `data` may be changed when it returns. Calls may cut a
  /// tensor anywhere, but not span two.
  void append(std::span<const std::byte> data);
  /// Syncs, gives the files their names, writes the index, and removes files of an earlier export.
  ExportReport finish();

 private:
  struct Part {
    std::size_t first = 0, count = 0;  ///< entries
    std::uint64_t nbytes = 0;
    std::string name;
  };

  void open_part();
  void close_part();
  std::string temporary(const Part& part) const;
  void remove_old_files();

  io::FileSystem& files_;
  std::string folder_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<Part> parts_;
  std::size_t part_ = 0;
  std::unique_ptr<io::File> file_;
  std::uint64_t offset_ = 0, part_end_ = 0;
  std::uint64_t total_nbytes_ = 0;
  bool finished_ = false;
};

}  // namespace zero::checkpoint
