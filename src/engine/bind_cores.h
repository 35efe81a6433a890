#pragma once
// bind_cores_to_rank: where the threads of a rank run.
#include "zero/group.h"

namespace zero::engine {

/// Pins the calling thread, and those it starts later, to this rank's share of the cores of its host: of the memory
/// node that its device is on (device::memory_node_of(), -1: unknown), where shares allow. Left as it is where the
/// ranks of a host already have different masks (their launcher, or an earlier call, has pinned them), and where they
/// are more than its CPUs: then rank 0 logs why. Returns the cores this rank may use now. *Collective.*
int bind_cores(Group group, int node_of_device);

/// The cores this rank has for itself: those it may use, or its share of them while nobody has divided them.
/// *Collective.*
int count_cores_of_rank(Group group);

}  // namespace zero::engine
