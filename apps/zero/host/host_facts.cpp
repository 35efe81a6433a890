#include "host/host_facts.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "zero/launch.h"
#include "zero/memory.h"

namespace zero::app {

std::string zerotorch_version() { return ZERO_VERSION; }
std::string libtorch_version() { return TORCH_VERSION; }

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "unknown";
}

nlohmann::ordered_json host_facts() {
  utsname names{};
  ::uname(&names);
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (const char* name : {"OMP_NUM_THREADS", "ZERO_BACKEND", "ZERO_TIMEOUT_S", "ZERO_LOG_LEVEL", "ZERO_DATA"}) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  return {{"versions",
           {{"zerotorch", zerotorch_version()},
            {"libtorch", libtorch_version()},
            {"compiler", __VERSION__},
            {"build_type", ZERO_BUILD_TYPE}}},
          {"host",
           {{"name", names.nodename},
            {"system", fmt::format("{} {} {}", names.sysname, names.release, names.machine)},
            {"cpu", cpu_name()},
            {"libtorch_instruction_set", at::get_cpu_capability()},
            {"cores_available", usable_cpus()},
            {"memory_total_nbytes", std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE)},
            {"memory_available_nbytes", available_memory_nbytes()}}},
          {"variables", variables}};
}

}  // namespace zero::app
