#pragma once
// Which cores a process may use, how they lie on the host, and a rank's share of them.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero::base {

struct Cpu {
  int id = 0;       ///< as in sched_setaffinity
  int node = 0;     ///< of memory (NUMA)
  int package = 0;  ///< socket
  int core = 0;     ///< of the package; hardware threads of a core share it
};

/// The CPUs this process may use, from its affinity mask; where they sit from /sys, 0 (and a core each) where
/// that says nothing. Local.
std::vector<Cpu> usable_cpus();

/// The CPUs of rank `rank` of `ranks` when they divide `cpus` among them: whole cores, next to each other, so
/// that a rank lies on one memory node and no two share a core where that can be; single hardware threads
/// when there are fewer cores than ranks; none when there are fewer CPUs than ranks. Ascending ids.
std::vector<int> core_share(std::vector<Cpu> cpus, int rank, int ranks);

/// Which share rank `rank` of a host takes: ranks whose devices are on one memory node have shares next to each other,
/// nodes in their order. `nodes`: of each rank's device. As the ranks where one is unknown (-1).
int share_of_rank(std::span<const int> nodes, int rank);

/// The memory node that a device on the PCI bus is on, by its address such as "0000:3B:00.0"; -1: the system does not
/// say. Local.
int memory_node_of_pci(std::string_view address, const std::string& devices = "/sys/bus/pci/devices");

/// Cores among these CPUs: what compute threads are worth having for.
int count_cores(const std::vector<Cpu>& cpus);

}  // namespace zero::base
