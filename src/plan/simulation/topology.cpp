#include "plan/simulation/topology.h"

#include <algorithm>
#include <utility>

namespace zero::plan {
namespace {

using sharding::Way;

constexpr std::size_t kWays = 4;

}  // namespace

Topology Topology::of_classes(int ranks, int ranks_per_host) {
  std::vector<HostClass> hosts;
  if (ranks >= ranks_per_host) hosts.push_back({ranks / ranks_per_host, ranks_per_host});
  if (ranks % ranks_per_host > 0) hosts.push_back({1, ranks % ranks_per_host});
  std::vector<RankClass> classes;
  for (std::size_t h = 0; h < hosts.size(); ++h) classes.push_back({static_cast<int>(h), hosts[h].ranks_per_host, 0});
  return {std::move(hosts), std::move(classes)};
}

Topology Topology::of_ranks(int ranks, int ranks_per_host) {
  std::vector<HostClass> hosts;
  std::vector<RankClass> classes;
  for (int rank = 0; rank < ranks; ++rank) {
    const int place = rank % ranks_per_host;
    if (place == 0) hosts.push_back({1, std::min(ranks_per_host, ranks - rank)});
    classes.push_back({static_cast<int>(hosts.size()) - 1, 1, place});
  }
  return {std::move(hosts), std::move(classes)};
}

Topology::Topology(std::vector<HostClass> hosts, std::vector<RankClass> ranks)
    : hosts_(std::move(hosts)), ranks_(std::move(ranks)) {
  for (const HostClass& host : hosts_) {
    host_count_ += host.hosts;
    rank_count_ += host.hosts * host.ranks_per_host;
  }
  find_routes();
}

double Topology::ranks_of(int rank_class) const {
  const RankClass& ranks = ranks_[static_cast<std::size_t>(rank_class)];
  return static_cast<double>(ranks.per_host) * hosts_[static_cast<std::size_t>(ranks.host_class)].hosts;
}

const std::vector<Topology::Route>& Topology::routes(Way way, int rank_class) const {
  return routes_[static_cast<std::size_t>(way) * ranks_.size() + static_cast<std::size_t>(rank_class)];
}

double Topology::other_hosts(int from, int to) const {
  const RankClass &sender = ranks_[static_cast<std::size_t>(from)], &receiver = ranks_[static_cast<std::size_t>(to)];
  return hosts_[static_cast<std::size_t>(sender.host_class)].hosts - (sender.host_class == receiver.host_class ? 1 : 0);
}

void Topology::find_routes() {
  routes_.resize(kWays * ranks_.size());
  for (int to = 0; to < static_cast<int>(ranks_.size()); ++to) {
    route_from_each(to);
    route_across_hosts(to);
    route_by_host(to);
    route_by_ring(to);
  }
}

void Topology::add_route(Way way, const Stream& stream, double connections, double share) {
  if (connections <= 0 || share <= 0) return;
  auto found = std::ranges::find(streams_, stream);
  if (found == streams_.end()) found = streams_.insert(found, stream);
  auto& routes = routes_[static_cast<std::size_t>(way) * ranks_.size() + static_cast<std::size_t>(stream.to)];
  const double messages = stream.by_ring ? 0 : connections;  // of a ring, hops are counted
  routes.push_back({static_cast<int>(found - streams_.begin()), share, connections, messages});
}

void Topology::route_from_each(int to) {
  const double peers = rank_count_ - 1.0;
  for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
    const RankClass &sender = ranks_[static_cast<std::size_t>(from)], &receiver = ranks_[static_cast<std::size_t>(to)];
    const double away = other_hosts(from, to) * sender.per_host;
    const double beside = sender.host_class == receiver.host_class ? sender.per_host - (from == to ? 1.0 : 0.0) : 0;
    add_route(Way::kFromEach, {.from = from, .to = to, .between_hosts = true}, away, away / peers);
    add_route(Way::kFromEach, {.from = from, .to = to}, beside, beside / peers);
  }
}

void Topology::route_across_hosts(int to) {
  for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
    if (ranks_[static_cast<std::size_t>(from)].place != ranks_[static_cast<std::size_t>(to)].place) continue;
    const double away = other_hosts(from, to);
    add_route(Way::kAcrossHosts, {.from = from, .to = to, .between_hosts = true}, away, away / (host_count_ - 1.0));
  }
}

void Topology::route_by_host(int to) {
  const RankClass& receiver = ranks_[static_cast<std::size_t>(to)];
  const double peers = hosts_[static_cast<std::size_t>(receiver.host_class)].ranks_per_host - 1.0;
  for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
    const RankClass& sender = ranks_[static_cast<std::size_t>(from)];
    const double beside = sender.host_class == receiver.host_class ? sender.per_host - (from == to ? 1.0 : 0.0) : 0;
    if (peers > 0) add_route(Way::kByHost, {.from = from, .to = to}, beside, beside / peers);
    if (sender.place > receiver.place || receiver.place >= sender.place + sender.per_host) continue;
    const double away = other_hosts(from, to);
    add_route(Way::kByHost, {.from = from, .to = to, .between_hosts = true}, away, away / (host_count_ - 1.0));
  }
}

/// As many rings as a host has ranks: each enters the host at another one, and passes the others by the links inside.
/// NCCL gives parameters as much of a link as gradients, whose connections are as many as peers.
void Topology::route_by_ring(int to) {
  const RankClass& receiver = ranks_[static_cast<std::size_t>(to)];
  const double beside = hosts_[static_cast<std::size_t>(receiver.host_class)].ranks_per_host;
  const double entering = host_count_ > 1 ? 1 / beside : 0;
  int before = to, neighbour = to;  // on the host before, on this one
  for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
    const RankClass& sender = ranks_[static_cast<std::size_t>(from)];
    const int host = receiver.host_class, hosts = static_cast<int>(hosts_.size());
    const bool is_before = sender.host_class == (host + hosts - 1) % hosts;
    if (other_hosts(to, to) == 0 && is_before && sender.place <= receiver.place) before = from;
    const int ranks = hosts_[static_cast<std::size_t>(host)].ranks_per_host;
    if (sender.host_class == host && sender.place == (receiver.place + ranks - 1) % ranks) neighbour = from;
  }
  const Stream between{.from = before, .to = to, .between_hosts = true, .by_ring = true};
  add_route(Way::kByRing, between, rank_count_ - beside, entering);
  add_route(Way::kByRing, {.from = neighbour, .to = to, .by_ring = true}, beside - 1, 1 - entering);
}

}  // namespace zero::plan
