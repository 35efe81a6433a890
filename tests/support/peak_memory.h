#pragma once
// By how much this process's resident memory grows at its peak.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace zero::testing {

class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again
    before_ = status("VmRSS");
  }
  /// Bytes, since the object was made.
  std::int64_t grown() const { return status("VmHWM") - before_; }

  /// A size from /proc/self/status, in bytes: "RssAnon" leaves out memory that is shared with other ranks.
  static std::int64_t status(const std::string& key) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(key + ":")) {
        return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
      }
    }
    return -1;
  }

 private:
  std::int64_t before_ = 0;
};

}  // namespace zero::testing
