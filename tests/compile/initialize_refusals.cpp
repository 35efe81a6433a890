// What zero::initialize cannot own: with REFUSED each call fails to compile, with one sentence that says what to pass
// (initialize_refusals_test.sh); without, this compiles.
#include <torch/nn/module.h>

#include <memory>

#include "zero/engine.h"

struct ByValue : torch::nn::Module {};
struct ByReference : torch::nn::Module {};
struct Unique : torch::nn::Module {};
struct ByPointer : torch::nn::Module {};

void refuse(const zero::Config& config) {
#ifndef REFUSED
  auto engine = zero::initialize(std::make_shared<ByValue>(), config);
#else
  ByValue value;
  zero::initialize(value, config);
  auto shared = std::make_shared<ByReference>();
  ByReference& reference = *shared;
  zero::initialize(reference, config);
  auto unique = std::make_unique<Unique>();
  zero::initialize(unique, config);
  ByPointer pointed_to;
  zero::initialize(&pointed_to, R"({"train_batch_size": 1})");
#endif
}
