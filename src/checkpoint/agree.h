#pragma once
// Failing together: an error of one rank becomes every rank's.
#include <exception>
#include <string>

#include "zero/group.h"

namespace zero::checkpoint {

/// Runs `work` and returns what went wrong, or nothing.
template <class Work>
std::string error_of(Work work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    return error.what()[0] ? error.what() : "an error without a text";
  }
}

/// Throws CheckpointError on every rank when `error` is not empty on one, saying what failed and naming each
/// such rank. *Collective.*
void agree(const std::string& what, const std::string& error, Group& group);

}  // namespace zero::checkpoint
