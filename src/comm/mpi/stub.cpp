// Compiled instead of the MPI backend when the build has no MPI.
#include "comm/mpi/init.h"
#include "zero/errors.h"

namespace zero::comm {

bool build_has_mpi() { return false; }

std::shared_ptr<Backend> make_mpi_backend(int, int) {
  throw ConfigError(
      "backend \"mpi\": this build has no MPI. Use \"shm\" on one host, or build with -DZERO_WITH_MPI=ON and "
      "an MPI-3 "
      "library.");
}

}  // namespace zero::comm
