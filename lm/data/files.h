#pragma once
// Small file helpers of the corpus packer. Every failure is an IoError with the path and the system's reason.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace zero::data {

/// Throws IoError "path: what: reason" for the current errno.
[[noreturn]] void throw_errno(const std::filesystem::path& path, std::string_view what);

/// A new file, written front to back through a buffer. The destructor closes without a word: call finish().
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void append(std::string_view bytes);
  /// Writes what is left, fsyncs and closes. Throws IoError (with the free space when the disk is full).
  void finish();
  std::int64_t nbytes() const { return nbytes_; }

 private:
  void write_all(std::string_view bytes);

  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
  std::int64_t nbytes_ = 0;
};

/// The XXH3 hash, of 128 bits, of bytes that come in pieces.
class FileHash {
 public:
  FileHash();
  void add(std::string_view bytes);
  std::string text() const;  ///< in hexadecimal digits

 private:
  std::shared_ptr<XXH3_state_s> state_;
};

/// A folder with a fresh name beside `target`; removed with everything in it unless it was moved.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& target);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Atomically takes the place of `target`; what was there is deleted.
  void replace(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
};

/// Part of a file, front to back or anywhere. Any failure is a short read.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// Bytes [offset, offset + nbytes) of a regular file; false when they cannot all be read.
  bool read(std::int64_t offset, std::int64_t nbytes, std::string& contents) const;

 private:
  int fd_ = -1;
};

/// The whole file; false when it cannot be opened or read.
bool read_file(const std::filesystem::path& path, std::string& contents);

void sync_folder(const std::filesystem::path& path);

}  // namespace zero::data
