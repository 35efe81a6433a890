#include "io/posix_files.h"
#include "io/uring_files.h"

namespace zero::io {
namespace {

std::unique_ptr<FileSystem> best_files() {
  if (auto files = make_uring_files()) return files;
  return std::make_unique<PosixFileSystem>();
}

}  // namespace

FileSystem& system_files() {
  // Never destroyed: files may still be open when the process ends.
  static FileSystem& files = *best_files().release();
  return files;
}

}  // namespace zero::io
