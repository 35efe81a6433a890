#pragma once
// AppendFile: a file that grows at its end, and can be made durable or cut back to an earlier end.
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace zero::base {

/// One process at a time. All members throw IoError.
class AppendFile {
 public:
  /// Opens the file, made when it is not there, at its end.
  explicit AppendFile(std::filesystem::path path);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  /// Handed to the system when this returns.
  void append(std::string_view bytes);
  /// Makes all of it durable; returns its size.
  std::int64_t sync();
  /// Forgets what came after the first `nbytes`; fewer are an error.
  void cut(std::int64_t nbytes);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace zero::base
