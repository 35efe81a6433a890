#pragma once
// What the loops of comm/reduce_body.inc are called with, one for each instruction set.
#include <cstddef>
#include <cstdint>

#include "comm/backend.h"
#include "zero/dtype.h"

namespace zero::comm {

/// See reduce_ordered(); at least one slice.
struct SlicesToReduce {
  const void* const* slices;
  std::size_t count;
  std::int64_t numel;
  void* out;
  ReduceBase base;
};

using ReduceLoops = void(const SlicesToReduce& all, DType dtype, DType out_dtype, ReduceOp op);

namespace generic {
ReduceLoops reduce;
}
namespace avx2 {
ReduceLoops reduce;
}
namespace avx512 {
ReduceLoops reduce;
}

}  // namespace zero::comm
