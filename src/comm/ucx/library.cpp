#include "comm/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "comm/messages/messenger.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

/// What was loaded, or why not.
struct Loaded {
  UcxLibrary library;
  std::string problem;
};

Loaded load() {
  // A library does not take over a program's signals, nor complain of variables that are its user's.
  ::setenv("UCX_HANDLE_ERRORS", "none", /*overwrite=*/0);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", /*overwrite=*/0);
  ::setenv("UCX_LOG_LEVEL", "fatal", /*overwrite=*/0);  // lost peers are told of by the group
  // Over TCP, asking for a message before it is sent moves data in one direction at a time.
  if (!has_rdma()) ::setenv("UCX_RNDV_THRESH", "inf", /*overwrite=*/0);
  Loaded loaded;
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    loaded.problem = ::dlerror();
    return loaded;
  }
  UcxLibrary& to = loaded.library;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (!function) loaded.problem = fmt::format("{} has no {}", kLibrary, name);
  };
  find(to.get_version, "ucp_get_version");
  find(to.init_version, "ucp_init_version");
  find(to.cleanup, "ucp_cleanup");
  find(to.worker_create, "ucp_worker_create");
  find(to.worker_destroy, "ucp_worker_destroy");
  find(to.worker_get_address, "ucp_worker_get_address");
  find(to.worker_release_address, "ucp_worker_release_address");
  find(to.worker_progress, "ucp_worker_progress");
  find(to.ep_create, "ucp_ep_create");
  find(to.ep_close, "ucp_ep_close_nbx");
  find(to.tag_send, "ucp_tag_send_nbx");
  find(to.tag_receive, "ucp_tag_recv_nbx");
  find(to.request_status, "ucp_request_check_status");
  find(to.request_cancel, "ucp_request_cancel");
  find(to.request_free, "ucp_request_free");
  find(to.status_string, "ucs_status_string");
  if (!loaded.problem.empty()) return loaded;
  unsigned major = 0, minor = 0, release = 0;
  to.get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor < 12) {  // peers' errors over TCP
    loaded.problem =
        fmt::format("{} is version {}.{}.{}, and 1.12 or newer is wanted", kLibrary, major, minor, release);
  }
  return loaded;
}

const Loaded& loaded() {
  static const Loaded instance = load();
  return instance;
}

}  // namespace

std::string UcxLibrary::problem() { return loaded().problem; }

const UcxLibrary& UcxLibrary::get() {
  if (!problem().empty()) {
    throw CommError(fmt::format(
        "backend \"ucx\": UCX cannot be loaded: {}. Install it (Debian: libucx0; pip: libucx-cu12), or start "
        "the ranks with mpirun.",
        problem()));
  }
  return loaded().library;
}

void check_ucx(ucs_status_t status, std::string_view call) {
  if (status == UCS_OK) return;
  throw CommError(fmt::format("{} failed: {}", call, UcxLibrary::get().status_string(status)));
}

}  // namespace zero::comm
