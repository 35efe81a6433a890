#pragma once
// Measures the speed of a disk under the access pattern of offload.
#include <cstdint>
#include <string>

namespace zero {

struct DiskProbe {
  std::int64_t block_size = 1 << 20;     ///< bytes per request: aio.block_size
  std::int64_t queue_depth = 32;         ///< requests of a rank in flight: aio.queue_depth
  int ranks = 2;                         ///< ranks that use the disk concurrently, each with its own file
  std::int64_t file_nbytes = 512 << 20;  ///< size of each file
  double seconds = 2;                    ///< duration of each measurement
};

/// Bytes per second, all ranks together.
struct DiskSpeed {
  double read = 0, write = 0;
  double mixed_read = 0, mixed_write = 0;  ///< both at the same time, as in an update
  std::string description;                 ///< "io_uring with registered buffers, past the page cache"
};

/// Measures with scratch files in `folder`, laid out like offloaded optimizer states; deletes them at the end. Runs one
/// thread per rank. Takes about three times `seconds`, plus the time to fill the files. Local. Throws IoError (no
/// space, no folder) and ConfigError for sizes that are not positive.
DiskSpeed measure_disk(const std::string& folder, const DiskProbe& probe = {});

}  // namespace zero
