#pragma once
// What the loops of comm/reduce_body.inc are called with, one for each instruction set.
#include <cstddef>
#include <cstdint>

#include "comm/backend.h"
#include "zero/dtype.h"

namespace zero::comm {

/// See reduce_ordered(); at least one slice.
struct Arguments {
  const void* const* slices;
  std::size_t count;
  std::int64_t numel;
  void* out;
  ReduceBase base;
};

using Loops = void(const Arguments& arguments, DType dtype, DType out_dtype, ReduceOp op);

namespace generic {
Loops reduce;
}
namespace avx2 {
Loops reduce;
}
namespace avx512 {
Loops reduce;
}

}  // namespace zero::comm
