#pragma once
// Groups over MPI, or a stub that says that the build has none: CMake compiles init.cpp with its companions, or
// stub.cpp (ZERO_WITH_MPI).
#include <memory>

#include "comm/backend.h"

namespace zero::comm {

/// True when init.cpp is compiled in.
bool build_has_mpi();

/// *Collective.* A group of all ranks of MPI_COMM_WORLD, which must be `rank` of `size`. Initialises MPI when
/// that has not been done, and then finalises it when the process ends. Throws ConfigError when the build
/// has no MPI or MPI counts otherwise.
std::shared_ptr<Backend> make_mpi_backend(int rank, int size);

}  // namespace zero::comm
