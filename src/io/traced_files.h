#pragma once
// TracedFiles: another file system, whose requests to scratch files are told to a trace.
#include <memory>

#include "base/trace.h"
#include "io/file_system.h"

namespace zero::io {

/// A request is told of when its owner sees that it is done. `files` and `trace` outlive it, and what it has made.
std::unique_ptr<FileSystem> make_traced_files(FileSystem& files, base::Trace& trace);

}  // namespace zero::io
