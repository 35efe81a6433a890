#pragma once
// Links: what limits the rates of streams, and how streams share it.
//
//   a host's link    bytes into and out of each host; half duplex: both together
//   a rank's inside  bytes from the other ranks of its host
//   a rank's core    what moving bytes takes of it, where it also computes
//
// Shares are max-min fair over connections, as those of TCP about are: all grow alike until a limit is met; those that
// it limits keep their rate, and the others grow on.
#include <span>
#include <vector>

#include "plan/simulation/topology.h"
#include "zero/plan.h"

namespace zero::plan {

class Links {
 public:
  Links(const Topology& topology, const Speeds& speeds);

  /// A stream that has something to carry.
  struct Carrier {
    int stream = 0;
    double connections = 1;  ///< into each receiving rank, of what it carries
    double rate = 0;         ///< found: bytes per second into each receiving rank
  };
  /// `computing[c]`: ranks of class c compute, and get at least half of their core for it.
  void share(std::span<Carrier> carriers, const std::vector<char>& computing);

  /// Of the last share(): the part of its core that a rank of this class has left.
  double core_left(int rank_class) const { return core_left_[static_cast<std::size_t>(rank_class)]; }
  /// Of one byte per second into each receiving rank: what passes the link into a host, bytes per second.
  double into_host(int stream) const;

 private:
  struct Load {
    std::size_t link;
    double per_byte;  ///< of a byte per second into each receiving rank
  };
  std::size_t add_link(double capacity);
  void load(std::size_t stream, std::size_t link, double per_byte);

  const Topology& topology_;
  std::vector<double> capacity_;          ///< by link
  std::vector<std::size_t> cores_;        ///< by rank class: its link; empty: cores are not counted
  std::vector<std::vector<Load>> loads_;  ///< by stream
  std::vector<double> core_left_;
  std::vector<double> left_, growth_;  ///< by link, scratch
};

}  // namespace zero::plan
