#pragma once
// Passes: what is done with the elements of shards in memory of one device. All pointers are to that memory but
// where said. On the CPU these are the kernels of kernels.h, elsewhere ATen operators on the current stream.
#include <c10/core/Device.h>

#include "optim/kernels.h"
#include "optim/rule.h"

namespace zero::optim {

class Passes {
 public:
  virtual ~Passes() = default;

  /// True when the host may read and write the memory itself.
  virtual bool in_host_memory() const = 0;
  /// True when masters may be kept as bf16 parameters and remainders: split() and join().
  virtual bool splits_masters() const = 0;

  /// `args.block_sumsq` is host memory; asking for it waits for the device.
  virtual void reduce(const ReduceArgs& args) const = 0;
  /// Sums of squares per block of kSumBlockNumel elements of `dtype`, into host memory. Waits for the device.
  virtual void block_sumsq(const void* values, DType dtype, std::int64_t numel, double* out) const = 0;
  virtual void update(const Rule& rule, const UpdateArgs& args, const Hyper& hyper) const = 0;
  /// Parameters of `param_dtype` from their fp32 masters.
  virtual void round(const float* master, void* low, DType param_dtype, std::int64_t numel) const = 0;
  virtual void split(const float* master, std::uint16_t* low, std::uint16_t* remainder, std::int64_t numel) const = 0;
  virtual void join(const std::uint16_t* low, const std::uint16_t* remainder, float* master,
                    std::int64_t numel) const = 0;
  /// For data that another rank reads next.
  virtual void copy(void* out, const void* in, std::size_t nbytes) const = 0;
};

/// Lives as long as the process.
const Passes& passes_for(c10::Device device);
/// The ATen ones on any device, the CPU too: for tests.
const Passes& aten_passes_for(c10::Device device);

}  // namespace zero::optim
