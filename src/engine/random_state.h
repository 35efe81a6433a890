#pragma once
// The state of libtorch's default generators.
#include <ATen/core/Tensor.h>

namespace zero::engine {

/// [n] bytes, of the generator of a device. Local, any thread.
at::Tensor random_state(c10::Device device);
void set_random_state(c10::Device device, const at::Tensor& state);

}  // namespace zero::engine
