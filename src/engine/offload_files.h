#pragma once
// Scratch files of what is offloaded to a disk.
#include <optional>
#include <string>

#include "io/file_system.h"
#include "layout/placement.h"
#include "observe/step_observer.h"
#include "offload/disk_store.h"
#include "zero/config.h"

namespace zero::engine {

/// For engines that are made from here on; null: the system's. For tests.
void use_files_for_offload(io::FileSystem* files);

/// Files in `folder` as the "aio" section says, which `observers` watch; nothing where `place` is in memory.
std::optional<offload::DiskOptions> disk_of(const layout::Placement& place, const Config& config,
                                            const std::string& folder, observe::Observers& observers);

}  // namespace zero::engine
