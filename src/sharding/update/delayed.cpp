// The update of a step runs in a thread of its own while the next step computes (ZeRO-Offload's one-step delayed
// parameter update). The gradients of step t are of the parameters that the update of step t - 2 has made:
//
//   step t      its sums are handed over; what the update of step t - 1 has made goes into the store; update t begins
//   meanwhile   forward, backward and reductions of step t + 1, on parameters without update t
#include <utility>

#include "sharding/update/schedule.h"
#include "sharding/update/thread.h"

namespace zero::sharding {
namespace {

class DelayedUpdate final : public UpdateSchedule {
 public:
  explicit DelayedUpdate(const UpdateParts& parts)
      : parts_(parts), thread_([this] { parts_.optimizer.run_update(*sums_); }, "delayed update", parts.timeline) {
    parts_.store.refuse_writes(
        "zerotorch.update \"delayed\" updates parameters while the program goes on, and what is written besides would "
        "be lost; hold a zero::GatheredParameters over it with modifier_rank set, and write on that rank");
  }

  void end_accumulation(const std::vector<double>& lr, double gradient_scale) override {
    const Stopwatch watch(parts_.timeline, &StepBreakdown::update);
    finish();  // of the step before
    parts_.optimizer.begin_update(lr, gradient_scale);
    sums_ = &parts_.reducer.hand_over_sums();
    thread_.start();
  }
  bool is_pending() const override { return sums_ != nullptr; }
  void finish() override {
    if (!is_pending()) return;
    thread_.wait();
    thread_.rethrow();
    parts_.optimizer.end_update();
    std::exchange(sums_, nullptr)->release();
  }
  void stop() override { thread_.wait(); }

 private:
  const UpdateParts parts_;
  GradientSums* sums_ = nullptr;
  UpdateThread thread_;  ///< last: ends first
};

}  // namespace

std::unique_ptr<UpdateSchedule> make_delayed_update(const UpdateParts& parts) {
  return std::make_unique<DelayedUpdate>(parts);
}

}  // namespace zero::sharding
