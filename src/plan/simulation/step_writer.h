#pragma once
// StepWriter: a step of a rank as a list of actions, by the engine's own schedules of gathers and buckets. They decide
// by the history of calls alone, so a list can be written before it is played; what depends on time is decided by
// the player.
#include <vector>

#include "layout/bucket_schedule.h"
#include "plan/simulation/step_model.h"

namespace zero::plan {

struct Action {
  enum Kind : std::uint8_t {
    kCompute,       ///< `seconds` of forward or backward
    kCopy,          ///< `seconds` of copying gradients into buckets
    kUpdate,        ///< `seconds` of the optimizer
    kNoteUse,       ///< a use of a unit begins; `index`: the phase
    kGather,        ///< of unit `index`: begins
    kWaitGather,    ///< of unit `index`; `seconds` not 0: the operator that follows needs it
    kUseLate,       ///< of unit `index`, which may be late
    kOpenBucket,    ///< `index` takes memory
    kSendBucket,    ///< `index`
    kWaitBuckets,   ///< all that were sent
    kCollective,    ///< `transfer`, to its end
    kCompleteLate,  ///< waits for all late units
    kPublish,       ///< this rank's updated shards are there for the others
    kEndMicroBatch,
  };
  Kind kind;
  int index = 0;
  double seconds = 0;
  sharding::Transfer transfer = {};
};

class StepWriter {
 public:
  explicit StepWriter(const StepModel& model);

  /// The next step. `micro_batches`: so many of them.
  std::vector<Action> write(std::int64_t micro_batches);

  void set_window(std::int64_t numel) { gathers_.set_window(numel); }
  /// Elements of the largest unit that is gathered.
  std::int64_t largest_numel() const { return largest_numel_; }

 private:
  void operate(const Operator& op, int phase, double seconds);
  void carry_out(layout::GatherSchedule::Commands commands, bool for_use);
  void arrive(const std::vector<int>& parameters);
  void send(int bucket);
  void end_micro_batch();
  void end_step();
  void collective(const sharding::Transfer& transfer);

  const StepModel& model_;
  layout::GatherSchedule gathers_;
  layout::BucketSchedule buckets_;
  std::int64_t largest_numel_ = 0;
  std::vector<Action> actions_;
};

}  // namespace zero::plan
