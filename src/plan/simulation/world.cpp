#include "plan/simulation/world.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace zero::plan {
namespace {

using sharding::Way;

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Ends that rounding has moved apart by so much are at one time.
constexpr double kRounding = 1e-12;
/// Flows that share a stream; more than so many begin in turn.
constexpr std::size_t kMostAtOnce = 64;

}  // namespace

World::World(const Topology& topology, const Speeds& speeds, Ways ways)
    : topology_(topology),
      speeds_(speeds),
      ways_(ways),
      links_(topology, speeds),
      flows_(topology.streams().size()),
      work_(topology.ranks().size(), 0),
      busy_until_(topology.ranks().size(), 0),
      announced_(topology.ranks().size()),
      received_(topology.ranks().size()) {}

double World::latency(const Stream& stream, Way way) const {
  const double of_one = stream.between_hosts ? speeds_.host_latency : speeds_.rank_latency;
  if (way != Way::kByRing) return of_one;
  // A ring passes every rank, whichever stream stands for it.
  const double hosts = topology_.host_count(), ranks = topology_.rank_count();
  return hosts == 1 ? (ranks - 1) * speeds_.rank_latency
                    : (hosts - 1) * speeds_.host_latency + (ranks - hosts) * speeds_.rank_latency;
}

double World::seconds_of(int transfer) const {
  const Transfer& over = transfers_[static_cast<std::size_t>(transfer)];
  return over.end - over.start;
}

void World::announce(int ranks, Topic topic) {
  announced_[static_cast<std::size_t>(ranks)][topic.what] = topic.number;
  const auto found = waiting_.find({ranks, topic});
  if (found == waiting_.end()) return;
  for (const Waiting& waiting : found->second) {
    if (waiting.trip > now_) {
      at(waiting.trip, {.stream = waiting.stream, .flow = waiting.flow});
    } else {
      begin(waiting.stream, waiting.flow);
    }
  }
  waiting_.erase(found);
}

bool World::is_announced(int ranks, Topic topic) const {
  const auto& announced = announced_[static_cast<std::size_t>(ranks)];
  const auto found = announced.find(topic.what);
  return found != announced.end() && found->second >= topic.number;
}

int World::start(int ranks, const sharding::Transfer& transfer, Topic topic) {
  const int index = static_cast<int>(transfers_.size());
  Transfer& made = transfers_.emplace_back();
  made.start = made.end = now_;
  const auto& routes = topology_.routes(transfer.way, ranks);
  Received& received = received_[static_cast<std::size_t>(ranks)];
  double messages = 0;
  for (const Topology::Route& route : routes) {
    const Stream& stream = topology_.streams()[static_cast<std::size_t>(route.stream)];
    Flow flow{.transfer = index, .connections = route.connections, .nbytes = transfer.nbytes * route.share};
    if (transfer.way == Way::kByHost) flow.nbytes *= stream.between_hosts ? transfer.across : 1 - transfer.across;
    flow.latency = latency(stream, transfer.way);
    messages += route.messages * transfer.messages;
    received.nbytes += flow.nbytes;
    if (stream.between_hosts) received.between_hosts_nbytes += flow.nbytes;
    ++made.parts;
    // A ring's trips are its hops; of others each but the last one goes before the data.
    const double trip = transfer.way == Way::kByRing ? now_ : now_ + (transfer.trips - 1) * flow.latency;
    if (!is_announced(stream.from, topic)) {
      waiting_[{stream.from, topic}].push_back({route.stream, flow, trip});
    } else if (trip > now_) {
      at(trip, {.stream = route.stream, .flow = flow});
    } else {
      begin(route.stream, flow);
    }
  }
  received.messages += messages;
  if (messages == 0 || speeds_.message_seconds <= 0) return index;
  double& busy = busy_until_[static_cast<std::size_t>(ranks)];
  busy = std::max(busy, now_) + messages * speeds_.message_seconds;
  ++made.parts;
  at(busy, {.transfer = index});
  return index;
}

void World::compute(int ranks, double seconds) {
  work_[static_cast<std::size_t>(ranks)] = seconds;
  rates_hold_ = false;
}

void World::at(double time, Timer timer) {
  timer.at = time;
  timer.number = timers_made_++;
  timers_.push(timer);
}

