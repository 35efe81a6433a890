#pragma once
// Event files that TensorBoard reads: TFRecord frames around Event protocol buffers, written by hand.
//
//   frame  = uint64 length | uint32 masked crc32c(length) | data[length] | uint32 masked crc32c(data)
//   Event  = { 1: double wall_time; 2: int64 step; 3: string file_version | 5: Summary summary }
//   Summary = { 1: repeated Value { 1: string tag; 2: float simple_value } }
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/append_file.h"

namespace zero::monitor {

/// CRC-32C (Castagnoli) of `bytes`.
std::uint32_t crc32c(std::string_view bytes);

class TensorboardWriter {
 public:
  /// Makes the folder and a new event file in it. Throws IoError.
  static TensorboardWriter create(const std::filesystem::path& folder);
  /// Goes on in an event file, after its first `nbytes`. Throws IoError when it has fewer.
  static TensorboardWriter resume(const std::filesystem::path& file, std::int64_t nbytes);

  /// One point per (tag, value) at `step`; handed to the system at once. Values that are not finite are
  /// written as they are.
  void add_scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  /// Makes the events so far durable and returns their bytes.
  std::int64_t sync() { return out_->sync(); }

  const std::filesystem::path& file() const { return out_->path(); }

 private:
  explicit TensorboardWriter(const std::filesystem::path& file);
  void write_record(std::string_view data);

  std::unique_ptr<base::AppendFile> out_;
};

}  // namespace zero::monitor
