#pragma once
// What this host and this build are.
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

}  // namespace zero::app
