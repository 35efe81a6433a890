// zero::init_distributed: from the launcher's environment to a Group.
#include <fmt/format.h>

#include "base/log.h"
#include "comm/mpi/init.h"
#include "comm/reduce_kernels.h"
#include "comm/rendezvous.h"
#include "comm/shm/backend.h"
#include "zero/errors.h"
#include "zero/group.h"

namespace zero {
namespace {

std::shared_ptr<comm::Backend> make_backend(const comm::Discovery& discovery, const DistributedOptions& options) {
  switch (comm::choose_backend(discovery, options.backend, comm::build_has_mpi())) {
    case comm::BackendKind::kSelf:
      return comm::make_self_backend();
    case comm::BackendKind::kMpi:
      return comm::make_mpi_backend(discovery.rank, discovery.size);
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
  comm::Discovery discovery = comm::discover(comm::current_environment(), comm::parent_tag());
  // The first rank's host cannot know it of the others. They do, and end before they wait in vain.
  if (discovery.spread == comm::Spread::kUnknown && !comm::is_of_this_host(discovery.master_address).value_or(true))
    discovery.spread = comm::Spread::kSeveralHosts;
  Group group(make_backend(discovery, options));
  if (group.size() > 1) base::set_log_rank(group.rank());
  if (options.timeout.count() > 0) group.set_timeout(options.timeout);
  base::log_debug("group of {} ranks, backend {}, started by {}", group.size(), group.backend(),
                  comm::launcher_name(discovery.launcher));
  return group;
}

}  // namespace zero
