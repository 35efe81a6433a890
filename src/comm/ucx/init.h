#pragma once
// Groups over UCX, or a stub that says that the build has none: CMake compiles init.cpp with its companions, or
// stub.cpp (ZERO_WITH_UCX).
#include <chrono>
#include <memory>
#include <string>

#include "comm/backend.h"
#include "comm/rendezvous.h"

namespace zero::comm {

/// Why a group over UCX is not possible here; empty: it is. Local.
std::string ucx_problem();

/// *Collective.* A group of all ranks, which meet where `discovery` says; `or_shm`: in shared memory if they find that
/// all of them are on one host. Throws ConfigError when it says nowhere, or the build has no UCX, CommError.
std::shared_ptr<Backend> make_ucx_backend(const Discovery& discovery, const Environment& environment,
                                          std::chrono::milliseconds timeout, bool or_shm);

}  // namespace zero::comm
