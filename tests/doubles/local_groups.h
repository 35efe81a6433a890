#pragma once
// Groups whose ranks are threads of one process: the shm backend without the rendezvous, for tests,
// sanitizers and experiments.
#include <vector>

#include "zero/group.h"

namespace zero::comm {

/// `ranks` groups of one job; give each to its own thread. Every one must be destroyed by its thread
/// before the others may be left waiting. Throws IoError. Local.
std::vector<Group> make_local_groups(int ranks);

}  // namespace zero::comm
