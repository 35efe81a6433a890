#pragma once
// The device that a rank trains on.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "zero/group.h"

namespace zero::app {

/// GPUs that a program here may use: all of the host's, or those that CUDA_VISIBLE_DEVICES names. Loads nothing.
int visible_gpus();

/// Whether its libraries for CUDA are there. Loads nothing.
bool libtorch_has_cuda();

/// The ranks that train where `device` was asked for and no number: one for each GPU, `on_cpu` on the CPU.
int default_ranks(const std::string& device, int on_cpu);

/// Returns when the device has done all that it was given; at once on the CPU.
void finish_device(at::Device device);

/// "cpu", "cuda" or a backend of libtorch, maybe with a number. Throws ConfigError where it is no such name. Loads
/// nothing.
at::Device parse_device(const std::string& name);

/// The same, where there is such a device. Loads its libraries for CUDA, before which nothing
/// may have asked libtorch about CUDA. Throws ConfigError where there is no such device.
at::Device check_device(const std::string& name);

/// Bytes that are free of each device that `name` means; 0 where libtorch does not say. Loads and throws as
/// check_device() does.
std::vector<std::int64_t> free_memory(const std::string& name);

/// The same, asked by a process of its own: this one takes no memory of a device for it.
std::vector<std::int64_t> ask_free_memory(const std::string& name);

/// Of this rank: the one of its place on the host where `name` has no number; ranks beyond the number of devices share
/// them. Throws as check_device(), on ranks other than 0 IoError: each host has its own devices, and a ConfigError is
/// said by rank 0 alone. Call it before set_up_process(): at a seed libtorch looks for CUDA, and never again.
at::Device device_of_rank(const std::string& name, const Group& group);

}  // namespace zero::app
