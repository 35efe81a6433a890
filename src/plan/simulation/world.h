#pragma once
// World: the clock of a simulation, and what takes time in it: computing, and transfers between ranks over links. A
// discrete-event simulation: rates hold from one event to the next, and events are the ends of what is under way.
//
// A transfer brings something to each rank of a class, in one flow for each class that it comes from. A flow begins
// when its senders have announced what is wanted and have been asked for it. Flows of one stream share it, as messages
// do that are sent in pieces (comm/messages), or follow each other, as NCCL's calls do.
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/simulation/links.h"

namespace zero::plan {

class World {
 public:
  /// What is announced: all ranks give it the same numbers.
  struct Topic {
    std::uint64_t what = 0;
    std::uint64_t number = 0;  ///< of the same what it only grows: with one, those before it are announced
    auto operator<=>(const Topic&) const = default;
  };

  struct Ways {
    bool moves_beside = true;  ///< messages move while ranks compute, too
    bool in_turn = false;      ///< flows of a stream follow each other
  };
  World(const Topology& topology, const Speeds& speeds, Ways ways);

  double now() const { return now_; }

  /// Ranks of this class have it ready for the others, from now on.
  void announce(int ranks, Topic topic);
  /// Begins a transfer to each rank of this class of what the others announce.
  int start(int ranks, const sharding::Transfer& transfer, Topic topic);
  bool is_over(int transfer) const { return transfers_[static_cast<std::size_t>(transfer)].parts == 0; }
  /// Of one that is over: from its start.
  double seconds_of(int transfer) const;
  /// Begins to compute for so many seconds of a whole core.
  void compute(int ranks, double seconds);
  bool computes(int ranks) const { return work_[static_cast<std::size_t>(ranks)] > 0; }

  /// Lets all ranks act until `play` has returned false for all of them. `play(c)`: ranks of class c go on, as far as
  /// they can now; false: they are at their end.
  void run(const std::function<bool(int ranks)>& play);

  /// What transfers to a rank have brought or will bring: bytes, those from other hosts, messages.
  struct Received {
    double nbytes = 0, between_hosts_nbytes = 0, messages = 0;
  };
  const Received& received(int ranks) const { return received_[static_cast<std::size_t>(ranks)]; }
  std::int64_t events() const { return events_; }

 private:
  struct Transfer {
    int parts = 0;  ///< that are not over
    double start = 0, end = 0;
  };
  struct Flow {
    int transfer = 0;
    double connections = 0;
    double nbytes = 0;   ///< to each receiving rank, left
    double latency = 0;  ///< after its last byte
  };
  struct Waiting {
    int stream = 0;
    Flow flow;
    double trip = 0;  ///< of the question: it does not begin earlier
  };
  struct Timer {
    double at = 0;
    std::int64_t number = 0;  ///< of those at one time, the first one first
    int transfer = -1;        ///< a part of it is over; -1: a flow begins
    int stream = 0;
    Flow flow = {};
    bool operator>(const Timer& other) const { return at != other.at ? at > other.at : number > other.number; }
  };

  double latency(const Stream& stream, sharding::Way way) const;
  void end_part(int transfer);
  void at(double time, Timer timer);
  void begin(int stream, const Flow& flow);
  void find_rates();
  bool moves(const Stream& stream) const;
  bool is_announced(int ranks, Topic topic) const;
  double seconds_to_next_event() const;
  void advance(double seconds);
  void fire_timers();

  const Topology& topology_;
  const Speeds speeds_;
  const Ways ways_;
  Links links_;
  double now_ = 0;
  std::int64_t events_ = 0, timers_made_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<std::deque<Flow>> flows_;                                      ///< by stream
  std::vector<Links::Carrier> carriers_;                                     ///< of the streams that move
  bool rates_hold_ = false;                                                  ///< carriers_ is right
  std::vector<double> work_;                                                 ///< by rank class: seconds of a core, left
  std::vector<double> busy_until_;                                           ///< by rank class: with its messages
  std::map<std::pair<int, Topic>, std::vector<Waiting>> waiting_;            ///< by sender
  std::vector<std::unordered_map<std::uint64_t, std::uint64_t>> announced_;  ///< by rank class and what: the number
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  std::vector<Received> received_;  ///< by rank class
};

}  // namespace zero::plan
