#pragma once
// What the tests of the io room share: places, patterns, and every file system there is.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "doubles/faulty_files.h"
#include "doubles/memory_files.h"
#include "io/posix_files.h"
#include "io/uring_files.h"
#include "zero/errors.h"

namespace zero::io {

/// A folder of the machine that goes with everything in it.
class TestFolder {
 public:
  explicit TestFolder(const std::string& parent = ::testing::TempDir()) {
    path_ = parent + (parent.ends_with('/') ? "" : "/") + "zero_io_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw IoError("cannot make " + path_);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Bytes = std::vector<std::byte>;

/// Bytes that tell where they belong.
inline void fill(std::span<std::byte> data, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() >> 56);
}
inline Bytes pattern(std::size_t nbytes, std::uint64_t seed) {
  Bytes bytes(nbytes);
  fill(bytes, seed);
  return bytes;
}

/// What `action` throws, as text; "" when it throws nothing.
template <class Expected = IoError, class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

inline bool mentions(const std::string& text, std::string_view what) { return text.find(what) != std::string::npos; }

inline void write_file(FileSystem& files, const std::string& path, std::span<const std::byte> data) {
  const auto file = files.create(path);
  file->write(0, data);
  file->close();
}

inline Bytes read_file(FileSystem& files, const std::string& path) {
  const auto file = files.open(path);
  Bytes bytes(file->size());
  file->read(0, bytes);
  file->close();
  return bytes;
}

}  // namespace zero::io
