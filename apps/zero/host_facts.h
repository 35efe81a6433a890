#pragma once
// What this host and this build are, and what this process uses of them.
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

/// Resident memory of this process; shared pages count fully. About 10 us.
std::int64_t resident_nbytes();
/// Proportional memory of this process: pages shared by n processes count 1/n each. Slower; 0 when unknown.
std::int64_t proportional_nbytes();
/// Memory of the host that can still be had; 0 when unknown.
std::int64_t available_memory_nbytes();

/// Pins this process to its share of the cores it may use. Does nothing and returns false when there are more
/// ranks than cores. Call before any thread is started.
bool bind_to_core_share(int local_rank, int local_size);
/// OMP_NUM_THREADS, or the cores this process may use divided by the ranks of this host; at least 1.
int threads_per_rank(int local_size);

}  // namespace zero::app
