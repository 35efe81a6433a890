#include "optim/rule.h"

#include "optim/kernels.h"
#include "optim/passes.h"

namespace zero::optim {

namespace {

constexpr std::array kAdamStates{StateColumn{"exp_avg"}, StateColumn{"exp_avg_sq"}};

void update_adam(const UpdateArgs& args, const Hyper& hyper) { kernels().adam(args, hyper); }

}  // namespace

std::int64_t Rule::state_nbytes() const {
  std::int64_t sum = 0;
  for (const StateColumn& state : states) sum += static_cast<std::int64_t>(element_nbytes(state.dtype));
  return sum;
}

const Rule& adam() {
  static const Rule rule{"Adam", kAdamStates, &update_adam, &adam_on_device};
  return rule;
}

}  // namespace zero::optim
