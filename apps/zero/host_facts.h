#pragma once
// What this host and this build are.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace zero::app {

/// Version of zerotorch, as in "0.1.0".
std::string zerotorch_version();
/// Version of libtorch's headers this was compiled with.
std::string libtorch_version();
/// Model name of the processor, or its architecture.
std::string cpu_name();
/// Versions, compiler, instruction set, host, cores, memory and the variables that steer a run.
nlohmann::ordered_json host_facts();

/// Memory of the host that can still be had; 0 when unknown.
std::int64_t available_memory_nbytes();

/// Compute threads for a process with so many cores for itself: OMP_NUM_THREADS, else one each; at least 1.
int threads_of(int cores);

}  // namespace zero::app
