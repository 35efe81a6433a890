// Groups of some of a group's ranks, over shared memory.
#include <algorithm>

#include "comm/shm/backend.h"

namespace zero::comm {

std::shared_ptr<Backend> Backend::make_shm_subgroup(std::span<const int> members, std::vector<int> host_ranks) {
  constexpr std::string_view kLabel = "split";
  const int ranks = static_cast<int>(members.size());
  const bool alone = ranks <= 1;
  const auto region = share_region(alone ? std::span<const int>() : members, ControlSegment::nbytes_of(ranks),
                                   /*recorded_nbytes=*/0, kLabel);
  const int me = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  std::shared_ptr<ControlSegment> segment;
  if (!alone) {
    segment = ControlSegment::over(region->descriptor(), ranks, me == 0);
    segment->attach(me);
  }
  // Whoever uses the group finds everybody in it.
  Call barrier;
  barrier.label = kLabel;
  post(barrier)->wait();
  if (ranks == 0) return nullptr;
  if (alone) return make_self_backend();
  return std::make_shared<ShmBackend>(std::move(segment), me, std::move(host_ranks));
}

}  // namespace zero::comm
