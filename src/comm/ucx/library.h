#pragma once
// libucp, loaded when the first group needs it: programs run without it.
#include <ucp/api/ucp.h>

#include <string>
#include <string_view>

namespace zero::comm {

/// The functions of libucp that are used. Local, thread-safe once made.
struct UcxLibrary {
  decltype(&::ucp_get_version) get_version = nullptr;
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&::ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&::ucp_tag_send_nbx) tag_send = nullptr;
  decltype(&::ucp_tag_recv_nbx) tag_receive = nullptr;
  decltype(&::ucp_request_check_status) request_status = nullptr;
  decltype(&::ucp_request_cancel) request_cancel = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  decltype(&::ucs_status_string) status_string = nullptr;

  /// Loads it the first time. Throws CommError that says where it was looked for and how to install it.
  static const UcxLibrary& get();
  /// Why it cannot be loaded; empty: it can.
  static std::string problem();
};

/// Throws CommError with UCX's own text unless `status` is UCS_OK.
void check_ucx(ucs_status_t status, std::string_view call);

}  // namespace zero::comm
