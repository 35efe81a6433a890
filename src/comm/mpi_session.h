#pragma once
// MPI itself: started when the first group needs it, ended with the process.
#include <mpi.h>

#include <string_view>

namespace zero::comm {

/// Initialises MPI unless that has been done. When it was done here, MPI is finalised at the end of the
/// process - but not after mark_unclean(): then mpirun ends the other ranks. Throws CommError.
void ensure_mpi();

/// Requests are left that can be neither completed nor cancelled: finalising could hang.
void mark_mpi_unclean() noexcept;

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);

}  // namespace zero::comm
