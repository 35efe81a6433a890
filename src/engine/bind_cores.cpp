#include "engine/bind_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/cores.h"
#include "base/log.h"
#include "comm/gather_values.h"

namespace zero::engine {
namespace {

/// What the ranks tell each other: the host, the CPUs they may use on it, and the memory node of their device.
struct Place {
  std::uint64_t host;
  cpu_set_t cpus;
  int node_of_device;
};

Place own_place(int node_of_device) {
  Place place;
  std::memset(&place, 0, sizeof place);
  place.node_of_device = node_of_device;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  place.host = std::hash<std::string>{}(name);
  ::sched_getaffinity(0, sizeof place.cpus, &place.cpus);
  return place;
}

/// What a rank has of its host's cores.
struct Share {
  bool pinned_before = false;  ///< somebody has divided them among the ranks already
  std::vector<int> cpus;       ///< else: this rank's part of them; empty: more ranks than CPUs
};

Share share_of(Group group, int node_of_device) {
  const auto all = comm::gather_values(group, own_place(node_of_device), "cores of the ranks");
  const Place& mine = all[static_cast<std::size_t>(group.rank())];
  const bool pinned_before = std::any_of(all.begin(), all.end(), [&](const Place& other) {
    return other.host == mine.host && !CPU_EQUAL(&other.cpus, &mine.cpus);
  });
  if (pinned_before) return {true, {}};
  std::vector<int> nodes;  // of the ranks of this host
  for (const Place& other : all) {
    if (other.host == mine.host) nodes.push_back(other.node_of_device);
  }
  // Ranks of one host may count as being on several.
  const bool is_local = static_cast<int>(nodes.size()) == group.local_size();
  const int place = is_local ? base::share_of_rank(nodes, group.local_rank()) : group.local_rank();
  return {false, base::core_share(base::usable_cpus(), place, group.local_size())};
}

}  // namespace

int bind_cores(Group group, int node_of_device) {
  const Share share = share_of(group, node_of_device);
  if (share.pinned_before) return base::count_cores(base::usable_cpus());
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int id : share.cpus) CPU_SET(id, &cpus);
  if (share.cpus.empty()) {
    static std::atomic<bool> said = false;
    if (group.rank() == 0 && !said.exchange(true)) {
      base::log_warning("bind_cores_to_rank: {} ranks on this host are more than its {} CPUs; not pinned",
                        group.local_size(), base::usable_cpus().size());
    }
  } else if (::sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
    base::log_warning("bind_cores_to_rank: the system refuses to pin rank {}; going on unpinned", group.rank());
  }
  return base::count_cores(base::usable_cpus());
}

int count_cores_of_rank(Group group) {
  const Share share = share_of(group, /*node_of_device=*/-1);
  std::vector<base::Cpu> cpus = base::usable_cpus();
  if (!share.pinned_before && group.local_size() > 1) {
    std::erase_if(cpus, [&](const base::Cpu& cpu) {
      return std::find(share.cpus.begin(), share.cpus.end(), cpu.id) == share.cpus.end();
    });
  }
  return base::count_cores(cpus);
}

}  // namespace zero::engine
