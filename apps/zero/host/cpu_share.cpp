#include "host/cpu_share.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

namespace zero::app {
namespace {

/// Seconds since the start of the system in which the CPUs of this process were busy, and all of them.
std::pair<double, double> cpu_seconds() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof(mine), &mine) != 0) return {0, 0};
  double busy = 0, total = 0;
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream fields(line.substr(3));
    int cpu = -1;
    if (line[3] == ' ' || !(fields >> cpu) || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &mine)) continue;
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of these.
    double ticks = 0;
    for (int i = 0; i < 8 && fields >> ticks; ++i) {
      total += ticks;
      if (i != 3 && i != 4) busy += ticks;
    }
  }
  const auto per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {busy / per_s, total / per_s};
}

double own_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(static_cast<__rusage_who_t>(who), &used);
    for (const timeval& one : {used.ru_utime, used.ru_stime}) {
      seconds += static_cast<double>(one.tv_sec) + 1e-6 * static_cast<double>(one.tv_usec);
    }
  }
  return seconds;
}

}  // namespace

CpuShare::CpuShare() : own_s_(own_seconds()) { std::tie(busy_s_, total_s_) = cpu_seconds(); }

double CpuShare::of_others() const {
  const auto [busy, total] = cpu_seconds();
  const double passed = total - total_s_;
  if (passed <= 0) return 0;
  return std::clamp((busy - busy_s_ - (own_seconds() - own_s_)) / passed, 0.0, 1.0);
}

}  // namespace zero::app
