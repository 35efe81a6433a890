#pragma once
// Topology: ranks and hosts of a simulation, as classes of those that are alike.
//
// Ranks of a class run the same program, have shards of the same size (the mean: shards differ by a block of each unit
// at most), are on hosts with as many ranks, and share links fairly. So they do everything at the same times, and one
// of them stands for all: exact, as far as hosts are equally large. Where the last host has fewer ranks, it and its
// ranks are classes of their own; then ranks of the other hosts are still alike, but rings are an approximation.
// tests/unit/simulation_test.cpp compares with simulations of each rank by itself.
#include <vector>

#include "sharding/plan/transfers.h"

namespace zero::plan {

struct HostClass {
  int hosts = 1;
  int ranks_per_host = 1;
};

struct RankClass {
  int host_class = 0;
  int per_host = 1;  ///< ranks on each host of its class
  int place = 0;     ///< the first of them on their host
};

/// Connections from ranks of one class to those of another, all of which carry alike.
struct Stream {
  int from = 0, to = 0;  ///< rank classes
  bool between_hosts = false;
  bool by_ring = false;  ///< those of NCCL for parameters, which has others for gradients

  bool operator==(const Stream&) const = default;
};

class Topology {
 public:
  /// As few classes as there are.
  static Topology of_classes(int ranks, int ranks_per_host);
  /// Each rank is a class.
  static Topology of_ranks(int ranks, int ranks_per_host);

  const std::vector<HostClass>& hosts() const { return hosts_; }
  const std::vector<RankClass>& ranks() const { return ranks_; }
  const std::vector<Stream>& streams() const { return streams_; }
  int rank_count() const { return rank_count_; }
  int host_count() const { return host_count_; }
  double ranks_of(int rank_class) const;

  /// The part of a transfer that comes in one stream.
  struct Route {
    int stream = 0;
    double share = 0;        ///< of what a rank receives; Way::kByHost: from this host, or from others
    double connections = 0;  ///< that carry it, into each rank: its weight where others share links with it
    double messages = 0;     ///< to each rank
  };
  /// How a rank of this class receives what comes this way.
  const std::vector<Route>& routes(sharding::Way way, int rank_class) const;

 private:
  Topology(std::vector<HostClass> hosts, std::vector<RankClass> ranks);

  void find_routes();
  void add_route(sharding::Way way, const Stream& stream, double connections, double share);
  void route_from_each(int to);
  void route_across_hosts(int to);
  void route_by_host(int to);
  void route_by_ring(int to);
  /// Hosts of the class of `from` that a rank of `to` is not on.
  double other_hosts(int from, int to) const;

  std::vector<HostClass> hosts_;
  std::vector<RankClass> ranks_;
  std::vector<Stream> streams_;
  std::vector<std::vector<Route>> routes_;  ///< [ways * rank classes]
  int rank_count_ = 0, host_count_ = 0;
};

}  // namespace zero::plan
