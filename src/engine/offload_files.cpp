#include "engine/offload_files.h"

namespace zero::engine {
namespace {

io::FileSystem* files_of_offload = nullptr;

}  // namespace

void use_files_for_offload(io::FileSystem* files) { files_of_offload = files; }

std::optional<offload::DiskOptions> disk_of(const layout::Placement& place, const Config& config,
                                            const std::string& folder, observe::Observers& observers) {
  if (!place.is_on_disk()) return std::nullopt;
  offload::DiskOptions disk;
  disk.files = &observers.watch(files_of_offload ? *files_of_offload : io::system_files());
  disk.folder = folder;
  disk.scratch = {static_cast<std::uint64_t>(config.aio.block_size), static_cast<unsigned>(config.aio.queue_depth)};
  disk.buffers = static_cast<int>(place.disk_buffers);
  return disk;
}

}  // namespace zero::engine
