#pragma once
// What masters, states, sums of gradients and parameters take where they are on a disk: the file, and the buffers
// before it.
#include "setup/laid_out.h"

namespace zero::plan {

struct DiskUse {
  std::int64_t file_nbytes = 0;
  std::int64_t buffers_nbytes = 0;
};

/// Of `rank`, whose masters take `master_nbytes` an element. Nothing where they are in memory.
DiskUse disk_use(const setup::LaidOut& laid, int rank, std::int64_t master_nbytes);
/// Of its sums of gradients. Nothing where they are in memory.
DiskUse disk_use_of_gradients(const setup::LaidOut& laid, int rank);
/// Of its shards of parameters. Nothing where they are in memory.
DiskUse disk_use_of_parameters(const setup::LaidOut& laid, int rank);

}  // namespace zero::plan
