// Compiled instead of the UCX transport when the build has no UCX.
#include "comm/ucx/init.h"
#include "zero/errors.h"

namespace zero::comm {

std::string ucx_problem() { return "this build has no UCX (-DZERO_WITH_UCX=ON, and its headers: Debian's libucx-dev)"; }

std::shared_ptr<Backend> make_ucx_backend(const Discovery&, const Environment&, std::chrono::milliseconds, bool) {
  throw ConfigError("backend \"ucx\": " + ucx_problem() + ". Start the ranks with mpirun.");
}

}  // namespace zero::comm
