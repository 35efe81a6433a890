#pragma once
// ModelFiles: whole tensors as safetensors files the way Hugging Face's loaders read them: one
// model.safetensors, or several with model.safetensors.index.json.
#include <fmt/format.h>

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "io/file_system.h"
#include "zero/checkpoint.h"
#include "zero/errors.h"

namespace zero::checkpoint {

/// What ExportOptions::dtype makes of a weight that is `own` in memory and `module` in the module. Throws
/// CheckpointError for other words than those documented there.
ElementType exported_type(ElementType own, ElementType module, const std::string& wanted);

/// Leaves of `items`, which have a `name`, those that ExportOptions::names has, under the names that it gives; all of
/// them if it has none. Throws CheckpointError for a name that none has.
template <class Item>
void keep_named(const ExportOptions& options, std::vector<Item>& items, std::string Item::*file_name) {
  if (options.names.empty()) return;
  std::set<std::string> missing;
  for (const auto& [name, as] : options.names) missing.insert(name);
  std::erase_if(items, [&](const Item& item) { return !options.names.contains(item.name); });
  for (Item& item : items) {
    missing.erase(item.name);
    item.*file_name = options.names.at(item.name);
  }
  if (missing.empty()) return;
  throw CheckpointError(fmt::format("ExportOptions::names: there is no '{}' in the model", *missing.begin()));
}

class ModelFiles {
 public:
  /// `entries`: names, dtypes and shapes of what will be written, in that order. `folder` is made. Of `options` counts
  /// how large files are, and how they are called. Throws IoError when the file system has not enough room.
  ModelFiles(io::FileSystem& files, std::string folder, std::vector<SafetensorsEntry> entries,
             const ExportOptions& options);
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
  std::string index_name() const;
  void remove_old_files();

  io::FileSystem& files_;
  std::string folder_;
  std::string stem_;  ///< of the files' names
  std::vector<SafetensorsEntry> entries_;
  std::vector<Part> parts_;
  std::size_t part_ = 0;
  std::unique_ptr<io::File> file_;
  std::uint64_t offset_ = 0, part_end_ = 0;
  std::uint64_t total_nbytes_ = 0;
  bool finished_ = false;
};

}  // namespace zero::checkpoint
