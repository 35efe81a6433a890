#pragma once
// UpdateSchedule: when the optimizer's update of a step runs ("zerotorch.update"). An engine has one. The reducer tells
// it of gradients, the engine of the course of a step:
//
//   set_rates             before the first gradient of an accumulation cycle
//   begin                 in the backward of its last micro-batch
//     gradients_ready     of a part of a unit, in any thread
//     gradients_change    before sums that were ready are changed
//   end_accumulation      the step is taken: the update is done, or under way
//   drop                  it is not, or something is read that an update must not have changed
//   finish                an update that is under way becomes part of the parameters
#include <cstdint>
#include <memory>
#include <vector>

#include "sharding/gradient_reducer.h"
#include "sharding/parameter_store.h"
#include "sharding/sharded_model.h"
#include "sharding/sharded_optimizer.h"
#include "sharding/timeline.h"
#include "zero/config.h"

namespace zero::sharding {

/// What a schedule works with; outlives it. The reducer may end first, after stop().
struct UpdateParts {
  ShardedModel& model;
  ParameterStore& store;
  ShardedOptimizer& optimizer;
  GradientReducer& reducer;
  Timeline& timeline;
};

/// For one thread, beside its own and those of the reducer. Functions are local where nothing else is said. `lr[g]`:
/// learning rate of group g; `gradient_scale` turns sums of gradients into what the optimizer takes.
class UpdateSchedule : public GradientListener {
 public:
  /// Rates of updates from here on. Not while an update uses the earlier ones.
  virtual void set_rates(const std::vector<double>& /*lr*/, double /*gradient_scale*/) {}
  /// The backward of the last micro-batch begins. If nothing unforeseen happens, the update will be one with these
  /// arguments. Throws IoError.
  virtual void begin(const std::vector<double>& /*lr*/, double /*gradient_scale*/) {}
  /// The step is taken; the reducer has all gradients. This rank's part of the store has the new values afterwards, and
  /// ParameterStore::publish() is to follow. *Collective.* Throws IoError.
  virtual void end_accumulation(const std::vector<double>& lr, double gradient_scale) = 0;
  /// What has begun since begin() has not happened. Throws IoError.
  virtual void drop() {}
  /// What has arrived on any rank is part of the parameters, if gradients are used up as they come. *Collective.*
  virtual void settle() {}
  /// An update is under way whose results are not in the store.
  virtual bool is_pending() const { return false; }
  /// This rank's part of the store has the results: nobody reads it, and publish() is to follow. Throws IoError.
  virtual void finish() {}
  /// Returns when no thread of the schedule runs. Throws IoError.
  virtual void stop() {}

  struct Counts {
    std::int64_t kept = 0, undone = 0;  ///< updates that began in backward
  };
  virtual Counts counts() const { return {}; }
};

/// Makes it the reducer's listener.
std::unique_ptr<UpdateSchedule> make_update_schedule(Config::Zerotorch::Update update, const UpdateParts& parts);

}  // namespace zero::sharding
