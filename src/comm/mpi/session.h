#pragma once
// MPI itself: started when the first group needs it, ended with the process.
#include <mpi.h>

#include <memory>
#include <string_view>

#include "comm/progress_thread.h"

namespace zero::comm {

/// Initialises MPI unless that has been done. When it was done here, MPI is finalised at the end of the
/// process, unless that could hang: then the process ends without, and mpirun ends the other ranks. Throws
/// CommError.
void ensure_mpi();

/// True when MPI was initialised here, not by the application, which then makes calls of its own.
bool mpi_is_ours();

/// The lock of all groups of this process: MPI is called by one thread at a time.
const std::shared_ptr<BackendLock>& mpi_lock();

/// A group has failed: some rank may never come to the end of its process, and finalising would wait for it.
void mark_mpi_failed() noexcept;

/// As mark_mpi_failed(), and requests are left that can be neither completed nor cancelled: MPI is not
/// finalised at all.
void mark_mpi_unclean() noexcept;

/// As mark_mpi_failed(), and some ranks are on a host that nothing reaches: nobody is waited for at the end.
void mark_mpi_ranks_lost() noexcept;

/// Throws CommError with MPI's own text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);

}  // namespace zero::comm
