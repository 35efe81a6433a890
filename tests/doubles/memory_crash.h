#pragma once
// What a power cut leaves of a tree.
#include <memory>

#include "doubles/memory_files.h"
#include "doubles/memory_tree.h"

namespace zero::io::memory {

/// A new tree, all of it durable. The caller holds the mutex of `tree`.
std::shared_ptr<Tree> crashed(const Tree& tree, const CrashPolicy& policy);

}  // namespace zero::io::memory
