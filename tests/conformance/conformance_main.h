#pragma once
// Which backend the conformance tests run on, and what their files share.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "zero/errors.h"
#include "zero/group.h"

namespace zero::testing {

using Counts = std::vector<std::int64_t>;

inline std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// "self", "shm", "threads", "mpi" or "ucx".
const std::string& conformance_backend();
int conformance_ranks();
/// A launcher has started the ranks, which are those of every test.
bool conformance_is_launched();
/// True: on_ranks() gives every group a progress thread.
bool conformance_progress_thread();

/// Runs `fn` on every rank of a fresh group: on forked processes, on threads, or (mpi, ucx) on this rank.
/// Failed assertions and exceptions of every rank become failures of the test.
void on_ranks(const std::function<void(Group group)>& fn);

/// The message of the CommError that `action` must throw.
template <class Action>
std::string comm_error_of(Action action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected a CommError, got: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected a CommError, nothing was thrown";
  return {};
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "wanted \"" << (part) << "\" in: " << (text)

}  // namespace zero::testing
