#include "comm/mpi/init.h"

#include <fmt/format.h>

#include "comm/messages/backend.h"
#include "comm/mpi/messenger.h"
#include "comm/mpi/session.h"
#include "zero/errors.h"

namespace zero::comm {

bool build_has_mpi() { return true; }

std::shared_ptr<Backend> make_mpi_backend(int rank, int size) {
  ensure_mpi();
  const BackendGuard guard(*mpi_lock());
  int mpi_rank = 0;
  int mpi_size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &mpi_size), "MPI_Comm_size");
  if (mpi_rank != rank || mpi_size != size) {
    throw ConfigError(
        fmt::format("the environment says rank {} of {}, MPI says rank {} of {}. Start the ranks with the "
                    "mpirun of the MPI library this "
                    "build uses (or srun --mpi=pmix), or use ZERO_BACKEND=shm on one host.",
                    rank, size, mpi_rank, mpi_size));
  }
  return std::make_shared<MessageBackend>(std::make_shared<MpiMessenger>(MPI_COMM_WORLD, rank, size));
}

}  // namespace zero::comm
