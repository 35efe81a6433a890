#pragma once
// A toy transport of shards: messages over pipes between forked ranks, read and written by threads. Shows what a
// transport has to do, and that nothing above it asks how. Failures of peers are not its matter.
#include <array>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace zero::testing {

/// Pipes from each rank to each other one; made before the ranks are forked.
class Pipes {
 public:
  explicit Pipes(int ranks);
  ~Pipes();
  Pipes(const Pipes&) = delete;
  Pipes& operator=(const Pipes&) = delete;

  int size() const { return ranks_; }
  int read_end(int from, int to) const { return ends_[index(from, to)][0]; }
  int write_end(int from, int to) const { return ends_[index(from, to)][1]; }

 private:
  std::size_t index(int from, int to) const { return static_cast<std::size_t>(from * ranks_ + to); }
  int ranks_;
  std::vector<std::array<int, 2>> ends_;
};

/// *Collective.* `pipes` outlive it; one transport over them at a time.
std::shared_ptr<comm::ShardTransport> make_pipe_transport(const Pipes& pipes, int rank);

}  // namespace zero::testing
