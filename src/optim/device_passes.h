#pragma once
// The same passes on tensors of any device, as ATen operators: for devices that have no kernels of ours.
#include <ATen/core/Tensor.h>

#include <span>

#include "optim/kernels.h"

namespace zero::optim {

/// accumulator [numel] fp32 = ((base + slices[0]) + slices[1]) + ..., base 0 when `first`.
void reduce_on_device(const at::Tensor& accumulator, std::span<const at::Tensor> slices, bool first);

/// Sums of squares per block of 1,024, fp64, into host memory out[numel / 1024]. Waits for the device.
void block_sumsq_on_device(const at::Tensor& values, double* out);

/// One Adam update; `low` may be undefined.
void adam_on_device(const at::Tensor& master, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                    const at::Tensor& gradient, const at::Tensor& low, const AdamHyper& hyper);

}  // namespace zero::optim
