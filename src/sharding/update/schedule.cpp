#include "sharding/update/schedule.h"

#include "zero/errors.h"

namespace zero::sharding {

// Each in a file of its own.
std::unique_ptr<UpdateSchedule> make_update_in_backward(const UpdateParts& parts);
std::unique_ptr<UpdateSchedule> make_speculative_update(const UpdateParts& parts);
std::unique_ptr<UpdateSchedule> make_delayed_update(const UpdateParts& parts);

namespace {

class UpdateAfterBackward final : public UpdateSchedule {
 public:
  explicit UpdateAfterBackward(const UpdateParts& parts) : parts_(parts) {}

  void end_accumulation(const std::vector<double>& lr, double gradient_scale) override {
    parts_.reducer.replicate();
    const Stopwatch watch(parts_.timeline, &StepBreakdown::update);
    parts_.optimizer.update(parts_.reducer, lr, gradient_scale);
  }

 private:
  const UpdateParts parts_;
};

std::unique_ptr<UpdateSchedule> make(Config::Zerotorch::Update update, const UpdateParts& parts) {
  using Update = Config::Zerotorch::Update;
  switch (update) {
    case Update::kAfterBackward:
      return std::make_unique<UpdateAfterBackward>(parts);
    case Update::kInBackward:
      return make_update_in_backward(parts);
    case Update::kSpeculative:
      return make_speculative_update(parts);
    case Update::kDelayed:
      return make_delayed_update(parts);
  }
  throw InternalError("no such schedule of updates");
}

}  // namespace

std::unique_ptr<UpdateSchedule> make_update_schedule(Config::Zerotorch::Update update, const UpdateParts& parts) {
  std::unique_ptr<UpdateSchedule> schedule = make(update, parts);
  parts.reducer.set_listener(*schedule);
  return schedule;
}

}  // namespace zero::sharding
