#pragma once
// Event files that TensorBoard reads: TFRecord frames around Event protocol buffers, written by hand.
//
//   frame  = uint64 length | uint32 masked crc32c(length) | data[length] | uint32 masked crc32c(data)
//   Event  = { 1: double wall_time; 2: int64 step; 3: string file_version | 5: Summary summary }
//   Summary = { 1: repeated Value { 1: string tag; 2: float simple_value } }
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::app {

/// CRC-32C (Castagnoli) of `bytes`.
std::uint32_t crc32c(std::string_view bytes);

class TensorboardWriter {
 public:
  /// Makes the folder and a new event file in it. Throws IoError.
  explicit TensorboardWriter(const std::filesystem::path& folder);

  /// One point per (tag, value) at `step`; flushed at once. Values that are not finite are written as they
  /// are.
  void add_scalars(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

  const std::filesystem::path& file() const { return file_; }

 private:
  void write_record(std::string_view data);

  std::filesystem::path file_;
  std::ofstream out_;
};

}  // namespace zero::app
