#pragma once
// How fast a disk is in the way that offload uses it.
#include <cstdint>
#include <string>

namespace zero {

struct DiskProbe {
  std::int64_t block_size = 1 << 20;     ///< bytes of a request: aio.block_size
  std::int64_t queue_depth = 32;         ///< requests of a rank under way at once: aio.queue_depth
  int ranks = 2;                         ///< that use the disk at the same time, each a file of its own
  std::int64_t file_nbytes = 512 << 20;  ///< of each
  double seconds = 2;                    ///< of each measurement
};

/// Bytes a second of all ranks together.
struct DiskSpeed {
  double read = 0, write = 0;
  double mixed_read = 0, mixed_write = 0;  ///< both at the same time, as in an update
  std::string description;                 ///< "io_uring with registered buffers, past the page cache"
};

/// Measures with scratch files in `folder`, as optimizer states are kept there; nothing stays. A thread for every rank.
/// Takes about three times `seconds`, and what filling the files takes. Local. Throws IoError (no room, no folder) and
/// ConfigError for sizes that are not positive.
DiskSpeed measure_disk(const std::string& folder, const DiskProbe& probe = {});

}  // namespace zero
