#pragma once
// RankPlayer: the ranks of a class act out their steps in a world.
#include <cstdint>
#include <deque>
#include <vector>

#include "layout/best_fit.h"
#include "layout/late_schedule.h"
#include "layout/prefetch_window.h"
#include "plan/simulation/step_writer.h"
#include "plan/simulation/world.h"

namespace zero::plan {

/// Seconds of a rank by what it did, and what moved meanwhile.
struct Elapsed {
  double seconds = 0;
  double compute = 0, copies = 0, update = 0;
  double parameters = 0, gradients = 0, ranks = 0;  ///< waiting: for values of parameters, for buckets, in collectives
  double received_nbytes = 0, between_hosts_nbytes = 0, messages = 0;

  Elapsed& operator+=(const Elapsed& more);
  Elapsed operator-(const Elapsed& other) const;
  Elapsed operator*(double factor) const;
};

class RankPlayer {
 public:
  /// Of class `ranks`, for so many steps of at most `most_micro_batches` each.
  RankPlayer(const StepModel& model, World& world, int ranks, int steps, std::int64_t most_micro_batches);

  /// Goes on as far as it can now. False: all steps are over.
  bool play();

  /// Of the last step, as if it had all its micro-batches: those that were left out are like the last but one.
  Elapsed last_step() const;

 private:
  struct Sent {
    int transfer, buffer;
  };
  enum Channel : std::uint64_t { kBucket = 1, kShards, kLate, kCall, kRing };
  static World::Topic topic(Channel channel, std::uint64_t number, std::uint64_t of = 0) {
    return {channel << 32 | of, number};
  }

  bool next_step();
  /// False: it is not over yet, and has to be tried again.
  bool act(const Action& action);
  bool compute(double seconds);
  bool wait(int transfer) const { return world_.is_over(transfer); }
  void gather(int unit);
  bool wait_gather(const Action& action);
  bool use_late(int unit);
  bool complete_late(int unit);
  bool complete_all_late();
  void fetch_late(int unit);
  void fetch_more();
  bool open_bucket(int bucket);
  void send_bucket(int bucket);
  bool wait_buckets();
  void retire(std::size_t sent);
  bool collective(const sharding::Transfer& transfer);
  void publish();
  void end_timed_step();
  /// Where seconds of this action count.
  double* account_of(Action::Kind kind);
  double numel_of(int unit) const;
  Elapsed so_far() const;

  const StepModel& model_;
  World& world_;
  const int ranks_;
  const int steps_;
  const std::int64_t micro_batches_;
  StepWriter writer_;
  std::vector<Action> actions_;
  std::size_t next_ = 0;
  bool begun_ = false;  ///< the next action has
  double began_ = 0;    ///< when
  int steps_begun_ = 0;
  std::uint64_t publications_ = 0, calls_ = 0, gathers_made_ = 0;
  int call_ = -1;  ///< the collective that it is in

  std::vector<int> gathers_;  ///< transfers, by unit
  layout::MeasuredWindow times_of_uses_;
  layout::LateSchedule late_;
  std::vector<int> late_transfers_;  ///< by unit
  std::size_t completed_ = 0;        ///< of all late units, while they are waited for
  layout::BestFit pool_;
  std::int64_t pool_limit_numel_ = 0;
  std::vector<int> buffer_of_;        ///< by bucket
  std::vector<std::uint64_t> posts_;  ///< by bucket
  std::deque<Sent> sent_;
  Elapsed elapsed_;
  std::vector<Elapsed> marks_;  ///< of the step: its begin, the ends of its micro-batches
  Elapsed last_step_end_;
};

}  // namespace zero::plan
