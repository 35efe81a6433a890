// The update runs in backward, piece by piece: a reducer that keeps no sums hands over each bucket as soon as it is
// complete.
#include "sharding/update/schedule.h"

namespace zero::sharding {
namespace {

class UpdateInBackward final : public UpdateSchedule {
 public:
  explicit UpdateInBackward(const UpdateParts& parts) : parts_(parts) {
    parts_.store.refuse_writes(
        "zerotorch.update \"in_backward\" updates parameters within backward, and what is written besides would be "
        "lost; hold a zero::GatheredParameters over it with modifier_rank set, and write on that rank");
  }

  void set_rates(const std::vector<double>& lr, double gradient_scale) override {
    lr_ = lr;
    gradient_scale_ = gradient_scale;
  }
  void gradients_ready(int unit, Range range, const at::Tensor& sums) override {
    const Stopwatch watch(parts_.timeline, &StepBreakdown::update,
                          parts_.model.units[static_cast<std::size_t>(unit)].name);
    parts_.optimizer.update_part(unit, range, sums, lr_, gradient_scale_);
  }
  void end_accumulation(const std::vector<double>&, double) override { parts_.optimizer.end_step(); }
  void settle() override { parts_.reducer.flush("updates under way"); }

 private:
  const UpdateParts parts_;
  std::vector<double> lr_;
  double gradient_scale_ = 1;
};

}  // namespace

std::unique_ptr<UpdateSchedule> make_update_in_backward(const UpdateParts& parts) {
  return std::make_unique<UpdateInBackward>(parts);
}

}  // namespace zero::sharding
