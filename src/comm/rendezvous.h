#pragma once
// Who am I: rank, world size and job, from the variables of whatever started this process. Pure functions of
// the environment, so that every launcher's variables can be tested without the launcher.
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace zero::comm {

using Environment = std::map<std::string, std::string>;

/// In the order of precedence. kNone: started by hand, a group of one.
enum class Launcher { kNone, kZero, kTorchrun, kOpenMpi, kPmi, kSlurm };

std::string_view launcher_name(Launcher launcher);

/// How the ranks lie. kUnknown: of ranks started by hand, whose MASTER_ADDR is an address that other hosts reach.
enum class Spread { kOneHost, kSeveralHosts, kUnknown };

struct Discovery {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  ///< 0: the launcher does not say
  Spread spread = Spread::kOneHost;
  /// Where ranks may meet: MASTER_ADDR, empty when not set, and MASTER_PORT, 0 when not set. Under srun alone: the
  /// first node of the step, and a port that follows from its number.
  std::string master_address;
  int master_port = 0;
  /// MPI can learn the ranks from the launcher: through mpirun, PMIx or PMI. False under srun without --mpi.
  bool mpi_can_start = true;
  /// The same on all ranks of a host and of no other job that runs at the same time.
  std::string job_id;
  /// ZERO_BACKEND, empty when not set.
  std::string wanted_backend;
};

/// Reads the variables of, in this order: zero launch (ZERO_RANK, ZERO_WORLD_SIZE, ZERO_LOCAL_RANK,
/// ZERO_LOCAL_WORLD_SIZE, ZERO_JOB_ID), torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, ...), Open
/// MPI (OMPI_COMM_WORLD_*), MPICH and other PMI (PMI_*, MPI_LOCAL*), Slurm (SLURM_PROCID, SLURM_NTASKS, ...;
/// only inside srun). `parent` identifies the parent process, the job id of launchers that give none. Throws
/// ConfigError naming variables, values and remedy when a value is missing or no number, rank is
/// not below world size, or two launchers other than Slurm disagree about a world size above 1 (Slurm's
/// describe the allocation, in which other launchers may run). Local.
Discovery discover(const Environment& environment, const std::string& parent);

/// kMeet: shared memory if the ranks find that they are on one host when they meet, else kUcx.
enum class BackendKind { kSelf, kShm, kMpi, kUcx, kMeet };

/// What can carry messages between hosts.
struct Transports {
  bool mpi = false;         ///< the build has it
  std::string ucx_problem;  ///< why UCX cannot; empty: it can
};

/// The backend for `requested` ("auto", "self", "shm", "mpi" or "ucx"; "auto" yields to ZERO_BACKEND). auto: self
/// when alone; mpi under mpirun (Open MPI, MPICH) when the build has it, for its ranks may span hosts and
/// mpirun looks after them; else shm when all ranks are on this host, or nothing says that they are not; else mpi under
/// Slurm where MPI can start, and ucx for ranks that meet at MASTER_ADDR. Throws ConfigError, with the remedy, for an
/// unknown or impossible choice. Local.
BackendKind choose_backend(const Discovery& discovery, const std::string& requested, const Transports& transports);

/// The environment of this process. Local.
Environment current_environment();

/// Whether `address`, a name or a number as in MASTER_ADDR, is of this host; nullopt where it cannot be resolved, which
/// may take seconds. Local.
std::optional<bool> is_of_this_host(const std::string& address);

/// "pid-starttime" of the parent of this process. Local.
std::string parent_tag();

}  // namespace zero::comm
