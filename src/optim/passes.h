#pragma once
// Passes: operations on the elements of shards in the memory of one device. All pointers are to that memory unless
// stated otherwise. On the CPU they are the kernels of kernels.h, elsewhere those of device_kernels.h, or where there
// are none ATen operators, on the current stream.
#include <c10/core/Device.h>

#include "optim/kernels.h"
#include "optim/rule.h"

namespace zero::optim {

class Passes {
 public:
  virtual ~Passes() = default;

  /// True if host code may read and write the memory directly.
  virtual bool in_host_memory() const = 0;
  /// True if masters may be kept as bf16 parameters plus remainders: split() and join().
  virtual bool splits_masters() const = 0;
  /// Whether update() has this rule, and draws the rounding of bf16 masters.
  virtual bool updates(const Rule& rule) const = 0;
  virtual bool rounds_stochastically() const = 0;

  /// `args.block_sumsq` is memory of the device, too.
  virtual void reduce(const ReduceArgs& args) const = 0;
  /// Computes sums of squares per block of kSumBlockNumel elements of `dtype`.
  virtual void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const = 0;
  virtual void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const = 0;
  /// Rounds fp32 masters to parameters of `param_dtype`.
  virtual void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const = 0;
  virtual void split(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel) const = 0;
  virtual void join(const std::uint16_t* low, const std::uint16_t* remainder, float* master,
                    std::int64_t numel) const = 0;
  /// Copies data that another rank reads next.
  virtual void copy(void* out, const void* in, std::size_t nbytes) const = 0;
};

/// Lives as long as the process.
const Passes& passes_for(c10::Device device);
/// Those of the device's own kernels; null: it has none.
const Passes* fused_passes_for(c10::Device device);
/// The ATen passes, on any device; on the CPU for tests.
const Passes& aten_passes_for(c10::Device device);

}  // namespace zero::optim
