#include "base/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace zero::base {
std::int64_t kilobyte_field(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::strtoll(line.c_str() + name.size(), nullptr, 10) * 1024;
  }
  return 0;
}

std::int64_t resident_nbytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t whole = 0, resident = 0;
  file >> whole >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::int64_t proportional_nbytes() { return kilobyte_field("/proc/self/smaps_rollup", "Pss:"); }

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::int64_t peak_proportional_nbytes() {
  const std::int64_t peak = kilobyte_field("/proc/self/status", "VmHWM:");
  const std::int64_t resident = kilobyte_field("/proc/self/smaps_rollup", "Rss:");
  const std::int64_t proportional = proportional_nbytes();
  if (peak == 0 || resident == 0 || proportional == 0) return 0;
  return std::max(proportional, peak - (resident - proportional));
}

}  // namespace zero::base
