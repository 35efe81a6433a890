// Compiled instead of uring_files.cpp when the build has no liburing.
#include "io/uring_files.h"

namespace zero::io {

std::unique_ptr<FileSystem> make_uring_files(const PosixOptions&) { return nullptr; }

}  // namespace zero::io
