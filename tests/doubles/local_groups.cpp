#include "doubles/local_groups.h"

#include "comm/shm/backend.h"

namespace zero::comm {

std::vector<Group> make_local_groups(int ranks) {
  const std::shared_ptr<ControlSegment> segment = ControlSegment::create_anonymous(ranks);
  std::vector<Group> groups;
  for (int r = 0; r < ranks; ++r) {
    segment->attach(r);
    groups.emplace_back(std::make_shared<ShmBackend>(segment, r, ranks_beside(r, ranks)));
  }
  return groups;
}

}  // namespace zero::comm
