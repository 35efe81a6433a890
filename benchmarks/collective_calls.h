#pragma once
// What benchmarks/collectives.cpp measures: one set of collectives, by whoever makes them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "zero/dtype.h"

namespace bench {

class CollectiveCalls {
 public:
  virtual ~CollectiveCalls() = default;
  /// "shm", "zero-mpi" or "openmpi".
  virtual std::string name() const = 0;
  /// Every rank has `numel` elements in `in`; `out` gets those of all ranks.
  virtual void all_gather(const void* in, void* out, std::int64_t numel, zero::DType dtype) = 0;
  /// `in` has `numel` elements for each rank. `out` gets the sums of mine, in `reduced_dtype(dtype)`.
  virtual void reduce_scatter(const void* in, void* out, std::int64_t numel, zero::DType dtype) = 0;
  virtual void all_reduce(void* inout, std::int64_t numel, zero::DType dtype) = 0;
  /// From rank 0.
  virtual void broadcast(void* inout, std::int64_t numel, zero::DType dtype) = 0;
  virtual void barrier() = 0;
  /// Type of the result of reduce_scatter.
  virtual zero::DType reduced_dtype(zero::DType dtype) const = 0;
};

/// The calls of MPI itself, or null when MPI was not found at build time or this process was not started by
/// mpirun. bf16, which MPI does not know, is summed by an operation of ours: fp32 sums, rounded once.
std::unique_ptr<CollectiveCalls> make_mpi_calls();

}  // namespace bench
