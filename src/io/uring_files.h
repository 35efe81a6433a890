#pragma once
// The machine's file system with io_uring for reading and writing.
#include <memory>

#include "io/file_system.h"
#include "io/posix_files.h"

namespace zero::io {

/// Null when this build or this kernel has no io_uring, or a sandbox forbids it. Names go the way of
/// PosixFileSystem, and so does a file for which no ring can be had.
std::unique_ptr<FileSystem> make_uring_files(const PosixOptions& options = {});

}  // namespace zero::io
