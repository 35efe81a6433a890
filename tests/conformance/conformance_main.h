#pragma once
// Which backend the conformance tests run on.
#include <functional>
#include <string>

#include "zero/group.h"

namespace zero::testing {

/// "self", "shm", "threads" or "mpi".
const std::string& conformance_backend();
int conformance_ranks();

/// Runs `fn` on every rank of a fresh group: on forked processes, on threads, or (mpi) on this rank.
/// Failed assertions and exceptions of every rank become failures of the test.
void on_ranks(const std::function<void(Group group)>& fn);

}  // namespace zero::testing
