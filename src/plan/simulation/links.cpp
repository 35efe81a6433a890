#include "plan/simulation/links.h"

#include <algorithm>
#include <limits>

namespace zero::plan {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double or_unlimited(double rate) { return rate > 0 ? rate : kUnlimited; }

}  // namespace

Links::Links(const Topology& topology, const Speeds& speeds)
    : topology_(topology), loads_(topology.streams().size()), core_left_(topology.ranks().size(), 1) {
  std::vector<std::size_t> into, out_of, inside;
  for (std::size_t h = 0; h < topology.hosts().size(); ++h) {
    into.push_back(add_link(or_unlimited(speeds.between_hosts)));
    out_of.push_back(speeds.half_duplex ? into.back() : add_link(or_unlimited(speeds.between_hosts)));
  }
  for (std::size_t c = 0; c < topology.ranks().size(); ++c) {
    inside.push_back(add_link(or_unlimited(speeds.between_ranks)));
    if (speeds.moved_by_core > 0) cores_.push_back(add_link(1));
  }
  for (std::size_t s = 0; s < loads_.size(); ++s) {
    const Stream& stream = topology.streams()[s];
    const auto from = static_cast<std::size_t>(stream.from), to = static_cast<std::size_t>(stream.to);
    const RankClass &sender = topology.ranks()[from], &receiver = topology.ranks()[to];
    // What each sender sends while each receiver receives one.
    const double sent = topology.ranks_of(stream.to) / topology.ranks_of(stream.from);
    if (stream.between_hosts) {
      load(s, into[static_cast<std::size_t>(receiver.host_class)], receiver.per_host);
      load(s, out_of[static_cast<std::size_t>(sender.host_class)], sender.per_host * sent);
    } else {
      load(s, inside[to], 1);
    }
    if (cores_.empty()) continue;
    load(s, cores_[to], 1 / speeds.moved_by_core);
    load(s, cores_[from], sent / speeds.moved_by_core);
  }
  left_.resize(capacity_.size());
  growth_.resize(capacity_.size());
}

std::size_t Links::add_link(double capacity) {
  capacity_.push_back(capacity);
  return capacity_.size() - 1;
}

void Links::load(std::size_t stream, std::size_t link, double per_byte) { loads_[stream].push_back({link, per_byte}); }

double Links::into_host(int stream) const {
  const Stream& of = topology_.streams()[static_cast<std::size_t>(stream)];
  return of.between_hosts ? topology_.ranks()[static_cast<std::size_t>(of.to)].per_host : 0;
}

void Links::share(std::span<Carrier> carriers, const std::vector<char>& computing) {
  constexpr double kNotCounted = 1e-12, kFastest = 1e30;  // of what has no limit
  left_ = capacity_;
  for (std::size_t c = 0; c < cores_.size(); ++c) left_[cores_[c]] = computing[c] ? 0.5 : 1;
  std::vector<Carrier*> growing;
  for (Carrier& carrier : carriers) {
    carrier.rate = 0;
    growing.push_back(&carrier);
  }
  const auto loads_of = [&](const Carrier& carrier) -> const std::vector<Load>& {
    return loads_[static_cast<std::size_t>(carrier.stream)];
  };
  while (!growing.empty()) {
    std::ranges::fill(growth_, 0);
    for (const Carrier* carrier : growing) {
      for (const Load& load : loads_of(*carrier)) growth_[load.link] += load.per_byte * carrier->connections;
    }
    double more = kUnlimited;  // for each connection
    for (std::size_t l = 0; l < left_.size(); ++l) {
      if (growth_[l] > 0) more = std::min(more, left_[l] / growth_[l]);
    }
    if (more == kUnlimited) {
      for (Carrier* carrier : growing) carrier->rate = kFastest;
      break;
    }
    for (Carrier* carrier : growing) carrier->rate += more * carrier->connections;
    for (std::size_t l = 0; l < left_.size(); ++l) {
      if (growth_[l] > 0) left_[l] = std::max(0.0, left_[l] - more * growth_[l]);
    }
    std::erase_if(growing, [&](const Carrier* carrier) {
      return std::ranges::any_of(
          loads_of(*carrier), [&](const Load& load) { return left_[load.link] <= kNotCounted * capacity_[load.link]; });
    });
  }
  for (std::size_t c = 0; c < cores_.size(); ++c) core_left_[c] = left_[cores_[c]] + (computing[c] ? 0.5 : 0);
}

}  // namespace zero::plan
