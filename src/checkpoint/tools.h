#pragma once
// The functions of zero/checkpoint.h on any file system.
#include "io/file_system.h"
#include "zero/checkpoint.h"

namespace zero::checkpoint {

std::vector<Summary> list(io::FileSystem& files, const std::string& folder);
Description inspect(io::FileSystem& files, const std::string& path);
VerifyReport verify(io::FileSystem& files, const std::string& path, const Progress& progress = {});
ExportReport export_weights(io::FileSystem& files, const std::string& path, const std::string& to,
                            const ExportOptions& options, const Progress& progress = {});
DiffReport diff(io::FileSystem& files, const std::string& a, const std::string& b, const Progress& progress = {});
PruneReport prune(io::FileSystem& files, const std::string& folder, int keep_last, bool dry_run);

}  // namespace zero::checkpoint
