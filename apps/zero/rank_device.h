#pragma once
// The device that a rank trains on.
#include <c10/core/Device.h>

#include <string>

#include "zero/group.h"

namespace zero::app {

/// GPUs that a program here may use: all of the host's, or those that CUDA_VISIBLE_DEVICES names. Loads nothing.
int visible_gpus();

/// Of this rank: the CPU, or of `name` ("cuda", a backend of libtorch) the one of its place on the host; ranks beyond
/// the number of devices share them. Loads libtorch's libraries for CUDA, before which nothing may have asked libtorch
/// about CUDA. Throws ConfigError where there is no such device.
at::Device device_of_rank(const std::string& name, const Group& group);

}  // namespace zero::app
