#pragma once
// A job under mpirun, seen from the outside: how it ends, what it says and what it leaves behind.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "zero/group.h"

namespace zero::testing {

struct MpiJobResult {
  int exit_code = -1;      ///< of mpirun; 128 + signal when it was killed by one
  bool timed_out = false;  ///< killed with all its ranks
  std::string output;      ///< both streams of mpirun and of all ranks
  double end_seconds = 0;  ///< from announce_strike() (or the start) to the end of mpirun
  /// Processes of the job that live 2 s after mpirun has ended, and its files in /dev/shm; removed since.
  std::vector<std::string> leftovers;
};

/// What ZERO_MPIRUN names; nothing when this build has no MPI.
std::optional<std::string> mpirun_path();

/// Runs this program with `arguments` on `ranks` ranks; leaves no process behind.
MpiJobResult run_under_mpirun(int ranks, const std::vector<std::string>& arguments, std::chrono::seconds timeout);

/// For ranks: joins the job's group over MPI. *Collective.*
Group join_mpi_job();

/// For ranks: the clock of MpiJobResult::end_seconds starts now.
void announce_strike();

/// For ranks: what ended this one, as a line of the output that error_of_rank() finds.
void report_error(int rank, const std::string& text);

/// What `rank` reported, its line breaks as '|'; empty when it reported nothing.
std::string error_of_rank(const MpiJobResult& result, int rank);

}  // namespace zero::testing
