#pragma once
// The updates as ATen operators, for memory of devices that have no kernels of ours: the kernels' rules, and their
// states in the same order.
#include "optim/rule.h"

namespace zero::optim {

void adam_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device);
void sgd_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device);
void adagrad_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device);
void rmsprop_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device);
void lion_on_device(const UpdateArgs& args, const Hyper& hyper, const c10::Device& device);

}  // namespace zero::optim
