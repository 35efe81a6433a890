#pragma once
#include <functional>
#include <memory>

#include "io/file_system.h"
#include "zero/activations.h"

namespace zero::offload {

/// Whether its values can be kept as bytes: dense, with `min_nbytes` at least.
bool is_plain(const at::Tensor& tensor, std::int64_t min_nbytes);
/// The same, of the CPU.
bool can_leave_memory(const at::Tensor& tensor, std::int64_t min_nbytes);

/// zero::activations_on_nvme() in a file of `files`, which outlives it. `count` hears of bytes that buffers take, and
/// of those they give back as negative numbers.
std::shared_ptr<NvmeActivations> activations_on_nvme(const NvmeActivationOptions& options, io::FileSystem& files,
                                                     std::function<void(std::int64_t)> count = {});

/// zero::activations_in_host_memory(). `count` hears of bytes of the host as above.
std::shared_ptr<ActivationHome> activations_in_host_memory(std::int64_t min_nbytes,
                                                           std::function<void(std::int64_t)> count);

}  // namespace zero::offload
