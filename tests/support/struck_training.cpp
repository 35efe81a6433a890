#include "struck_training.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "odd_model.h"
#include "zero/zero.h"

namespace zero::testing {

void train_until_struck(Group group, const std::string& store, Place place, const std::function<void()>& strike,
                        const std::string& progress_thread) {
  at::set_num_threads(1);
  at::manual_seed(1);
  DeepModel model(8, 64);
  auto engine = initialize(model,
                           fmt::format(R"({{"train_micro_batch_size_per_gpu": 2,
      "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}},
      "zerotorch": {{"store": "{}", "progress_thread": "{}"}}}})",
                                       store, progress_thread),
                           InitializeOptions{.group = group});
  for (int step = 0; step < 20; ++step) {
    const bool now = step == 5 && group.rank() == 1;
    at::Tensor x = at::ones({2, 64}).requires_grad_();
    if (now && place == Place::kForward) strike();
    at::Tensor y = engine(x);
    if (now && place == Place::kBackward) {
      y.register_hook([strike](const at::Tensor& gradient) {
        strike();
        return gradient;
      });
    }
    engine.backward(y.square().mean());
    if (now && place == Place::kStep) strike();
    engine.step();
  }
}

}  // namespace zero::testing
