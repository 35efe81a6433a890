// What zero::initialize cannot own. Each CASE must fail to compile, with one sentence that says what to pass
// (initialize_refusals_test.sh); CASE 0 compiles.
#include <torch/nn/module.h>

#include <memory>

#include "zero/engine.h"

struct Net : torch::nn::Module {};

void refuse(const zero::Config& config) {
#if CASE == 0
  auto engine = zero::initialize(std::make_shared<Net>(), config);
#elif CASE == 1
  Net model;
  auto engine = zero::initialize(model, config);
#elif CASE == 2
  auto model = std::make_unique<Net>();
  zero::initialize(model, config);
#elif CASE == 3
  auto model = std::make_shared<Net>();
  Net& reference = *model;
  auto engine = zero::initialize(reference, config);
#elif CASE == 4
  Net model;
  zero::initialize(&model, R"({"train_batch_size": 1})");
#endif
}
