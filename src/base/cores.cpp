#include "base/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <tuple>

namespace zero::base {
namespace {

int read_int(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? value : otherwise;
}

/// /sys/devices/system/cpu/cpuN has a link named after its memory node.
int node_of(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node")) return std::atoi(name.c_str() + 4);
  }
  return 0;
}

}  // namespace

std::vector<Cpu> usable_cpus() {
  cpu_set_t mine;
  std::vector<Cpu> cpus;
  if (::sched_getaffinity(0, sizeof(mine), &mine) != 0) return cpus;
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    if (!CPU_ISSET(id, &mine)) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}", id);
    cpus.push_back({id, node_of(folder), read_int(folder + "/topology/physical_package_id", 0),
                    read_int(folder + "/topology/core_id", id)});
  }
  return cpus;
}

std::vector<int> core_share(std::vector<Cpu> cpus, int rank, int ranks) {
  const auto place = [](const Cpu& cpu) { return std::tuple(cpu.node, cpu.package, cpu.core); };
  std::sort(cpus.begin(), cpus.end(),
            [&](const Cpu& a, const Cpu& b) { return std::tuple(place(a), a.id) < std::tuple(place(b), b.id); });
  // What is divided: cores, or single CPUs.
  std::vector<std::vector<int>> parts;
  const bool whole_cores = ranks <= count_cores(cpus);
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (!whole_cores || i == 0 || place(cpus[i]) != place(cpus[i - 1])) parts.emplace_back();
    parts.back().push_back(cpus[i].id);
  }
  std::vector<int> share;
  if (static_cast<std::size_t>(ranks) > parts.size()) return share;
  const std::size_t n = parts.size(), of = static_cast<std::size_t>(ranks), r = static_cast<std::size_t>(rank);
  for (std::size_t i = r * n / of; i < (r + 1) * n / of; ++i) {
    share.insert(share.end(), parts[i].begin(), parts[i].end());
  }
  std::sort(share.begin(), share.end());
  return share;
}

int share_of_rank(std::span<const int> nodes, int rank) {
  if (std::ranges::any_of(nodes, [](int node) { return node < 0; })) return rank;
  const auto mine = static_cast<std::size_t>(rank);
  int before = 0;
  for (std::size_t other = 0; other < nodes.size(); ++other)
    before += std::tuple(nodes[other], other) < std::tuple(nodes[mine], mine);
  return before;
}

int memory_node_of_pci(std::string_view address, const std::string& devices) {
  std::string name(address);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return read_int(fmt::format("{}/{}/numa_node", devices, name), -1);
}

int count_cores(const std::vector<Cpu>& cpus) {
  std::set<std::tuple<int, int, int>> places;
  for (const Cpu& cpu : cpus) places.emplace(cpu.node, cpu.package, cpu.core);
  return static_cast<int>(places.size());
}

}  // namespace zero::base
