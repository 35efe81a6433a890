// zero::init_distributed: from the launcher's environment to a Group.
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "base/log.h"
#include "comm/mpi/init.h"
#include "comm/reduce_kernels.h"
#include "comm/rendezvous.h"
#include "comm/shm/backend.h"
#include "comm/ucx/init.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zero {
namespace {

/// Whether the MPI library is an Open MPI whose components cannot talk to PMI-2 (or 1), as a distribution's: under
/// `srun --mpi=pmi2` its MPI_Init would end the process. Open MPI 5 has none; one without component files may.
bool is_open_mpi_without_pmi() {
  void* const init = ::dlsym(RTLD_DEFAULT, "ompi_mpi_init");
  Dl_info library{};
  if (!init || ::dladdr(init, &library) == 0 || !library.dli_fname) return false;
  bool has_components = false, has_pmi = false;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(library.dli_fname, error).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with("openmpi")) continue;
    for (const auto& file : std::filesystem::recursive_directory_iterator(entry.path(), error)) {
      const std::string name = file.path().filename().string();
      has_components |= name.starts_with("mca_");
      has_pmi |= name.starts_with("mca_pmix_s1.") || name.starts_with("mca_pmix_s2.");
    }
  }
  return has_components && !has_pmi;
}

void check_mpi_can_start(const comm::Discovery& discovery, const comm::Environment& environment) {
  const bool by_slurm = environment.contains("SLURM_STEP_ID") && environment.contains("PMI_FD");
  if (discovery.launcher != comm::Launcher::kPmi || !by_slurm || environment.contains("PMIX_NAMESPACE")) return;
  if (!is_open_mpi_without_pmi()) return;
  throw ConfigError(
      "srun was called with --mpi=pmi2, which the Open MPI of this build does not know. Start the ranks with "
      "`srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm has), or use an Open MPI that was configured "
      "--with-pmi.");
}

std::shared_ptr<comm::Backend> make_backend(const comm::Discovery& discovery, const comm::Environment& environment,
                                            const DistributedOptions& options) {
  const auto over_ucx = [&](bool or_shm) {
    return comm::make_ucx_backend(discovery, environment, options.rendezvous_timeout, or_shm);
  };
  // UCX is loaded only where it may be used.
  const bool may_be_ucx = discovery.spread != comm::Spread::kOneHost && !discovery.master_address.empty();
  const std::string ucx_problem = may_be_ucx ? comm::ucx_problem() : std::string();
  if (discovery.spread == comm::Spread::kUnknown && !ucx_problem.empty()) {
    base::log_warning(
        "RANK and WORLD_SIZE do not say whether all ranks are on this host, and without UCX they have to be: {}. For "
        "several hosts install UCX, or start the ranks with mpirun.",
        ucx_problem);
  }
  const comm::BackendKind kind = comm::choose_backend(discovery, options.backend, {comm::build_has_mpi(), ucx_problem});
  if (kind == comm::BackendKind::kMpi) check_mpi_can_start(discovery, environment);
  switch (kind) {
    case comm::BackendKind::kSelf:
      return comm::make_self_backend();
    case comm::BackendKind::kMpi:
      return comm::make_mpi_backend(discovery.rank, discovery.size);
    case comm::BackendKind::kUcx:
      return over_ucx(/*or_shm=*/false);
    case comm::BackendKind::kMeet:
      return over_ucx(/*or_shm=*/true);
    case comm::BackendKind::kShm:
      return std::make_shared<comm::ShmBackend>(
          comm::ControlSegment::rendezvous(discovery.job_id, discovery.rank, discovery.size,
                                           options.rendezvous_timeout),
          discovery.rank, comm::ranks_beside(discovery.rank, discovery.size));
  }
  return nullptr;
}

}  // namespace

Group init_distributed(const DistributedOptions& options) {
  if (options.timeout.count() < 0 || options.rendezvous_timeout.count() <= 0) {
    throw ConfigError(
        fmt::format("init_distributed: timeout {} ms, rendezvous_timeout {} ms; wanted 0 or more, and "
                    "more than 0.",
                    options.timeout.count(), options.rendezvous_timeout.count()));
  }
  comm::best_isa();  // complains of ZERO_ISA
  const comm::Environment environment = comm::current_environment();
  comm::Discovery discovery = comm::discover(environment, comm::parent_tag());
  // Only ranks on other hosts know it: without UCX they end here, not after a time-out.
  if (discovery.spread == comm::Spread::kUnknown && !comm::is_of_this_host(discovery.master_address).value_or(true))
    discovery.spread = comm::Spread::kSeveralHosts;
  Group group(make_backend(discovery, environment, options));
  if (group.size() > 1) base::set_log_rank(group.rank());
  if (options.timeout.count() > 0) group.set_timeout(options.timeout);
  base::log_debug("group of {} ranks, backend {}, started by {}", group.size(), group.backend(),
                  comm::launcher_name(discovery.launcher));
  return group;
}

}  // namespace zero