void World::begin(int stream, const Flow& flow) {
  auto& queue = flows_[static_cast<std::size_t>(stream)];
  queue.push_back(flow);
  if (queue.size() <= (ways_.in_turn ? 1 : kMostAtOnce)) rates_hold_ = false;
}

void World::end_part(int transfer) {
  Transfer& of = transfers_[static_cast<std::size_t>(transfer)];
  if (--of.parts == 0) of.end = now_;
}

/// Without a thread for it, data moves while both ends are in calls; inside a host the receiver copies by itself.
bool World::moves(const Stream& stream) const {
  return ways_.moves_beside || (!computes(stream.to) && (!stream.between_hosts || !computes(stream.from)));
}

void World::find_rates() {
  if (rates_hold_) return;
  carriers_.clear();
  for (std::size_t s = 0; s < flows_.size(); ++s) {
    if (!moves(topology_.streams()[s])) continue;
    const std::size_t moving = std::min(flows_[s].size(), ways_.in_turn ? 1 : kMostAtOnce);
    for (std::size_t i = 0; i < moving; ++i)
      carriers_.push_back({.stream = static_cast<int>(s), .connections = flows_[s][i].connections});
  }
  std::vector<char> computing;
  for (const double work : work_) computing.push_back(work > 0);
  links_.share(carriers_, computing);
  rates_hold_ = true;
}

double World::seconds_to_next_event() const {
  double seconds = timers_.empty() ? kNever : timers_.top().at - now_;
  int stream = -1;
  std::size_t flow = 0;
  for (const Links::Carrier& carrier : carriers_) {
    flow = carrier.stream == stream ? flow + 1 : 0;
    stream = carrier.stream;
    seconds = std::min(seconds, flows_[static_cast<std::size_t>(stream)][flow].nbytes / carrier.rate);
  }
  for (std::size_t c = 0; c < work_.size(); ++c) {
    if (work_[c] > 0) seconds = std::min(seconds, work_[c] / links_.core_left(static_cast<int>(c)));
  }
  return std::max(0.0, seconds);
}

void World::advance(double seconds) {
  now_ += seconds;
  const double also = seconds + kRounding * std::max(1.0, now_);
  for (std::size_t c = 0; c < work_.size(); ++c) {
    if (work_[c] <= 0) continue;
    const double speed = links_.core_left(static_cast<int>(c));
    const bool ends = work_[c] <= also * speed;
    work_[c] = ends ? 0 : work_[c] - seconds * speed;
    if (ends) rates_hold_ = false;
  }
  int stream = -1;
  std::size_t index = 0;
  for (const Links::Carrier& carrier : carriers_) {
    index = carrier.stream == stream ? index : 0;
    stream = carrier.stream;
    auto& flows = flows_[static_cast<std::size_t>(stream)];
    Flow& flow = flows[index];
    if (flow.nbytes > also * carrier.rate) {
      flow.nbytes -= seconds * carrier.rate;
      ++index;
      continue;
    }
    at(now_ + flow.latency, {.transfer = flow.transfer});
    flows.erase(flows.begin() + static_cast<std::ptrdiff_t>(index));
    rates_hold_ = false;
  }
}

void World::fire_timers() {
  while (!timers_.empty() && timers_.top().at <= now_ + kRounding * std::max(1.0, now_)) {
    const Timer timer = timers_.top();
    timers_.pop();
    if (timer.transfer >= 0) {
      end_part(timer.transfer);
    } else {
      begin(timer.stream, timer.flow);
    }
  }
}

void World::run(const std::function<bool(int ranks)>& play) {
  std::vector<char> goes_on(work_.size(), 1);
  while (true) {
    for (std::size_t c = 0; c < goes_on.size(); ++c) {
      if (goes_on[c] && work_[c] <= 0) goes_on[c] = play(static_cast<int>(c));
    }
    if (std::ranges::find(goes_on, 1) == goes_on.end()) return;
    find_rates();
    const double seconds = seconds_to_next_event();
    ZERO_CHECK(seconds < kNever, "simulation: ranks wait for what nobody sends");
    advance(seconds);
    fire_timers();
    ++events_;
  }
}

}  // namespace zero::plan
